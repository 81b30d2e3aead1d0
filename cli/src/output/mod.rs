//! How results and errors reach the user.

pub(crate) mod progress;
pub(crate) mod table;

use anyhow::Context as _;

/// Exit codes beside success; 2, wrong usage, is clap's.
pub(crate) const FAILED: u8 = 1;
pub(crate) const CHECK_FAILED: u8 = 3;

/// What a command ends with: an exit code, or an error that `main` prints in one line.
pub(crate) type Outcome = anyhow::Result<std::process::ExitCode>;

/// Form of a command's data on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For programs; the field `schema_version` tells its form
    Json,
}

/// Prints `value` as indented JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Reads a text file; the error names it.
pub(crate) fn read_text(file: &std::path::Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| file.display().to_string())
}

/// An error and its causes in one line; a cause that its effect already tells is left out.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if !line.contains(&text) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&text);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_without_repetition() {
        let error = anyhow::anyhow!("no such\n   file").context("open a.toml: no such file");
        assert_eq!(one_line(&error), "open a.toml: no such file");
        let error = anyhow::anyhow!("refused").context("dial 10.0.0.1:80");
        assert_eq!(one_line(&error), "dial 10.0.0.1:80: refused");
    }
}
