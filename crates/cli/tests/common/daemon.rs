//! A long-running process of the program, which root starts and which continues as another user,
//! and the kernel's view of it.

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::PROGRAM;

/// Far beyond what anything here takes; only a failed test waits so long.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Reports that a test did not run, past the capture of tests that pass.
pub(crate) fn skipped(test: &str, why: &str) {
    let _written = std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes());
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Returns the user id of `nobody`, if this process is root and may start others as that user.
pub(crate) fn nobody(test: &str) -> Option<u32> {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = users.lines().find_map(|line| line.strip_prefix("nobody:")?.split(':').nth(1));
    let number = number.and_then(|number| number.parse().ok());
    let may = |number: &u32| Command::new("true").uid(*number).status().is_ok();
    let found = number.filter(|number| is_root() && may(number));
    if found.is_none() {
        skipped(test, "needs root, and a user `nobody`");
    }
    found
}

pub(crate) fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let started = Instant::now();
    while !true_now() {
        assert!(started.elapsed() < TEST_TIMEOUT, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A temporary folder of a test with keys, a configuration, and a copy of the program that any user
/// may start; removed at its end, with all processes that have the configuration.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// Creates it with a relay's configuration.
    pub(crate) fn new(name: &str, more: &str) -> Self {
        let folder = Self::empty(name);
        let (_, operator) = (folder.keygen("identity"), folder.keygen("operator"));
        let text = format!(
            "listen = ['127.0.0.1:0']\nidentity_file = '{}'\noperators = ['{operator}']\n\
             workers = 1\n",
            folder.key().display(),
        );
        fs::write(folder.0.join("common"), text).unwrap();
        folder.configure(more);
        folder
    }

    pub(crate) fn empty(name: &str) -> Self {
        let name = format!("tradewind-privileges-{name}-{}", std::process::id());
        let folder = Self(std::env::temp_dir().join(name));
        fs::create_dir(&folder.0).unwrap();
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
        let (program, link) = (PROGRAM, folder.0.join("tradewind"));
        fs::hard_link(program, &link).or_else(|_| fs::copy(program, &link).map(drop)).unwrap();
        folder
    }

    /// Makes a key of this kind, in a file of its name.
    pub(crate) fn keygen(&self, kind: &str) -> String {
        self.keygen_as(kind, kind)
    }

    pub(crate) fn keygen_as(&self, kind: &str, name: &str) -> String {
        let file = self.0.join(format!("{name}.key"));
        let made = self.command().args(["keygen", kind]).arg(file).output().unwrap();
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn command(&self) -> Command {
        Command::new(self.0.join("tradewind"))
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.0.join("identity.key")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.0.join("relay.toml")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    /// Waits until it is logged.
    pub(crate) fn wait_for_log(&self, words: &str) {
        until(words, || self.log().contains(words));
    }

    /// Writes the relay's configuration: `more` beside the common part.
    pub(crate) fn configure(&self, more: &str) {
        let common = fs::read_to_string(self.0.join("common")).unwrap();
        fs::write(self.config(), format!("{common}{more}")).unwrap();
    }

    /// Creates a folder inside that belongs to this user.
    pub(crate) fn of_user(&self, user: u32) -> PathBuf {
        let path = self.0.join("theirs");
        fs::create_dir(&path).unwrap();
        chown(&path, Some(user), None).unwrap();
        path
    }

    pub(crate) fn relay(&self) -> Process {
        self.start("relay", &[])
    }

    pub(crate) fn start(&self, role: &str, arguments: &[&str]) -> Process {
        let mut command = self.command();
        command.arg(role).arg("--config").arg(self.config()).args(arguments);
        self.begin(command)
    }

    /// Starts a gateway or another command in a network namespace of its own.
    pub(crate) fn start_apart(&self, words: &[&str]) -> Process {
        let program = self.0.join("tradewind");
        let script = "echo 1 > /proc/sys/net/ipv4/ip_forward && exec \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", script]).arg(program).args(words);
        self.begin(command)
    }

    pub(crate) fn begin(&self, command: Command) -> Process {
        self.begin_logging(command, "log")
    }

    /// Starts `command`, which logs into a file of this name.
    pub(crate) fn begin_logging(&self, mut command: Command, log: &str) -> Process {
        command.env("TRADEWIND_RUNTIME_DIR", &self.0).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(fs::File::create(self.0.join(log)).unwrap());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Process { child, lines, ready: Value::Null };
        process.ready = process.next_line().unwrap_or_else(|| panic!("{}", self.log()));
        process
    }

    /// Returns the processes that have the configuration.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let place = self.config().display().to_string();
        let numbers = fs::read_dir("/proc").unwrap().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let has_it = |number: &u32| {
            let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).split('\0').any(|word| word == place)
        };
        numbers.filter(has_it).collect()
    }

    /// Upgrades the process, and returns the next one once the previous one has ended.
    pub(crate) fn upgrade(&self, process: &mut Process) -> u32 {
        let before = self.processes();
        let handovers = || self.log().matches("serves; open sessions end here").count();
        let first = handovers();
        process.signal("USR2", before[0]);
        until("a successor", || {
            assert!(!self.log().contains("upgrade failed"), "{}", self.log());
            handovers() > first
        });
        process.ready = process.next_line().unwrap();
        until("one process", || self.processes().len() == 1);
        let after = self.processes();
        assert_ne!(before, after);
        after[0]
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for process in self.processes() {
            let _gone = Command::new("kill").args(["-KILL", &process.to_string()]).status();
        }
        let _gone = fs::remove_dir_all(&self.0);
    }
}

/// A relay's or gateway's process, and the output of it and its successors; it ends with its
/// folder.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pub(crate) ready: Value,
}

impl Process {
    pub(crate) fn next_line(&mut self) -> Option<Value> {
        Some(serde_json::from_str(&self.lines.next()?.unwrap()).unwrap())
    }

    pub(crate) fn signal(&self, name: &str, process: u32) {
        let words = [format!("-{name}"), process.to_string()];
        assert!(Command::new("kill").args(words).status().unwrap().success());
    }

    pub(crate) fn number(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Returns a field of a process's or thread's status, such as `CapEff`.
pub(crate) fn field(status: &Path, field: &str) -> String {
    let text = fs::read_to_string(status).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap_or_default().split_whitespace().next().unwrap_or_default().to_owned()
}

pub(crate) fn status(process: u32) -> PathBuf {
    format!("/proc/{process}/status").into()
}

pub(crate) fn capabilities(process: u32, set: &str) -> u64 {
    u64::from_str_radix(&field(&status(process), set), 16).unwrap()
}
