//! The program run beside a test's files, and what it says of what it refuses.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tradewind");

/// Two flows' round-trip times: from `a` to `b` a relay in London is worth while, from `a` to `c` it is not.
pub(crate) const RTTS: &str = "src,dst,rtt_ms
a,b,200
a,c,10
a,gcp:europe-west2,60
gcp:europe-west2,b,140
gcp:europe-west2,c,60
";

/// Arguments of the program: words of a text, or a list where one of them holds a space.
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

/// A directory of one test's files, gone with it.
pub(crate) struct Files(pub(crate) PathBuf);

impl Files {
    /// `test` tells tests of one file apart.
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

    /// What a command that succeeds prints.
    pub(crate) fn prints(&self, arguments: &(impl Arguments + ?Sized)) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{:?}: {}", arguments.list(), text(&output.stderr));
        text(&output.stdout)
    }

    /// What a command that succeeds prints, as JSON.
    pub(crate) fn json(&self, arguments: &(impl Arguments + ?Sized)) -> Value {
        serde_json::from_str(&self.prints(arguments)).unwrap()
    }

    /// Refused in one line that holds `expected`; returns the line.
    pub(crate) fn refuses(&self, arguments: &(impl Arguments + ?Sized), expected: &str) -> String {
        refused(arguments, &self.0, expected)
    }

    /// Refused in one line that begins so, with this status.
    pub(crate) fn refuses_with(
        &self,
        arguments: &(impl Arguments + ?Sized),
        status: i32,
        expected: &str,
    ) {
        let output = self.run(arguments);
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

/// The program in this directory, without a terminal and without a log.
pub(crate) fn command(arguments: &(impl Arguments + ?Sized), directory: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments.list()).current_dir(directory).stdin(Stdio::null());
    command.env("TRADEWIND_RUNTIME_DIR", directory.join("place")).env("TRADEWIND_LOG", "off");
    command
}

/// Refused in one line that holds `expected`; returns the line.
pub(crate) fn refused(
    arguments: &(impl Arguments + ?Sized),
    directory: &Path,
    expected: &str,
) -> String {
    let line = refusal(&command(arguments, directory).output().unwrap());
    assert!(line.contains(expected), "{:?}: expected `{expected}` in {line}", arguments.list());
    line
}

/// The one line in which a command was refused.
fn refusal(output: &Output) -> String {
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
