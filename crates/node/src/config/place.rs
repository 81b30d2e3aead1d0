//! The place of an error in a configuration's text: section and line.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::NodeError;

/// A section of a relay's or gateway's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Its name, without brackets.
    pub name: &'static str,
    /// The number among several `[[...]]`, from 1; `None` for `[...]`.
    pub number: Option<usize>,
    /// Set if there is only one `[[...]]`, which needs no number.
    pub is_only: bool,
}

impl Section {
    /// Returns the section of this name.
    pub(crate) const fn of(name: &'static str) -> Self {
        Self { name, number: None, is_only: true }
    }
}

impl std::fmt::Display for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self { name, number: None, .. } => write!(f, "[{name}]"),
            Self { name, is_only: true, .. } => write!(f, "[[{name}]]"),
            Self { name, number: Some(number), .. } => write!(f, "the {number}. [[{name}]]"),
        }
    }
}

/// The sections of the file that a configuration was read from; none for a program's.
#[derive(Debug, Clone, Default)]
pub struct Sections {
    /// The section of the settings that are not of one path alone.
    pub(super) own: Option<&'static str>,
    /// Those of its paths, groups and deposits, in their order.
    pub(super) paths: Vec<Section>,
    pub(super) groups: Vec<Section>,
    pub(super) deposits: Vec<Section>,
}

impl Sections {
    /// Returns the sections of a node without paths.
    pub(super) fn of(own: &'static str) -> Self {
        Self { own: Some(own), ..Self::default() }
    }

    /// Adds its section to the error of the path at this index.
    pub(crate) fn in_path(&self, at: usize, error: NodeError) -> NodeError {
        in_one(self.paths.get(at), error)
    }

    /// Does the same for a group.
    pub(crate) fn in_group(&self, at: usize, error: NodeError) -> NodeError {
        in_one(self.groups.get(at), error)
    }

    /// Does the same for deposits.
    pub(super) fn in_deposits(&self, at: usize, error: NodeError) -> NodeError {
        in_one(self.deposits.get(at), error)
    }
}

fn in_one(section: Option<&Section>, error: NodeError) -> NodeError {
    match (section, error) {
        (Some(section), error @ NodeError::Config { .. }) => {
            NodeError::Section { section: *section, error: error.into() }
        }
        (_, error) => error,
    }
}

/// Returns the error of a section as text.
pub(crate) fn in_section(section: &Section, error: &NodeError) -> String {
    match error {
        // The section failed as a whole.
        NodeError::Config { key, problem } if *key == section.name => {
            format!("{section}: {problem}")
        }
        other => format!("{section}: {other}"),
    }
}

/// One step of a key's path.
#[derive(Debug, PartialEq, Eq)]
enum Step<'a> {
    Key(&'a str),
    Place(usize),
}

/// Returns the steps of a path such as `group[1].far.address`.
fn steps(path: &str) -> Vec<Step<'_>> {
    let parts = path.split(['.', '[', ']']).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_or(Step::Key(part), Step::Place)).collect()
}

impl NodeError {
    /// Returns the error with the line of `text`, a configuration, that it is about.
    #[must_use]
    pub fn told_in(&self, text: &str) -> String {
        match self.line_in(text) {
            Some(line) => format!("line {line}, {self}"),
            None => self.to_string(),
        }
    }

    /// Returns the line of `text` that the error is about: the key's, or that of the section that
    /// lacks it.
    fn line_in(&self, text: &str) -> Option<usize> {
        let line = |at| Some(text.get(..at)?.matches('\n').count() + 1);
        let document = DeTable::parse(text).ok()?;
        let (section, error) = match self {
            Self::Section { section, error } => (section, error),
            Self::Config { key, .. } => return line(entry(document.get_ref(), key)?.0),
            _ => return None,
        };
        let (path, unknown) = error.path_in(section.name);
        let mut all = steps(section.name);
        all.extend(section.number.map(|number| Step::Place(number - 1)));
        let in_section = all.len();
        all.extend(steps(path));
        all.extend(unknown.map(Step::Key));
        line(deepest(&document, &all, in_section)?)
    }

