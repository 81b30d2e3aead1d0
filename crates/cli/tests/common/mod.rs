//! Runs of the program in a test's folder, and checks of its refusals.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod controller;
pub(crate) mod daemon;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tradewind");

/// Longest time that a refusal may take. Far beyond what it takes; only a failed test waits so
/// long.
const REFUSAL_LIMIT: Duration = Duration::from_secs(60);

/// Round-trip times of two flows: a relay in London pays for `a` to `b`, and not for `a` to `c`.
pub(crate) const RTTS: &str = "src,dst,rtt_ms
a,b,200
a,c,10
a,gcp:europe-west2,60
gcp:europe-west2,b,140
gcp:europe-west2,c,60
";

/// Arguments of the program: the words of a text, or a list if one of them holds a space.
pub(crate) trait Arguments {
    fn list(&self) -> Vec<String>;
}

impl Arguments for str {
    fn list(&self) -> Vec<String> {
        self.split(' ').map(str::to_owned).collect()
    }
}

impl Arguments for String {
    fn list(&self) -> Vec<String> {
        self.as_str().list()
    }
}

impl Arguments for [&str] {
    fn list(&self) -> Vec<String> {
        self.iter().map(|argument| (*argument).to_owned()).collect()
    }
}

impl<const N: usize> Arguments for [&str; N] {
    fn list(&self) -> Vec<String> {
        self.as_slice().list()
    }
}

impl Arguments for Vec<&str> {
    fn list(&self) -> Vec<String> {
        self.as_slice().list()
    }
}

/// A folder of one test's files, removed with it.
pub(crate) struct Files(pub(crate) PathBuf);

impl Files {
    /// Creates the folder; `test` distinguishes tests of one file.
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tradewind-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }

    pub(crate) fn run(&self, arguments: &(impl Arguments + ?Sized)) -> Output {
        command(arguments, &self.0).output().unwrap()
    }

    /// Runs a command that must succeed; returns its output.
    pub(crate) fn prints(&self, arguments: &(impl Arguments + ?Sized)) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{:?}: {}", arguments.list(), text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command that must succeed; returns its output as JSON.
    pub(crate) fn json(&self, arguments: &(impl Arguments + ?Sized)) -> Value {
        serde_json::from_str(&self.prints(arguments)).unwrap()
    }

    /// Checks that a command is refused in one line that holds `expected`; returns the line.
    pub(crate) fn refuses(&self, arguments: &(impl Arguments + ?Sized), expected: &str) -> String {
        refused(arguments, &self.0, expected)
    }

    /// Checks that a command is refused in one line with this beginning and this exit code.
    pub(crate) fn refuses_with(
        &self,
        arguments: &(impl Arguments + ?Sized),
        status: i32,
        expected: &str,
    ) {
        let output = ended(&mut command(arguments, &self.0));
        let line = refusal(&output);
        assert_eq!(output.status.code(), Some(status), "{line}");
        assert!(line.starts_with(&format!("tradewind: {expected}")), "{line}");
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the program's command in this folder, without a terminal and without a log.
pub(crate) fn command(arguments: &(impl Arguments + ?Sized), directory: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments.list()).current_dir(directory).stdin(Stdio::null());
    command.env("TRADEWIND_RUNTIME_DIR", directory.join("place")).env("TRADEWIND_LOG", "off");
    command
}

/// Checks that a command is refused in one line that holds `expected`; returns the line.
pub(crate) fn refused(
    arguments: &(impl Arguments + ?Sized),
    directory: &Path,
    expected: &str,
) -> String {
    let line = refusal(&ended(&mut command(arguments, directory)));
    assert!(line.contains(expected), "{:?}: expected `{expected}` in {line}", arguments.list());
    line
}

/// Runs a command that ends by itself, as one that is refused. One that serves instead is killed,
/// and fails the test.
pub(crate) fn ended(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdout = read_all(child.stdout.take().unwrap());
    let stderr = read_all(child.stderr.take().unwrap());
    let begun = Instant::now();
    let status: ExitStatus = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if begun.elapsed() < REFUSAL_LIMIT => thread::sleep(Duration::from_millis(5)),
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("not refused, but running after {REFUSAL_LIMIT:?}: {command:?}");
            }
        }
    };
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Reads all that a process writes to `pipe`.
fn read_all(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// Returns the one line in which a command was refused.
pub(crate) fn refusal(output: &Output) -> String {
    let line = text(&output.stderr);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{:?} {line}", output.status);
    assert!(!line.contains("panicked"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("tradewind: "), "{line}");
    line
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
