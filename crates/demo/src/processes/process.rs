//! Programs on the lab's hosts: services that run until they are dropped, and commands that answer
//! once.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{ProcessError, Stop};

/// The interval of checks on a program that is expected to end.
const LOOK: Duration = Duration::from_millis(10);
/// The time within which a foreign program must listen.
const LISTEN_WITHIN: Duration = Duration::from_secs(10);

/// The prefix of these directories' names; the process id (for people) and a random number follow.
const SCRATCH: &str = "tradewind-demo-";
/// The prefix until the directory is locked.
const UNLOCKED: &str = "tradewind-new-";

/// Returns whether a foreign program is installed.
pub fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("-version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

/// A directory for keys, configurations and logs, removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// The directory itself, locked while its owner lives: process ids do not identify owners in
    /// other PID namespaces.
    _lock: File,
}

impl Scratch {
    /// Creates a directory that only this user can read, and removes those of killed processes.
    pub fn new() -> Result<Self, ProcessError> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        // The random name cannot be in use in advance.
        let random = u64::from_le_bytes(tradewind_net::entropy::bytes()?);
        let path = parent.join(format!("{SCRATCH}{}-{random:016x}", std::process::id()));
        let lock = create_locked(&parent.join(format!("{UNLOCKED}{random:016x}")), &path);
        let lock = lock.map_err(|source| ProcessError::File { path: path.clone(), source })?;
        Ok(Self { path, _lock: lock })
    }

    /// Writes a file in it and returns its path.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, ProcessError> {
        let path = self.file(name);
        // Some files are keys, which nobody else may read.
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| ProcessError::File { path: path.clone(), source })?;
        Ok(path)
    }

    /// Returns the path of a file of this name.
    pub fn file(&self, name: &str) -> PathBuf {
        // Names of regions contain colons, which some tools take for a separator.
        self.path.join(name.replace(':', "-"))
    }

    fn create(&self, name: &str) -> Result<(File, PathBuf), ProcessError> {
        let path = self.file(name);
        let created = File::create(&path);
        let file = created.map_err(|source| ProcessError::File { path: path.clone(), source })?;
        Ok((file, path))
    }
}

/// Creates a directory under a name that no sweep matches, and renames it once it is locked.
fn create_locked(unlocked: &Path, path: &Path) -> std::io::Result<File> {
    let mut builder = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(unlocked)?;
    let locked = File::open(unlocked).and_then(|directory| {
        directory.lock()?;
        fs::rename(unlocked, path)?;
        Ok(directory)
    });
    locked.inspect_err(|_| {
        let _ = fs::remove_dir(unlocked);
    })
}

