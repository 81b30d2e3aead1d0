//! Output of commands: data to standard output, messages to standard error, files whole or not at
//! all. Shared by the binaries.
//!
//! | module | holds |
//! |---|---|
//! | [`table`] | tables for terminals |
//! | [`mod@csv`] | tables for programs |
//! | [`progress`] | steps of a long run, as bars on a terminal |
//! | [`mod@file`] | files that are written whole, and their formats |
//! | [`chart`] | line charts as SVG |
//! | [`html`] | self-contained pages |

pub mod chart;
pub mod csv;
pub mod file;
pub mod html;
pub mod progress;
pub mod table;

use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use clap::error::ErrorKind;
use tradewind_net::text_file;

/// Exit code of a command that failed.
pub const FAILED: u8 = 1;
/// Exit code of wrong usage, also clap's, and of an invalid file.
pub const BAD_USAGE: u8 = 2;
/// Exit code of a check that failed, or of an invalid run on the lab.
pub const CHECK_FAILED: u8 = 3;

/// An invalid file or argument, in one line: wrong usage, with exit code [`BAD_USAGE`].
#[derive(Debug)]
pub struct BadFile(
    /// The file or argument, and what is wrong with it.
    pub String,
);

impl std::fmt::Display for BadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadFile {}

/// Results of reading a user's file.
pub trait OrBadFile<T> {
    /// Adds the file's name to an error and marks it as wrong usage.
    ///
    /// # Errors
    /// The same, marked.
    fn or_bad(self, file: &Path) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrBadFile<T> for Result<T, E> {
    fn or_bad(self, file: &Path) -> anyhow::Result<T> {
        self.map_err(|error| error.into().context(BadFile(file.display().to_string())))
    }
}

/// The result of a command: an exit code, or an error that `main` prints in one line.
pub type Outcome = anyhow::Result<std::process::ExitCode>;

/// Format of a command's data on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs; the field `schema_version` tells its version
    Json,
}

/// Format of an answer that is a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TableFormat {
    /// For people
    Table,
    /// For programs; the field `schema_version` tells its version
    Json,
    /// For programs: the table alone, its columns named as in the JSON
    Csv,
}

/// Writes a line of data to standard output. A closed pipe (`| head -1`) is no error.
///
/// # Errors
/// When standard output cannot be written.
pub fn line(text: impl Display) -> anyhow::Result<()> {
    put(text).map(drop)
}

/// Does the same as [`line()`], and returns false if the pipe is closed: nobody reads any more.
///
/// # Errors
/// As [`line()`].
pub fn put(text: impl Display) -> anyhow::Result<bool> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("standard output"),
    }
}

/// Writes a line to standard error and ignores failures. If a log is set up, the line is queued
/// behind it.
pub fn note(text: impl Display) {
    let line = text.to_string();
    if !tradewind_telemetry::logs::put_line(&line) {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// Prints the reason why a command of `program` failed, in the common form of errors.
pub fn complain_as(program: &str, text: impl Display) {
    note(format_args!("{program}: {text}"));
}

/// Prints the answer of the argument parser: help and version as they are. Returns the line of an
/// error in place of printing it.
///
/// # Errors
/// When standard output cannot be written.
pub fn help(answer: &clap::Error) -> anyhow::Result<Option<String>> {
    let is_help = matches!(
        answer.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if !is_help {
        return Ok(Some(usage_line(answer)));
    }
    match answer.print() {
        // A reader that has closed the pipe has all it wants.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("print the help")
        }
        _ => Ok(None),
    }
}

/// Prints `value` as indented JSON.
///
/// # Errors
/// When standard output cannot be written.
pub fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// Reads a text file that the user names.
///
/// # Errors
/// When it cannot be read, or is no text; the error names it.
pub fn read_text(file: &Path) -> anyhow::Result<String> {
    /// Longest file that is read. Chosen: far above every key, grant, configuration and topology.
    const MAX_MIB: u64 = 64;
    text_file::read(file, MAX_MIB).or_bad(file)
}

/// Formats an error and its causes in one line. A cause that the previous one already contains is
/// left out, and so is the number after a system error's text.
#[must_use]
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = without_number(&text);
        if !line.to_lowercase().contains(&text.to_lowercase()) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&text);
        }
    }
    line
}

fn without_number(text: &str) -> String {
    let parts = text.split_once(" (os error ").and_then(|(words, rest)| {
        let (number, rest) = rest.split_once(')')?;
        number.parse::<i32>().is_ok().then_some((words, rest))
    });
    parts.map_or_else(|| text.to_owned(), |(words, rest)| format!("{words}{rest}"))
}

/// Formats a command-line error in one line: clap's message, without its usage.
fn usage_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).collect();
    let words = first.join(" ");
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{} (see `--help`)", words.trim_start_matches("error: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_one_line_without_repetition() {
        let error = anyhow::anyhow!("no such\n   file").context("open a.toml: no such file");
        assert_eq!(one_line(&error), "open a.toml: no such file");
        let error = anyhow::anyhow!("refused").context("dial 10.0.0.1:80");
        assert_eq!(one_line(&error), "dial 10.0.0.1:80: refused");
        let system = std::io::Error::from_raw_os_error(98);
        let error =
            anyhow::Error::new(system).context("listen on [::1]:80: address already in use");
        assert_eq!(one_line(&error), "listen on [::1]:80: address already in use");
        let system = std::io::Error::from_raw_os_error(2);
        let error = anyhow::anyhow!("a.sock: nobody answers ({system})");
        assert_eq!(one_line(&error), "a.sock: nobody answers (No such file or directory)");
    }
}
