//! Numbers that know their unit, and ids that know what they name.
//!
//! Every other crate computes with these types, so a bit never meets a byte and a dollar never
//! meets a gigabyte without a conversion that says so. Constructors refuse NaN, negative and
//! absurd values with a [`UnitError`] that holds the offending value; arithmetic is checked or
//! saturates where it says so, and never wraps.
//!
//! | module | holds |
//! |---|---|
//! | [`time`] | [`Timestamp`], [`Duration`] and their text form |
//! | [`rate`] | [`Bandwidth`] |
//! | [`size`] | [`Bytes`], [`Segments`] |
//! | [`ratio`] | [`Ratio`] |
//! | [`money`] | [`Money`], [`PricePerGb`] |
//! | [`id`] | [`RegionId`], [`SiteId`], [`RelayId`], [`FlowId`], [`ContentId`], [`HostId`] |
//!
//! Text forms are the same everywhere (TOML, command line): a number, an optional space and a
//! unit, as in `30 ms`, `2 Gbit/s`, `2.875 MB`. There is no default unit.

pub mod id;
pub mod money;
pub mod rate;
pub mod ratio;
pub mod size;
mod text;
pub mod time;

pub use id::{ContentId, FlowId, HostId, RegionId, RelayId, RelayTypeId, SiteId};
pub use money::{Money, PricePerGb};
pub use rate::Bandwidth;
pub use ratio::Ratio;
pub use size::{Bytes, Segments};
pub use time::{Duration, Timestamp};

/// Why a value was refused: what it should have been, and what it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{quantity}: {expected}, not `{}`", shown(value))]
pub struct UnitError {
    /// What the value was meant to be, e.g. `bandwidth`.
    pub quantity: &'static str,
    /// What would have been right.
    pub expected: &'static str,
    /// The offending value as it was given.
    pub value: String,
}

impl UnitError {
    /// A refusal of `value` as a `quantity`; `expected` says what would have been right.
    #[must_use]
    pub fn new(
        quantity: &'static str,
        expected: &'static str,
        value: impl std::fmt::Display,
    ) -> Self {
        Self { quantity, expected, value: value.to_string() }
    }
}

/// Most characters of an offending value that an error shows. Chosen: a line of a terminal.
const MOST_SHOWN: usize = 80;

/// `value` fit for one line: control characters escaped, the rest of a long one left out.
fn shown(value: &str) -> String {
    let mut characters = value.chars();
    let start = characters.by_ref().take(MOST_SHOWN).flat_map(char::escape_debug);
    let mut start: String = start.collect();
    if characters.next().is_some() {
        start.push('…');
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_whatever_the_value_was() {
        let error = SiteId::new("a\nb\u{1b}[31m").unwrap_err();
        assert!(error.to_string().ends_with("not `a\\nb\\u{1b}[31m`"), "{error}");
        let long = "9".repeat(1_000_000).parse::<Bytes>().unwrap_err();
        assert!(long.to_string().len() < 300);
    }
}
