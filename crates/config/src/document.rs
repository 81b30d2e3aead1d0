//! A configuration's text: parsed into a type, and the lines of its keys.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_path_to_error::{Path, Segment};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::ConfigError;
use crate::error::one_line;
use crate::packet::shape::{is_inner, is_written};

/// Parses TOML into a type.
///
/// # Errors
/// The first mistake, with its key and line.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, ConfigError> {
    parse_shaped(text, |_| Ok(()))
}

/// Parses TOML into a type, once `shape` has brought it into the shape that the type takes.
///
/// # Errors
/// The first mistake, with its key and line.
pub(crate) fn parse_shaped<T: DeserializeOwned>(
    text: &str,
    shape: impl FnOnce(&mut DeTable<'_>) -> Result<(), ConfigError>,
) -> Result<T, ConfigError> {
    let line_of = |error: &toml::de::Error| error.span().map(|span| line_at(text, span.start));
    let refuse = |key: String, error: &toml::de::Error| ConfigError {
        key,
        line: line_of(error),
        problem: one_line(error.message()),
    };
    let mut document = DeTable::parse(text).map_err(|error| refuse(String::new(), &error))?;
    shape(document.get_mut()).map_err(|error| error.located(text))?;
    let source = toml::Deserializer::from(document);
    serde_path_to_error::deserialize(source)
        .map_err(|error| refuse(key_of(error.path()), error.inner()))
}

/// Deserializes a table. By itself serde takes an array, such as that of `[[section]]`, as the
/// table's values in the order of their declaration.
///
/// # Errors
/// For all but tables, and those of the type.
pub(crate) fn table<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Only<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Only<T> {
        type Value = T;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("one table")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_map(Only(PhantomData))
}

/// Appends a step to a key.
fn push(key: &mut String, name: &str) {
    if !key.is_empty() {
        key.push('.');
    }
    key.push_str(name);
}

/// Returns a path as the file has it: without the tags that stand for a value of `service`.
fn key_of(path: &Path) -> String {
    let mut key = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => key.push_str(&format!("[{index}]")),
            Segment::Map { key: name } if !is_inner(name) => push(&mut key, name),
            Segment::Enum { variant } if is_written(variant) => push(&mut key, variant),
            Segment::Map { .. } | Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    key
}

impl ConfigError {
    /// Returns the error with the line of its key in `text`, or of the section that lacks the key.
    #[must_use]
    pub fn located(self, text: &str) -> Self {
        let line = self.line.or_else(|| line_of(text, &self.key));
        Self { line, ..self }
    }
}

/// Returns the line of a position.
fn line_at(text: &str, position: usize) -> usize {
    text.get(..position).map_or(0, |before| before.matches('\n').count()) + 1
}

/// One step of a key's path.
#[derive(Debug, PartialEq, Eq)]
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

/// Returns the steps of a path such as `group[1].remote.address`.
fn steps(path: &str) -> Vec<Step<'_>> {
    let parts = path.split(['.', '[', ']']).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_or(Step::Key(part), Step::Index)).collect()
}

/// Returns the line of `key` in `text`, or of the innermost section of it that exists.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let steps = steps(key);
    let Some((Step::Key(name), inner)) = steps.split_first() else { return None };
    let (mut found, mut value) = entry(document.get_ref(), name)?;
    for step in inner {
        let next = match (step, value.get_ref()) {
            (Step::Key(name), DeValue::Table(table)) => entry(table, name),
            (Step::Index(at), DeValue::Array(array)) => {
                array.get(*at).map(|value| (value.span().start, value))
            }
            _ => None,
        };
        let Some(deeper) = next else { break };
        (found, value) = deeper;
    }
    Some(line_at(text, found))
}

/// Returns the position of a key, and its value.
fn entry<'a, 'i>(table: &'a DeTable<'i>, name: &str) -> Option<(usize, &'a Spanned<DeValue<'i>>)> {
    let found = table.iter().find(|(key, _)| key.get_ref().as_ref() == name);
    found.map(|(key, value)| (key.span().start, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_key_has_the_line_of_its_section() {
        let text = "identity_file = 'k'\n\n[[packet]]\nlisten = '127.0.0.1:1'\n\n[[packet]]\n\
                    budget = '0 s'\nremote = { address = 'x' }\n\n[packet_endpoint]\n\
                    relays = ['a',\n'b']\n[packet_endpoint.tun]\nname = 'tw0'\n";
        for (key, expected) in [
            ("packet[1].budget", Some(7)),
            ("packet[1].remote.address", Some(8)),
            ("packet[1].relays", Some(6)),
            ("packet[0].remote", Some(3)),
            ("packet[2].budget", Some(3)),
            ("packet_endpoint.relays[1]", Some(12)),
            ("packet_endpoint.tun.sources", Some(13)),
            ("packet_endpoint.tun.name", Some(14)),
            ("limits.sessions", None),
            ("", None),
        ] {
            assert_eq!(line_of(text, key), expected, "{key}");
        }
        assert_eq!(line_of("[broken", "broken"), None);
    }
}
