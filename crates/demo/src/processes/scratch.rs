//! A directory of a run, and what programs leave in it.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::ProcessError;

/// The prefix of these directories' names; the process id (for people) and a random number follow.
const SCRATCH: &str = "tradewind-demo-";
/// The prefix until the directory is locked.
const UNLOCKED: &str = "tradewind-new-";

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

    /// Returns its own path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file of this name.
    pub fn file(&self, name: &str) -> PathBuf {
        // Names of regions contain colons, which some tools take for a separator.
        self.path.join(name.replace(':', "-"))
    }

    /// Creates an empty file in it, for a program's output.
    pub fn create(&self, name: &str) -> Result<(File, PathBuf), ProcessError> {
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

/// Returns the error of a failed program, with the reason from its log.
#[must_use]
pub fn failed(name: &str, log: &Path) -> ProcessError {
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
}
