//! The error of a configuration: its place, the problem, and what would be right.

use tradewind_units::in_plain_words;

/// A mistake in a configuration, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("configuration, {}: {problem}", self.place())]
pub struct ConfigError {
    /// The key, such as `packet[1].remote.address`; empty for the file as a whole.
    pub key: String,
    /// The line of the file, from 1, if it is known.
    pub line: Option<usize>,
    /// The problem, and what would be right.
    pub problem: String,
}

impl ConfigError {
    /// Returns the error of a key whose line is not known.
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), line: None, problem: problem.into() }
    }

    /// Returns the error of a key that is relative to `section`.
    #[must_use]
    pub fn within(self, section: &str) -> Self {
        Self { key: format!("{section}.{}", self.key), ..self }
    }

    /// Does the same for the section with this key, if there is one.
    #[must_use]
    pub fn of_section(self, section: Option<&String>) -> Self {
        match section {
            Some(section) => self.within(section),
            None => self,
        }
    }

    /// Returns the place and the problem, for files that are no configuration.
    #[must_use]
    pub fn in_its_file(&self) -> String {
        format!("{}: {}", self.place(), self.problem)
    }

    fn place(&self) -> String {
        match (self.key.as_str(), self.line) {
            ("", Some(line)) => format!("line {line}"),
            ("", None) => "the whole".to_owned(),
            (key, Some(line)) => format!("`{key}` (line {line})"),
            (key, None) => format!("`{key}`"),
        }
    }
}

/// Returns a parser's message as one line in plain words.
pub(crate) fn one_line(message: &str) -> String {
    in_plain_words(&message.lines().map(str::trim).collect::<Vec<_>>().join("; "))
}