    /// Returns the path of the key within its section, and the unknown key there, if any.
    fn path_in(&self, section: &str) -> (&str, Option<&str>) {
        let Self::Config { key, problem } = self else { return ("", None) };
        let unknown =
            problem.split_once("unknown field `").and_then(|(_, rest)| rest.split_once('`'));
        let unknown = unknown.map(|(field, _)| field);
        let key = match key.strip_prefix(section) {
            Some(rest) => rest.trim_start_matches('.'),
            None => key,
        };
        // For a part that is parsed as a whole, the message names the place.
        let place = problem.split_once(": ").map_or("", |(place, _)| place);
        let is_path = place.chars().all(|it| it.is_ascii_alphanumeric() || "_.[]".contains(it));
        (if key.is_empty() && is_path { place } else { key }, unknown)
    }
}

/// Returns the position of the last of `steps` that exists, provided that the section does: the
/// first `section` steps.
fn deepest(document: &Spanned<DeTable<'_>>, steps: &[Step<'_>], section: usize) -> Option<usize> {
    let Some(Step::Key(name)) = steps.first() else { return None };
    let (key, mut value) = entry(document.get_ref(), name)?;
    let mut found = key;
    for (depth, step) in steps.iter().enumerate().skip(1) {
        let next = match (step, value.get_ref()) {
            (Step::Key(name), DeValue::Table(table)) => entry(table, name),
            (Step::Place(at), DeValue::Array(array)) => {
                array.get(*at).map(|value| (value.span().start, value))
            }
            _ => None,
        };
        match next {
            Some((at, inner)) => (found, value) = (at, inner),
            None if depth < section => return None,
            None => break,
        }
    }
    Some(found)
}

/// Returns the position of a key, and its value.
fn entry<'a, 'i>(table: &'a DeTable<'i>, name: &str) -> Option<(usize, &'a Spanned<DeValue<'i>>)> {
    let found = table.iter().find(|(key, _)| key.get_ref().as_ref() == name);
    found.map(|(key, value)| (key.span().start, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "identity_file = 'k'\n\n[[packet]]\nlisten = '127.0.0.1:1'\n\n[[packet]]\n\
                        budget = '0 s'\nfar = { address = 'x' }\n\n[packet_endpoint]\n\
                        relays = []\n[packet_endpoint.tun]\nname = 'tw0'\n";

    fn line(section: Section, key: &'static str, problem: &str) -> Option<usize> {
        let error = NodeError::Config { key, problem: problem.to_owned() };
        NodeError::Section { section, error: error.into() }.line_in(TEXT)
    }

    #[test]
    fn a_problem_stands_at_its_key_or_at_the_section_that_lacks_it() {
        let packet = |number| Section { name: "packet", number: Some(number), is_only: false };
        let endpoint = Section::of("packet_endpoint");
        for (section, key, problem, expected) in [
            (packet(2), "budget", "expected at least 1 ms", Some(7)),
            (packet(2), "packet", "far.address: expected", Some(8)),
            (packet(2), "relays", "missing", Some(6)),
            (packet(1), "packet", "missing field `far`", Some(3)),
            (packet(1), "packet", "unknown field `listen`, expected", Some(4)),
            (packet(3), "budget", "expected", None),
            (endpoint, "packet_endpoint", "relays[0]: expected", Some(11)),
            (endpoint, "packet_endpoint.tun", "expected ranges", Some(12)),
            (endpoint, "tun.name", "`tw0` is there twice", Some(13)),
        ] {
            assert_eq!(line(section, key, problem), expected, "{section} {key}: {problem}");
        }
    }

    #[test]
    fn a_section_is_named_as_it_is_written() {
        let name = "packet";
        let shown = |number, is_only| Section { name, number, is_only }.to_string();
        assert_eq!(shown(None, true), "[packet]");
        assert_eq!(shown(Some(1), true), "[[packet]]");
        assert_eq!(shown(Some(2), false), "the 2. [[packet]]");
    }
}
