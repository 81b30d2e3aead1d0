//! Errors in a problem file, with line and field.

use std::ops::Range;

use toml::Spanned;

/// An error in a problem file: one line with the place, the error, and what would be correct.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {problem}", place(table.as_deref(), *line), named(field.as_deref()))]
pub struct FileError {
    /// The table (CSV) that has the error; `None`: the problem file itself.
    pub table: Option<String>,
    /// Line of that file, counted from 1.
    pub line: usize,
    /// The key or column, if the error is in one.
    pub field: Option<String>,
    /// The error, and what would be correct.
    pub problem: String,
}

impl FileError {
    /// Returns the error with notes on what was left out.
    pub(super) fn with_notes(self, notes: &[String]) -> Self {
        let notes = notes.iter().map(|note| format!(" ({note})"));
        Self { problem: self.problem + &notes.collect::<String>(), ..self }
    }
}

fn place(table: Option<&str>, line: usize) -> String {
    table.map_or_else(|| format!("line {line}"), |table| format!("{table}: line {line}"))
}

fn named(field: Option<&str>) -> String {
    field.map(|field| format!(": {field}")).unwrap_or_default()
}

/// The problem file's text, which converts positions in it to errors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a>(pub(super) &'a str);

impl Source<'_> {
    /// Returns an error at a position, with the key there.
    pub(super) fn refuse(self, span: &Range<usize>, problem: impl Into<String>) -> FileError {
        let field = field_at(self.0, span.start);
        FileError { table: None, line: line_of(self.0, span.start), field, problem: problem.into() }
    }

    /// Returns an error at the position of a value.
    pub(super) fn refuse_at<T>(self, value: &Spanned<T>, problem: impl Into<String>) -> FileError {
        self.refuse(&value.span(), problem)
    }
}

/// Returns the line of a byte, counted from 1.
fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or_default();
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// Returns the key whose value, or whose name, is at this byte; a section's name at its header.
fn field_at(text: &str, at: usize) -> Option<String> {
    let (before, after) = (text.get(..at)?, text.get(at..)?);
    let mut lines = before.rsplit('\n');
    let same_line = lines.next().unwrap_or_default();
    if let Some(key) = last_key(same_line) {
        return Some(key);
    }
    let word: String = after.trim_start_matches(['[', ' ']).chars().take_while(is_key).collect();
    let rest = after.trim_start_matches(['[', ' ']).get(word.len()..).unwrap_or_default();
    if !word.is_empty() && rest.trim_start().starts_with(['=', ']']) {
        return Some(word);
    }
    // An element of a list that spans lines: its key is on a line above.
    let above = lines.find(|line| line.contains('=') || line.trim_start().starts_with('['));
    above.filter(|line| !line.trim_start().starts_with('#')).and_then(last_key)
}

/// Returns the last key that is given a value in this line.
fn last_key(line: &str) -> Option<String> {
    let (key, _) = line.rsplit_once('=')?;
    let key = key.trim_end().trim_end_matches('"');
    let start = key.rfind(|c| !is_key(&c)).map_or(0, |end| end + 1);
    let name = key.get(start..)?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn is_key(c: &char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_located_in_text() {
        let text = "a = 1\n[[site]]\nlist = [\n  \"x\",\n  \"y\",\n]\nin = { b = 2, c = 3 }\n";
        let field = |needle: &str| field_at(text, text.find(needle).unwrap());
        assert_eq!(field("1").as_deref(), Some("a"));
        assert_eq!(field("[[site").as_deref(), Some("site"));
        assert_eq!(field("\"y\"").as_deref(), Some("list"));
        assert_eq!(field("3").as_deref(), Some("c"));
        assert_eq!(field("list").as_deref(), Some("list"));
        assert_eq!(field_at(text, 10_000), None);
    }
}
