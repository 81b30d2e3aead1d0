//! Numbers with units, and typed ids.
//!
//! Every other crate computes with these types, so bits and bytes, or dollars and gigabytes, never
//! mix without an explicit conversion. Constructors refuse NaN, negative and absurd values with a
//! [`UnitError`] that holds the offending value; arithmetic is checked or saturates where its name
//! says so, and never wraps.
//!
//! | module | holds |
//! |---|---|
//! | [`time`] | [`Timestamp`], [`Duration`] and their text form |
//! | [`rate`] | [`Bandwidth`] |
//! | [`size`] | [`Bytes`], [`Segments`] |
//! | [`ratio`] | [`Ratio`] |
//! | [`money`] | [`Money`], [`PricePerGb`] |
//! | [`address`] | addresses of sockets in files |
//! | [`eviction`] | an eviction queue of connections |
//! | [`schema`] | JSON schemas of these types and text forms |
//! | [`share`] | shares of a common limit by a dynamic threshold |
//! | [`source`] | [`Source`]: a source of connections and datagrams |
//! | [`id`] | [`RegionId`], [`SiteId`], [`RelayId`], [`FlowId`], [`HostId`] |
//!
//! Text forms are the same everywhere (TOML, command line): a number, an optional space and a
//! unit, as in `30 ms`, `2 Gbit/s`, `2.875 MB`. There is no default unit.

pub mod address;
pub mod eviction;
pub mod id;
pub mod money;
pub mod rate;
pub mod ratio;
pub mod schema;
pub mod share;
pub mod size;
pub mod source;
mod text;
pub mod time;

pub use id::{FlowId, HostId, RegionId, RelayId, RelayTypeId, SiteId};
pub use money::{Money, PricePerGb};
pub use rate::Bandwidth;
pub use ratio::Ratio;
pub use share::SharedRate;
pub use size::{Bytes, Segments};
pub use source::Source;
pub use text::{from_text, in_plain_words, one_line, shown};
pub use time::{Duration, Timestamp};

/// The reason why a value was refused: what it should have been, and what it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{quantity}: {expected}, not `{}`", shown(value))]
pub struct UnitError {
    /// The quantity that the value was meant to be, e.g. `bandwidth`.
    pub quantity: &'static str,
    /// The accepted values.
    pub expected: &'static str,
    /// The offending value as given.
    pub value: String,
}

impl UnitError {
    /// Creates the error about `value` as a `quantity`; `expected` names the accepted values.
    #[must_use]
    pub fn new(
        quantity: &'static str,
        expected: &'static str,
        value: impl std::fmt::Display,
    ) -> Self {
        Self { quantity, expected, value: value.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_one_line_for_any_value() {
        let error = SiteId::new("a\nb\u{1b}[31m").unwrap_err();
        assert!(error.to_string().ends_with("not `a\\nb\\u{1b}[31m`"), "{error}");
        let long = "9".repeat(1_000_000).parse::<Bytes>().unwrap_err();
        assert!(long.to_string().len() < 300);
    }

    #[test]
    fn serde_messages_name_no_rust_types() {
        for (message, plain) in [
            ("invalid value: integer `-1`, expected usize", "`-1`, expected a whole number from 0"),
            (
                "invalid type: integer `9` as i128, expected u16",
                "`9`, expected a whole number from 0 to 65535",
            ),
            ("invalid length 1, expected an array of length 2", "length 1, expected a list of 2"),
            ("expected one of: a, b", "expected one of: a, b"),
            ("unclosed table", "unclosed table"),
        ] {
            let words = in_plain_words(message);
            assert!(words.ends_with(plain), "{words}");
        }
    }

    #[test]
    fn untrusted_text_is_one_line_of_bounded_length() {
        assert_eq!(one_line("a\n2026 INFO b\u{1b}[31m\u{9b}", 100), "a 2026 INFO b [31m ");
        assert_eq!(one_line("aéé", 4), "aé");
    }
}
