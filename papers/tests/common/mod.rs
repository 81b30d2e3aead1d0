//! Runs of the program in a test's folder, and checks of its refusals.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program. Cargo builds the binary `tradewind` beside it for all tests of the workspace.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tradewind-papers");

/// A folder of one test's files, removed with it.
pub(crate) struct Files(pub(crate) PathBuf);

impl Files {
    /// Creates the folder; `test` distinguishes tests of one file.
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tradewind-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.0.join(name), content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }

    /// Runs the program with these words as arguments.
    pub(crate) fn run(&self, arguments: &str) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(arguments.split(' ')).current_dir(&self.0).stdin(Stdio::null());
        command.output().unwrap()
    }

    /// Runs a command that must succeed; returns its output.
    pub(crate) fn prints(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Checks that a command is refused as wrong usage, in one line that holds `expected`.
    pub(crate) fn refuses(&self, arguments: &str, expected: &str) {
        let output = self.run(arguments);
        let line = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.starts_with("tradewind-papers: ") && line.contains(expected), "{line}");
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns whether the binary `tradewind` is built beside the program; reports otherwise, past the
/// capture of the test's output, that `test` is skipped.
pub(crate) fn is_tradewind_built(test: &str) -> bool {
    let is_built = Path::new(PROGRAM).with_file_name("tradewind").is_file();
    if !is_built {
        let line = format!("SKIPPED {test}: `tradewind` is not built\n");
        let _written = std::io::stderr().write_all(line.as_bytes());
    }
    is_built
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
