//! Programs on the lab's hosts: those that serve until they are dropped, and those that answer once.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::demo::{DemoError, Stop};

/// How often a program that answers is looked after.
const LOOK: Duration = Duration::from_millis(10);
/// How long a program of others may take until it listens.
const LISTEN_WITHIN: Duration = Duration::from_secs(10);

/// What the names of these directories begin with; the process, for people, and a random number follow.
const SCRATCH: &str = "tradewind-demo-";
/// The same until the directory is locked.
const UNLOCKED: &str = "tradewind-new-";

/// Whether a program of others is there.
pub(crate) fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("-version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok()
}

/// A directory for keys, configurations and logs, gone when dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    /// The directory itself, locked for as long as its owner lives: process numbers say nothing
    /// about owners in other PID namespaces.
    _lock: File,
}

impl Scratch {
    /// Makes one that only this user can read, and takes away those of processes that were killed.
    pub(crate) fn new() -> Result<Self, DemoError> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        // Nobody can know the name beforehand and be in its way.
        let random = u64::from_le_bytes(tradewind_net::entropy::bytes()?);
        let path = parent.join(format!("{SCRATCH}{}-{random:016x}", std::process::id()));
        let lock = create_locked(&parent.join(format!("{UNLOCKED}{random:016x}")), &path);
        let lock = lock.map_err(|source| DemoError::File { path: path.clone(), source })?;
        Ok(Self { path, _lock: lock })
    }

    /// Writes a file in it and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, DemoError> {
        let path = self.file(name);
        // Keys are among them, which nobody else may read.
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| DemoError::File { path: path.clone(), source })?;
        Ok(path)
    }

    /// Where a file of this name is, or would be.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        // Names of regions hold colons, which some tools take for a separator.
        self.path.join(name.replace(':', "-"))
    }

    fn create(&self, name: &str) -> Result<(File, PathBuf), DemoError> {
        let path = self.file(name);
        let created = File::create(&path);
        let file = created.map_err(|source| DemoError::File { path: path.clone(), source })?;
        Ok((file, path))
    }
}

/// Makes a directory under a name that no sweep looks for, and gives it its own once it is locked.
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