/// Removes directories without an owner: the kernel releases a lock with its process. Directories
/// of other users stay.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| name.starts_with(SCRATCH));
        let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !ours || !directory {
            continue;
        }
        let held = File::open(entry.path()).map(|directory| (directory.try_lock(), directory));
        // The lock is held while removing, so that two sweeps do not collide.
        if let Ok((Ok(()), _directory)) = held {
            // A directory that cannot be removed belongs to another user.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory left behind is only temporary, and there is no one to report it to.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A running service; ended when dropped.
#[derive(Debug)]
pub struct Service {
    child: Child,
}

/// The line by which a service reports that it is ready.
#[derive(Debug, Deserialize)]
pub struct Ready {
    /// Its addresses, if it listens.
    #[serde(default)]
    pub listen: Vec<SocketAddr>,
}

impl Service {
    /// Returns its process id.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Starts a service and waits until it reports that it is ready.
    pub fn start(
        mut command: Command,
        name: &str,
        scratch: &Scratch,
    ) -> Result<(Self, Ready), ProcessError> {
        let (log, log_path) = scratch.create(&format!("{name}.log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = spawn(&mut command, name)?;
        let stdout = child.stdout.take().expect("standard output was asked to be a pipe");
        let service = Self { child };
        let mut line = String::new();
        // A program that ends without a line has failed; its log has the reason.
        let _ = BufReader::new(stdout).read_line(&mut line);
        match serde_json::from_str(&line) {
            Ok(ready) => Ok((service, ready)),
            Err(_) => Err(failed(name, &log_path)),
        }
    }

    /// Starts a foreign program, which does not report readiness, and waits until `listens` returns
    /// `true`.
    pub fn start_listening(
        mut command: Command,
        name: &str,
        scratch: &Scratch,
        listens: impl Fn() -> Result<bool, ProcessError>,
    ) -> Result<Self, ProcessError> {
        let (log, log_path) = scratch.create(&format!("{name}.log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut service = Self { child: spawn(&mut command, name)? };
        let begun = Instant::now();
        while !listens()? {
            let has_ended = service.child.try_wait().is_ok_and(|status| status.is_some());
            if has_ended {
                return Err(failed(name, &log_path));
            }
            if begun.elapsed() > LISTEN_WITHIN {
                let why = format!("it does not listen after {} s", LISTEN_WITHIN.as_secs());
                return Err(ProcessError::Program { name: name.to_owned(), why });
            }
            std::thread::sleep(LOOK);
        }
        Ok(service)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that does something and ends; killed when dropped.
#[derive(Debug)]
pub struct Task {
    name: String,
    service: Service,
    log: PathBuf,
}

impl Task {
    /// Starts the program and discards its output.
    pub fn start(command: Command, name: &str, scratch: &Scratch) -> Result<Self, ProcessError> {
        Self::start_into(command, Stdio::null(), name, scratch)
    }

    /// Starts the program with its standard output redirected to `output`.
    fn start_into(
        mut command: Command,
        output: impl Into<Stdio>,
        name: &str,
        scratch: &Scratch,
    ) -> Result<Self, ProcessError> {
        let (log_file, log) = scratch.create(&format!("{name}.log"))?;
        command.stdin(Stdio::null()).stdout(output).stderr(log_file);
        let child = spawn(&mut command, name)?;
        Ok(Self { name: name.to_owned(), service: Service { child }, log })
    }

    /// Starts a program and waits until `listens` returns `true`.
    pub fn start_listening(
        command: Command,
        name: &str,
        scratch: &Scratch,
        listens: impl Fn() -> Result<bool, ProcessError>,
    ) -> Result<Self, ProcessError> {
        let service = Service::start_listening(command, name, scratch, listens)?;
        Ok(Self { name: name.to_owned(), service, log: scratch.file(&format!("{name}.log")) })
    }

    /// Checks that the program is still running.
    ///
    /// # Errors
    /// When it has ended; with the last line of its log.
    pub fn check(&mut self) -> Result<(), ProcessError> {
        match self.service.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(failed(&self.name, &self.log)),
            Err(source) => Err(ProcessError::Start { name: self.name.clone(), source }),
        }
    }

    /// Waits until it ends, for `within` at most.
    pub fn end(mut self, within: Duration, stop: &Stop) -> Result<(), ProcessError> {
        self.wait(Some(within), stop)
    }

    fn wait(&mut self, within: Option<Duration>, stop: &Stop) -> Result<(), ProcessError> {
        let begun = Instant::now();
        loop {
            stop.check()?;
            match self.service.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) => return Err(failed(&self.name, &self.log)),
                Ok(None) if within.is_some_and(|within| begun.elapsed() > within) => {
                    let why = format!("it has not ended within {} s", begun.elapsed().as_secs());
                    return Err(ProcessError::Program { name: self.name.clone(), why });
                }
                Ok(None) => std::thread::sleep(LOOK),
                Err(source) => return Err(ProcessError::Start { name: self.name.clone(), source }),
            }
        }
    }
}

/// A program that answers once, in JSON on its standard output.
#[derive(Debug)]
pub struct Question {
    task: Task,
    answer: PathBuf,
}

impl Question {
    /// Starts the program.
    pub fn ask(command: Command, name: &str, scratch: &Scratch) -> Result<Self, ProcessError> {
        let (answer_file, answer) = scratch.create(&format!("{name}.json"))?;
        Ok(Self { task: Task::start_into(command, answer_file, name, scratch)?, answer })
    }

    /// Waits until it ends and parses its output.
    pub fn answer<T: DeserializeOwned>(mut self, stop: &Stop) -> Result<T, ProcessError> {
        self.task.wait(None, stop)?;
        let read = fs::read_to_string(&self.answer);
        let text =
            read.map_err(|source| ProcessError::File { path: self.answer.clone(), source })?;
        serde_json::from_str(&text)
            .map_err(|source| ProcessError::Answer { name: self.task.name.clone(), source })
    }
}

fn spawn(command: &mut Command, name: &str) -> Result<Child, ProcessError> {
    command.spawn().map_err(|source| ProcessError::Start { name: name.to_owned(), source })
}

/// Returns the error of a failed program, with the reason from its log.
pub(crate) fn failed(name: &str, log: &Path) -> ProcessError {
    let text = fs::read_to_string(log).unwrap_or_default();
    let why = last_word(&text).unwrap_or("it ended without a word");
    ProcessError::Program {
        name: name.to_owned(),
        why: why.trim_start_matches("tradewind: ").to_owned(),
    }
}

/// Returns the last line that is not part of a stack trace: programs in Go print theirs after the
/// reason, each function followed by an indented line with its position.
fn last_word(log: &str) -> Option<&str> {
    let mut is_before_place = false;
    log.lines().rev().filter(|line| !line.trim().is_empty()).find(|line| {
        let is_place = line.starts_with('\t');
        let is_of_stack = is_place || is_before_place;
        is_before_place = is_place;
        !is_of_stack
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_word_skips_the_stack_trace() {
        let log = "main.go:401: key derivation done\n\
                   main.go:220: listen udp 10.0.0.1:29900: bind: address already in use\n\
                   main.main.func1\n\tserver/main.go:445\nruntime.goexit\n\truntime/asm.s:1594\n\n";
        let word = "main.go:220: listen udp 10.0.0.1:29900: bind: address already in use";
        assert_eq!(last_word(log), Some(word));
        assert_eq!(last_word("a\nb\n"), Some("b"));
        assert_eq!(last_word("\n"), None);
    }

    #[test]
    fn sweep_removes_directories_of_dead_processes_only() {
        let parent = std::env::temp_dir().join(format!("tradewind-sweep-{}", std::process::id()));
        fs::create_dir_all(&parent).unwrap();
        // The process is not visible, as in another PID namespace: this number is above the
        // kernel's largest.
        let alive = parent.join(format!("{SCRATCH}4194305-0000000000000000"));
        let lock = create_locked(&parent.join("unlocked"), &alive).unwrap();
        let gone = parent.join(format!("{SCRATCH}{}-0000000000000000", std::process::id()));
        let other = parent.join("another-4194305");
        for directory in [&gone, &other] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(gone.join("relay.key"), "secret").unwrap();
        sweep(&parent);
        assert!(!gone.exists());
        assert!(alive.exists() && other.exists());
        drop(lock);
        // A program that another test is starting holds a copy of the lock until its `exec`.
        for _ in 0..10_000 {
            sweep(&parent);
            if !alive.exists() {
                break;
            }
            std::thread::yield_now();
        }
        assert!(!alive.exists() && other.exists());
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn failed_program_is_quoted_and_scratch_is_removed() {
        let scratch = Scratch::new().unwrap();
        let directory = scratch.path.clone();
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'port 7 is in use' >&2; exit 1"]);
        let question = Question::ask(command, "probe a:b", &scratch).unwrap();
        let error = question.answer::<u32>(&Stop::default()).unwrap_err();
        assert_eq!(error.to_string(), "probe a:b: port 7 is in use");

        let mut command = Command::new("sh");
        command.args(["-c", "echo 42"]);
        let question = Question::ask(command, "answer", &scratch).unwrap();
        assert_eq!(question.answer::<u32>(&Stop::default()).unwrap(), 42);

        let mut command = Command::new("sh");
        command.args(["-c", "echo '{\"listen\": [\"127.0.0.1:7\"]}'; exec sleep 60"]);
        let (service, ready) = Service::start(command, "service", &scratch).unwrap();
        assert_eq!(ready.listen.len(), 1);
        drop((service, scratch));
        assert!(!directory.exists());
    }
}
