//! The output of results and errors.

pub(crate) mod file;
pub(crate) mod progress;
pub(crate) mod table;

use std::fmt::{Debug, Display};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tradewind_experiments::demo::DemoError;
use tradewind_experiments::experiment::ExperimentError;
use tradewind_jumpstart_daemon::DaemonError;
use tradewind_lab::LabError;
use tradewind_net::text_file;
use tradewind_node::NodeError;
use tradewind_probe::ProbeError;
use tradewind_relay::RelayError;
use tradewind_telemetry::TelemetryError;

/// Exit codes other than success; 2 is also clap's for wrong usage.
pub(crate) const FAILED: u8 = 1;
pub(crate) const BAD_USAGE: u8 = 2;
pub(crate) const CHECK_FAILED: u8 = 3;

/// An invalid file or argument, in one line: wrong usage, with exit code [`BAD_USAGE`].
#[derive(Debug)]
pub(crate) struct BadFile(pub(crate) String);

impl std::fmt::Display for BadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadFile {}

/// Results of reading a user's file.
pub(crate) trait OrBadFile<T> {
    /// Adds the file's name to an error and marks it as wrong usage.
    fn or_bad(self, file: &Path) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrBadFile<T> for Result<T, E> {
    fn or_bad(self, file: &Path) -> anyhow::Result<T> {
        self.map_err(|error| error.into().context(BadFile(file.display().to_string())))
    }
}

/// Returns the exit code of an error: invalid files and arguments are wrong usage.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    fn is<E: Display + Debug + Send + Sync + 'static>(
        error: &anyhow::Error,
        is_of_configuration: impl Fn(&E) -> bool,
    ) -> bool {
        error.downcast_ref().is_some_and(is_of_configuration)
    }
    let is_of_configuration = error.is::<BadFile>()
        || is(error, RelayError::is_of_configuration)
        || is(error, TelemetryError::is_of_configuration)
        || is(error, DaemonError::is_of_configuration)
        || is(error, LabError::is_of_configuration)
        || is(error, DemoError::is_of_configuration)
        || is(error, ExperimentError::is_of_configuration)
        || is(error, NodeError::is_of_configuration)
        || is(error, ProbeError::is_of_configuration);
    if is_of_configuration { BAD_USAGE } else { FAILED }
}

/// The result of a command: an exit code, or an error that `main` prints in one line.
pub(crate) type Outcome = anyhow::Result<std::process::ExitCode>;

/// Format of a command's data on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For programs; the field `schema_version` tells its version
    Json,
}

/// Writes a line of data to standard output. A closed pipe (`| head -1`) is no error.
pub(crate) fn line(text: impl Display) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output")
        }
        _ => Ok(()),
    }
}

/// Writes a line of data to standard output, but waits at most `limit` for a reader that has
/// stopped: for a process that others depend on.
pub(crate) fn line_within(limit: Duration, text: impl Display) -> anyhow::Result<()> {
    let (done, is_done) = std::sync::mpsc::channel();
    let text = text.to_string();
    let write = move || {
        let _nobody_waits = done.send(line(text));
    };
    std::thread::Builder::new().name("standard output".to_owned()).spawn(write)?;
    is_done.recv_timeout(limit).unwrap_or_else(|_| {
        tracing::warn!("standard output does not take a line in time");
        Ok(())
    })
}

/// Returns so many periods in words.
pub(crate) fn periods(count: usize) -> String {
    format!("{count} {}", if count == 1 { "period" } else { "periods" })
}

/// Writes a line to standard error and ignores failures. If a log is set up, the line is queued
/// behind it.
pub(crate) fn note(text: impl Display) {
    let line = text.to_string();
    if !tradewind_telemetry::logs::put_line(&line) {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// Prints the reason why a command failed, in the common form of errors.
pub(crate) fn complain(text: impl Display) {
    note(format_args!("tradewind: {text}"));
}

/// Prints `value` as indented JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// Reads a text file that the user names; the error names it.
pub(crate) fn read_text(file: &Path) -> anyhow::Result<String> {
    /// Longest file that is read. Chosen: far above every key, grant, configuration and topology.
    const LONGEST_MIB: u64 = 64;
    text_file::read(file, LONGEST_MIB).or_bad(file)
}

/// Formats an error and its causes in one line. A cause that the previous one already contains is
/// left out, and so is the number after a system error's text.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
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
pub(crate) fn usage_line(error: &clap::Error) -> String {
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
    fn invalid_input_exits_like_wrong_usage() {
        let bad: anyhow::Result<()> =
            Err(anyhow::anyhow!("line 3: no such key")).or_bad("a".as_ref());
        let bad = bad.unwrap_err();
        assert_eq!((one_line(&bad).as_str(), exit_code(&bad)), ("a: line 3: no such key", 2));
        let relay = RelayError::Config { place: "listen".into(), problem: "none".into() };
        assert_eq!(exit_code(&anyhow::Error::new(relay).context("relay.toml")), 2);
        assert_eq!(exit_code(&anyhow::anyhow!("address already in use")), 1);
    }

    #[test]
    fn an_error_is_one_line_without_repetition() {
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