/// Removes the directories that nobody holds: the kernel lets go of a lock with its process. Those of
/// other users stay: they are theirs.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| name.starts_with(SCRATCH));
        let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !ours || !directory {
            continue;
        }
        let held = File::open(entry.path()).map(|directory| (directory.try_lock(), directory));
        // The lock is kept while removing, so that two sweeps do not meet.
        if let Ok((Ok(()), _directory)) = held {
            // What cannot be removed is not ours.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left behind is a temporary directory; there is nobody to tell.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A program that serves; ended when dropped.
#[derive(Debug)]
pub(crate) struct Service {
    child: Child,
}

/// The line by which a service says that it is ready.
#[derive(Debug, Deserialize)]
pub(crate) struct Ready {
    /// Where it listens, if it does.
    #[serde(default)]
    pub(crate) listen: Vec<SocketAddr>,
}

impl Service {
    /// Its process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Starts a service and waits until it says that it is ready.
    pub(crate) fn start(
        mut command: Command,
        name: &str,
        scratch: &Scratch,
    ) -> Result<(Self, Ready), DemoError> {
        let (log, log_path) = scratch.create(&format!("{name}.log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = spawn(&mut command, name)?;
        let stdout = child.stdout.take().expect("standard output was asked to be a pipe");
        let service = Self { child };
        let mut line = String::new();
        // An end without a word is a program that failed; its log says why.
        let _ = BufReader::new(stdout).read_line(&mut line);
        match serde_json::from_str(&line) {
            Ok(ready) => Ok((service, ready)),
            Err(_) => Err(failed(name, &log_path)),
        }
    }

    /// Starts a program of others, which says nothing when it is ready: `listens` tells.
    pub(crate) fn start_listening(
        mut command: Command,
        name: &str,
        scratch: &Scratch,
        listens: impl Fn() -> Result<bool, DemoError>,
    ) -> Result<Self, DemoError> {
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
                return Err(DemoError::Program { name: name.to_owned(), why });
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

/// A program that does something and ends; ended when dropped.
#[derive(Debug)]
pub(crate) struct Task {
    name: String,
    service: Service,
    log: PathBuf,
}

impl Task {
    /// Starts the program, whose output is of no use.
    pub(crate) fn start(
        command: Command,
        name: &str,
        scratch: &Scratch,
    ) -> Result<Self, DemoError> {
        Self::start_into(command, Stdio::null(), name, scratch)
    }

    /// Starts the program with its output going there.
    fn start_into(
        mut command: Command,
        output: impl Into<Stdio>,
        name: &str,
        scratch: &Scratch,
    ) -> Result<Self, DemoError> {
        let (log_file, log) = scratch.create(&format!("{name}.log"))?;
        command.stdin(Stdio::null()).stdout(output).stderr(log_file);
        let child = spawn(&mut command, name)?;
        Ok(Self { name: name.to_owned(), service: Service { child }, log })
    }

    /// Starts a program that listens first; `listens` tells whether it does.
    pub(crate) fn start_listening(
        command: Command,
        name: &str,
        scratch: &Scratch,
        listens: impl Fn() -> Result<bool, DemoError>,
    ) -> Result<Self, DemoError> {
        let service = Service::start_listening(command, name, scratch, listens)?;
        Ok(Self { name: name.to_owned(), service, log: scratch.file(&format!("{name}.log")) })
    }

    /// That it has not ended by itself.
    ///
    /// # Errors
    /// When it has; with its last word.
    pub(crate) fn check(&mut self) -> Result<(), DemoError> {
        match self.service.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(failed(&self.name, &self.log)),
            Err(source) => Err(DemoError::Start { name: self.name.clone(), source }),
        }
    }

    /// Waits for its end, `within` at most.
    pub(crate) fn end(mut self, within: Duration, stop: &Stop) -> Result<(), DemoError> {
        self.wait(Some(within), stop)
    }

    fn wait(&mut self, within: Option<Duration>, stop: &Stop) -> Result<(), DemoError> {
        let begun = Instant::now();
        loop {
            stop.check()?;
            match self.service.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) => return Err(failed(&self.name, &self.log)),
                Ok(None) if within.is_some_and(|within| begun.elapsed() > within) => {
                    let why = format!("it has not ended within {} s", begun.elapsed().as_secs());
                    return Err(DemoError::Program { name: self.name.clone(), why });
                }
                Ok(None) => std::thread::sleep(LOOK),
                Err(source) => return Err(DemoError::Start { name: self.name.clone(), source }),
            }
        }
    }
}

/// A program that answers once, in JSON on its standard output.
#[derive(Debug)]
pub(crate) struct Question {
    task: Task,
    answer: PathBuf,
}

impl Question {
    /// Starts the program.
    pub(crate) fn ask(command: Command, name: &str, scratch: &Scratch) -> Result<Self, DemoError> {
        let (answer_file, answer) = scratch.create(&format!("{name}.json"))?;
        Ok(Self { task: Task::start_into(command, answer_file, name, scratch)?, answer })
    }

    /// Waits for its end and reads the answer.
    pub(crate) fn answer<T: DeserializeOwned>(mut self, stop: &Stop) -> Result<T, DemoError> {
        self.task.wait(None, stop)?;
        let read = fs::read_to_string(&self.answer);
        let text = read.map_err(|source| DemoError::File { path: self.answer.clone(), source })?;
        serde_json::from_str(&text)
            .map_err(|source| DemoError::Answer { name: self.task.name.clone(), source })
    }
}

fn spawn(command: &mut Command, name: &str) -> Result<Child, DemoError> {
    command.spawn().map_err(|source| DemoError::Start { name: name.to_owned(), source })
}

/// The error of a program that ended badly: the last line of its log says why.
fn failed(name: &str, log: &Path) -> DemoError {
    let text = fs::read_to_string(log).unwrap_or_default();
    let why = last_word(&text).unwrap_or("it ended without a word");
    DemoError::Program {
        name: name.to_owned(),
        why: why.trim_start_matches("tradewind: ").to_owned(),
    }
}

/// The last line that is none of a stack's: programs in Go print theirs behind the reason, each function with an indented line of its place.
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
    fn the_last_word_is_the_reason_and_not_where_it_was_found() {
        let log = "main.go:401: key derivation done\n\
                   main.go:220: listen udp 10.0.0.1:29900: bind: address already in use\n\
                   main.main.func1\n\tserver/main.go:445\nruntime.goexit\n\truntime/asm.s:1594\n\n";
        let word = "main.go:220: listen udp 10.0.0.1:29900: bind: address already in use";
        assert_eq!(last_word(log), Some(word));
        assert_eq!(last_word("a\nb\n"), Some("b"));
        assert_eq!(last_word("\n"), None);
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_the_rest_is_not() {
        let parent = std::env::temp_dir().join(format!("tradewind-sweep-{}", std::process::id()));
        fs::create_dir_all(&parent).unwrap();
        // Its process is not to be seen, as from another PID namespace: this number is above the
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
        // A program that another test is starting has a copy of the lock until it runs.
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
    fn a_program_that_fails_is_quoted_and_the_directory_goes_with_its_owner() {
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
