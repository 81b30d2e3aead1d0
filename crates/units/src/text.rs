//! The grammar of all text forms: a decimal number, an optional space, a unit. And untrusted text,
//! made fit to print.

use std::fmt;

use serde::{Deserializer, de};

use crate::UnitError;

/// Most characters of an offending value in an error. Chosen: a line of a terminal.
const MAX_SHOWN: usize = 80;

/// Returns an offending `value` for an error of one line: control characters escaped, a long one
/// truncated.
#[must_use]
pub fn shown(value: &str) -> String {
    let mut characters = value.chars();
    let start = characters.by_ref().take(MAX_SHOWN).flat_map(char::escape_debug);
    let mut start: String = start.collect();
    if characters.next().is_some() {
        start.push('…');
    }
    start
}

/// Returns untrusted `words` for one line of a log or terminal: control characters become spaces,
/// and the text is cut at `most_bytes`.
#[must_use]
pub fn one_line(words: &str, most_bytes: usize) -> String {
    let mut line = String::with_capacity(words.len().min(most_bytes));
    for c in words.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if line.len() + c.len_utf8() > most_bytes {
            break;
        }
        line.push(c);
    }
    line
}

/// Splits `30 ms` into `30.0` and the scale of its unit, looked up in `units`.
pub(crate) fn parse_scaled(
    quantity: &'static str,
    expected: &'static str,
    text: &str,
    units: &[(&str, f64)],
) -> Result<f64, UnitError> {
    let refused = || UnitError::new(quantity, expected, text);
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(refused)?;
    let (number, unit) = trimmed.split_at(split);
    let number: f64 = number.parse().map_err(|_| refused())?;
    let unit = unit.trim_start();
    let (_, scale) = units.iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
    Ok(number * scale)
}

/// Returns the text that parses to exactly `value` (up to 2^53): in the largest unit in which it
/// has at most three decimals.
pub(crate) fn exact_scaled(value: u64, units_ascending: &[(&str, f64)]) -> String {
    let thousandths = u128::from(value) * 1000;
    let largest_exact = units_ascending.iter().rev().find(|(_, scale)| {
        let scale = *scale as u64;
        value >= scale && thousandths.is_multiple_of(scale.into())
    });
    let (name, scale) = largest_exact.unwrap_or(&units_ascending[0]);
    let in_unit = thousandths / (*scale as u128);
    let number = format!("{}.{:03}", in_unit / 1000, in_unit % 1000);
    format!("{} {name}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// Writes `value` for people: with the largest unit that keeps it at one or above, rounded to at
/// most three decimals.
pub(crate) fn format_scaled(
    f: &mut fmt::Formatter<'_>,
    value: f64,
    units_ascending: &[(&str, f64)],
) -> fmt::Result {
    let fits = units_ascending.iter().rev().find(|(_, scale)| value >= *scale);
    let (name, scale) = fits.unwrap_or(&units_ascending[0]);
    let number = format!("{:.3}", value / scale);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    f.pad(&format!("{number} {name}"))
}

/// Deserializes text by `parse`. The error about another type names what is `expected`, as in `a
/// size such as "2 GB"`.
///
/// # Errors
/// Those of `parse`, and when the value is no text.
pub fn from_text<'de, T, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
    parse: fn(&str) -> Result<T, UnitError>,
) -> Result<T, D::Error> {
    deserializer.deserialize_str(TextVisitor { expected, parse })
}

struct TextVisitor<T> {
    expected: &'static str,
    parse: fn(&str) -> Result<T, UnitError>,
}

impl<T> de::Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text: {}", self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }
}

/// Returns serde's message about a file's value, without the names of Rust types.
#[must_use]
pub fn in_plain_words(message: &str) -> String {
    let message = message.replace("` as i128", "`").replace("` as u128", "`");
    let Some((before, expected)) = message.rsplit_once("expected ") else { return message };
    let plain = match expected {
        "usize" | "u64" | "u128" => "a whole number from 0".to_owned(),
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u16" => format!("a whole number from 0 to {}", u16::MAX),
        "u8" => format!("a whole number from 0 to {}", u8::MAX),
        "a nonzero u32" => format!("a whole number from 1 to {}", u32::MAX),
        "a nonzero u16" => format!("a whole number from 1 to {}", u16::MAX),
        "i64" | "i128" => "a whole number".to_owned(),
        "f64" | "f32" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "a borrowed string" | "path string" => "text in quotes".to_owned(),
        "a sequence" => "a list `[..]`".to_owned(),
        other => match other.strip_prefix("an array of length ") {
            Some(length) => format!("a list of {length}"),
            None if other.starts_with("struct ") => "a table of keys".to_owned(),
            None => return message,
        },
    };
    format!("{before}expected {plain}")
}

/// Implements `Serialize` and `Deserialize` through text, read by `FromStr`: the text of `Display`,
/// or the exact one in the given units, since `Display` rounds. The error about a value that is no
/// text names what is expected.
macro_rules! serde_as_text {
    ($type:ty, $expected:expr) => {
        crate::text::serde_as_text!($type, $expected, |value: &$type| value.to_string());
    };
    ($type:ty, $expected:expr, $text:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&$text(self))
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::text::from_text(deserializer, $expected, str::parse)
            }
        }
    };
}
pub(crate) use serde_as_text;
