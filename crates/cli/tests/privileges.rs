//! What a relay's or gateway's process may do: the user that it goes on as, its capabilities, and
//! its sandbox, also after an upgrade; and keys that others may read.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tradewind_grant::IdentityKey;

/// Far beyond what anything here takes; only a failed test waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bits of capabilities (capabilities(7)).
const NET_ADMIN: u64 = 1 << 12;
const BPF: u64 = 1 << 39;

/// Says that a test did not run, past the capture of tests that pass.
fn skipped(test: &str, why: &str) {
    let _heard = std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes());
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// The number of the user `nobody`, where this is root's process and may start some as that user.
fn nobody(test: &str) -> Option<u32> {
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

fn until(what: &str, mut true_now: impl FnMut() -> bool) {
    let started = Instant::now();
    while !true_now() {
        assert!(started.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A folder of a test's own with keys, a configuration, and the program where any user may start
/// it; removed at its end, with all processes that have the configuration.
struct Folder(PathBuf);

impl Folder {
    /// With a relay's configuration.
    fn new(name: &str, more: &str) -> Self {
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

    fn empty(name: &str) -> Self {
        let name = format!("tradewind-privileges-{name}-{}", std::process::id());
        let folder = Self(std::env::temp_dir().join(name));
        fs::create_dir(&folder.0).unwrap();
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
        let (program, link) = (env!("CARGO_BIN_EXE_tradewind"), folder.0.join("tradewind"));
        fs::hard_link(program, &link).or_else(|_| fs::copy(program, &link).map(drop)).unwrap();
        folder
    }

    fn keygen(&self, kind: &str) -> String {
        let file = self.0.join(format!("{kind}.key"));
        let made = self.command().args(["keygen", kind]).arg(file).output().unwrap();
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    }

    fn command(&self) -> Command {
        Command::new(self.0.join("tradewind"))
    }

    fn key(&self) -> PathBuf {
        self.0.join("identity.key")
    }

    fn config(&self) -> PathBuf {
        self.0.join("relay.toml")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    /// Waits until it is logged.
    fn is_told(&self, words: &str) {
        until(words, || self.log().contains(words));
    }

    /// Has the relay's configuration say `more` beside what all have.
    fn configure(&self, more: &str) {
        let common = fs::read_to_string(self.0.join("common")).unwrap();
        fs::write(self.config(), format!("{common}{more}")).unwrap();
    }

    /// A folder inside that is this user's.
    fn of_user(&self, user: u32) -> PathBuf {
        let path = self.0.join("theirs");
        fs::create_dir(&path).unwrap();
        chown(&path, Some(user), None).unwrap();
        path
    }

    fn relay(&self) -> Process {
        self.start("relay", &[])
    }

    fn start(&self, role: &str, arguments: &[&str]) -> Process {
        let mut command = self.command();
        command.arg(role).arg("--config").arg(self.config()).args(arguments);
        command.env("TRADEWIND_RUNTIME_DIR", &self.0).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(fs::File::create(self.0.join("log")).unwrap());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Process { child, lines, ready: Value::Null };
        process.ready = process.next_line().unwrap_or_else(|| panic!("{}", self.log()));
        process
    }

    /// The processes that have the configuration.
    fn processes(&self) -> Vec<u32> {
        let place = self.config().display().to_string();
        let numbers = fs::read_dir("/proc").unwrap().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let has_it = |number: &u32| {
            let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).split('\0').any(|word| word == place)
        };
        numbers.filter(has_it).collect()
    }

    /// Has the next process take over, and returns it once the one before has ended.
    fn upgrade(&self, process: &mut Process) -> u32 {
        let before = self.processes();
        let taken_over = || self.log().matches("serves; open sessions end here").count();
        let first = taken_over();
        process.signal("USR2", before[0]);
        until("a successor", || {
            assert!(!self.log().contains("upgrade failed"), "{}", self.log());
            taken_over() > first
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

/// A relay's or gateway's process, and what it and its successors say; it ends with its folder.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    ready: Value,
}

impl Process {
    fn next_line(&mut self) -> Option<Value> {
        Some(serde_json::from_str(&self.lines.next()?.unwrap()).unwrap())
    }

    fn signal(&self, name: &str, process: u32) {
        let words = [format!("-{name}"), process.to_string()];
        assert!(Command::new("kill").args(words).status().unwrap().success());
    }

    fn number(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A field of a process's or thread's status, such as `CapEff`.
fn field(status: &Path, field: &str) -> String {
    let text = fs::read_to_string(status).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap_or_default().split_whitespace().next().unwrap_or_default().to_owned()
}

fn status(process: u32) -> PathBuf {
    format!("/proc/{process}/status").into()
}

fn capabilities(process: u32, set: &str) -> u64 {
    u64::from_str_radix(&field(&status(process), set), 16).unwrap()
}

/// Checks that a process is in the sandbox, is one of `user`, and may do no more than `kept` says.
fn assert_bound(process: u32, user: u32, kept: u64) {
    let of = |name: &str| field(&status(process), name);
    let text = fs::read_to_string(status(process)).unwrap();
    let numbers = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(|number| number.parse().unwrap()).collect::<Vec<u32>>()
    };
    assert_eq!(numbers("Uid:"), [user; 4]);
    assert_eq!(of("Groups"), of("Gid"), "no group of root's");
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd"] {
        assert_eq!(capabilities(process, set), kept, "{set}");
    }
    assert_sandboxed(process);
    // Another process of the same user may look at nothing of it.
    for file in ["maps", "environ", "mem"] {
        let mut look = Command::new("cat");
        look.arg(format!("/proc/{process}/{file}")).uid(user).gid(user);
        let looked = look.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(!looked.success(), "{file} can be read");
    }
}

/// Checks that a process gains no privileges, and that its workers start no programs.
fn assert_sandboxed(process: u32) {
    let of = |name: &str| field(&status(process), name);
    assert_eq!((of("NoNewPrivs"), of("Seccomp")), ("1".into(), "2".into()));
    assert_eq!(fs::metadata(format!("/proc/{process}/mem")).unwrap().uid(), 0, "is dumpable");
    let filters = |thread: &Path| field(&thread.join("status"), "Seccomp_filters").parse::<u32>();
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    // Since Linux 5.9.
    let Ok(of_main) = filters(&tasks.join(process.to_string())) else { return };
    let threads = || fs::read_dir(&tasks).unwrap().flatten().map(|entry| entry.path());
    let called = |thread: &Path| fs::read_to_string(thread.join("comm")).unwrap_or_default();
    let is_exposed = |name: &str| name.starts_with("worker") || name == "telemetry\n";
    // Started, and bound by then.
    until("workers without the right to start programs", || {
        let mut exposed = threads().filter(|thread| is_exposed(&called(thread))).peekable();
        exposed.peek().is_some() && exposed.all(|thread| filters(&thread) == Ok(of_main + 1))
    });
}

#[test]
fn a_relay_that_root_starts_goes_on_as_another_user_and_so_does_its_successor() {
    let Some(user) = nobody("drop") else { return };
    let folder = Folder::new("drop", "run_as = 'nobody'\nmetrics = '127.0.0.1:0'\n");
    let mut relay = folder.relay();
    assert_bound(relay.number(), user, 0);
    // The key is root's alone, and the next process gets it all the same.
    let key = fs::metadata(folder.key()).unwrap();
    assert_eq!((key.uid(), key.mode() & 0o777), (0, 0o600));
    let identity = relay.ready["identity"].clone();
    let filters = |process| field(&status(process), "Seccomp_filters");
    let first = filters(relay.number());
    for _ in 0..2 {
        let successor = folder.upgrade(&mut relay);
        assert_bound(successor, user, 0);
        assert_eq!(relay.ready["identity"], identity);
        assert_eq!(filters(successor), first, "each upgrade binds it once more");
    }
}

#[test]
fn only_the_capabilities_that_the_configuration_takes_are_kept() {
    let Some(user) = nobody("capabilities") else { return };
    let (warm, plain) = ("run_as = 'nobody'\n[leg.dial]\nwarm = 4\n", "run_as = 'nobody'\n");
    let folder = Folder::new("capabilities", warm);
    let mut relay = folder.relay();
    assert_bound(relay.number(), user, NET_ADMIN);
    assert_bound(folder.upgrade(&mut relay), user, NET_ADMIN);
    folder.configure(plain);
    let successor = folder.upgrade(&mut relay);
    let sets = ["CapPrm", "CapEff", "CapInh", "CapAmb"];
    assert_eq!(sets.map(|set| capabilities(successor, set)), [0; 4]);
    // What is given up does not come back, and that is told.
    folder.configure(warm);
    let successor = folder.upgrade(&mut relay);
    assert_eq!(sets.map(|set| capabilities(successor, set)), [0; 4]);
    folder.is_told("has not kept CAP_NET_ADMIN, which this configuration takes: restart it");
}

#[test]
fn a_relay_that_learns_first_windows_does_so_as_another_user_too() {
    let Some(user) = nobody("learns") else { return };
    let folder = Folder::new("learns", "");
    let socket = folder.of_user(user).join("jumpstart.sock");
    folder.configure("run_as = 'root'\n[jumpstart]\n");
    let through = folder.relay().ready["jumpstart"]["through"].clone();
    assert!(through.is_string(), "{through}");
    let learns = format!("[jumpstart]\nsocket = '{}'\n", socket.display());
    folder.configure(&format!("run_as = 'nobody'\n{learns}"));
    let mut relay = folder.relay();
    assert_eq!(relay.ready["jumpstart"]["through"], through, "{}", relay.ready);
    assert_bound(relay.number(), user, NET_ADMIN | BPF);
    let successor = folder.upgrade(&mut relay);
    assert_eq!(relay.ready["jumpstart"]["through"], through, "{}", relay.ready);
    assert_bound(successor, user, NET_ADMIN | BPF);
}

#[test]
fn another_key_in_the_place_of_one_that_the_user_may_not_read_takes_a_restart() {
    let Some(_) = nobody("replaced") else { return };
    let folder = Folder::new("replaced", "run_as = 'nobody'\n");
    let relay = folder.relay();
    fs::remove_file(folder.key()).unwrap();
    folder.keygen("identity");
    relay.signal("USR2", relay.number());
    folder.is_told("upgrade failed, nothing has changed: the new process says: ");
    folder.is_told("this process's user may not read it: restart instead");
    assert_eq!(folder.processes(), [relay.number()]);
}

#[test]
fn a_configuration_that_the_user_may_not_read_is_told_at_the_start() {
    let Some(_) = nobody("unreadable") else { return };
    let folder = Folder::new("unreadable", "run_as = 'nobody'\n");
    let relay = folder.relay();
    relay.signal("HUP", relay.number());
    folder.is_told(&format!("{}: taken over", folder.config().display()));
    assert!(!folder.log().contains("may not"), "{}", folder.log());
    drop(relay);
    fs::set_permissions(folder.config(), fs::Permissions::from_mode(0o600)).unwrap();
    // Where root alone may look.
    let (program, inside) = (folder.0.join("tradewind"), folder.0.join("inside"));
    fs::create_dir(&inside).unwrap();
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o700)).unwrap();
    fs::rename(&program, inside.join("tradewind")).unwrap();
    symlink(inside.join("tradewind"), &program).unwrap();
    let relay = folder.relay();
    folder.is_told("relay.toml: user `nobody` may not read it, so that SIGHUP and SIGUSR2 change");
    folder.is_told("user `nobody` may not start it, so that SIGUSR2 changes nothing");
    relay.signal("HUP", relay.number());
    folder.is_told("nothing of it is taken over, what was in force before stays");
    relay.signal("USR2", relay.number());
    folder.is_told("upgrade failed, nothing has changed: ");
    assert_eq!(folder.processes(), [relay.number()]);
}

#[test]
fn an_access_log_is_begun_anew_as_another_user() {
    let Some(user) = nobody("access-log") else { return };
    let folder = Folder::empty("access-log");
    let log = folder.of_user(user).join("access.log");
    let destination = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "run_as = 'nobody'\ndirect = true\nallow_loopback = true\nworkers = 1\n\
         [[forward]]\nlisten = '127.0.0.1:0'\nto = '{}'\n\
         [routes]\ndefault = 'direct'\n[access_log]\nto = '{}'\n",
        destination.local_addr().unwrap(),
        log.display(),
    );
    fs::write(folder.config(), text).unwrap();
    let gateway = folder.start("gateway", &[]);
    let entrance: SocketAddr = gateway.ready["listen"][0].as_str().unwrap().parse().unwrap();
    let has_line = || {
        let stream = TcpStream::connect(entrance).unwrap();
        drop((destination.accept().unwrap(), stream));
        fs::read_to_string(&log).unwrap_or_default().contains("\"outcome\"")
    };
    until("a line", has_line);
    fs::rename(&log, log.with_extension("1")).unwrap();
    until("a line in a new file", has_line);
    assert_eq!(fs::metadata(&log).unwrap().uid(), user);
}

#[test]
fn a_relay_that_stays_roots_says_why_and_is_in_the_sandbox_unless_that_is_wanted() {
    if !is_root() {
        return skipped("root", "needs root");
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let folder = Folder::new("root", "");
    if users.lines().any(|line| line.starts_with("tradewind:")) {
        skipped("root", "there is a user `tradewind`");
    } else {
        let mut relay = folder.relay();
        assert_sandboxed(relay.number());
        folder.is_told("runs as root, since there is no other user for it (`tradewind`: no such");
        assert_sandboxed(folder.upgrade(&mut relay));
    }
    let relay = folder.start("relay", &["--user", "root"]);
    let of = |process: u32| field(&status(process), "Seccomp_filters");
    assert_eq!(of(relay.number()), of(std::process::id()));
    assert!(!folder.log().contains("runs as root"), "{}", folder.log());
}

#[test]
fn a_user_that_is_not_there_is_an_error_in_one_line() {
    if !is_root() {
        return skipped("missing", "needs root");
    }
    let folder = Folder::new("missing", "");
    let mut command = folder.command();
    command.args(["relay", "--user", "tradewind-no-such-user", "--config"]).arg(folder.config());
    let told = command.output().unwrap();
    let line = String::from_utf8(told.stderr).unwrap();
    assert_eq!(line, "tradewind: user `tradewind-no-such-user`: no such user on this host\n");
}

/// Returns how often `wanted` is in the memory that a process may write to.
fn copies(process: u32, wanted: &[u8]) -> usize {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let mut memory = fs::File::open(format!("/proc/{process}/mem")).unwrap();
    let mut count = 0;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let mut bytes = vec![0; usize::try_from(number(end) - number(start)).unwrap()];
        memory.seek(SeekFrom::Start(number(start))).unwrap();
        // What is only reserved, for a stack say, cannot be read.
        if memory.read_exact(&mut bytes).is_ok() {
            count += bytes.windows(wanted.len()).filter(|window| *window == wanted).count();
        }
    }
    count
}

#[test]
fn a_relay_of_64_workers_holds_its_key_once_or_twice() {
    if !is_root() {
        return skipped("copies", "only root looks into another process's memory");
    }
    let folder = Folder::new("copies", "[packet]\nlisten = '127.0.0.1:0'\n");
    let text = fs::read_to_string(folder.config()).unwrap();
    fs::write(folder.config(), text.replace("workers = 1", "workers = 64")).unwrap();
    let relay = folder.relay();
    let text = fs::read_to_string(folder.key()).unwrap();
    let key: IdentityKey = text.trim().parse().unwrap();
    let secret = key.to_secret_bytes();
    until("64 workers", || {
        fs::read_dir(format!("/proc/{}/task", relay.number())).unwrap().count() > 64
    });
    let count = copies(relay.number(), &*secret);
    assert!((1..=2).contains(&count), "{count} copies");
    assert_eq!(copies(relay.number(), text.trim().as_bytes()), 0, "of the file");
}

#[test]
fn a_key_that_others_may_read_is_refused_in_one_line() {
    let folder = Folder::new("key", "");
    let open = |name: &str| {
        let file = folder.0.join(name);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        file
    };
    let refused = |command: &mut Command, file: &Path| {
        let told = command.output().unwrap();
        let line = String::from_utf8(told.stderr).unwrap();
        assert!(!told.status.success() && line.lines().count() == 1, "{line}");
        assert!(line.contains(&file.display().to_string()), "{line}");
        assert!(
            line.ends_with("others may read or change it (mode 644); `chmod 600` it\n"),
            "{line}"
        );
    };
    let file = open("identity.key");
    refused(folder.command().args(["relay", "--config"]).arg(folder.config()), &file);
    let file = open("operator.key");
    let spec = folder.config();
    refused(folder.command().args(["grant", "issue", "--key"]).arg(&file).arg(spec), &file);
}
