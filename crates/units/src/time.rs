//! Points in time and spans of time.
//!
//! A [`Timestamp`] counts nanoseconds from a start that its owner chose (the lab's boot, a
//! simulation's zero): it carries no clock, so pure crates can compute with it. Spans are the
//! standard library's [`Duration`].

pub use std::time::Duration;

use crate::{UnitError, text};

/// A point in time: nanoseconds since its owner's zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The owner's zero.
    pub const ZERO: Self = Self(0);
    /// Later than every other point: "never".
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// Creates the point `nanos` nanoseconds after zero.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since zero.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the seconds since zero.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the span from `earlier` to this point; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    /// Adds a span, saturating at [`Timestamp::FAR_FUTURE`].
    fn add(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// Longest span that an input may hold: a year. Longer ones are typing errors.
const MAX_SPAN_S: f64 = 366.0 * 86_400.0;

const EXPECTED: &str = "a span such as `30 ms` or `1.5 s`, at most a year";
const UNITS: &[(&str, f64)] =
    &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0)];

/// Reads a span such as `30 ms`, `1.5s` or `5 min`.
///
/// # Errors
/// When the text is no number with a unit of time, or exceeds a year.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let seconds = text::parse_scaled("duration", EXPECTED, text, UNITS)?;
    if seconds > MAX_SPAN_S {
        return Err(UnitError::new("duration", EXPECTED, text));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Creates a span of milliseconds from a measured or imported number.
///
/// # Errors
/// When `millis` is NaN, infinite, negative or above a year.
pub fn duration_from_millis(millis: f64) -> Result<Duration, UnitError> {
    if !(0.0..=MAX_SPAN_S * 1e3).contains(&millis) {
        let expected = "milliseconds from 0 to a year";
        return Err(UnitError::new("duration", expected, millis));
    }
    Ok(Duration::from_secs_f64(millis / 1e3))
}

/// Returns the span in milliseconds.
#[must_use]
pub fn as_millis_f64(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// The text form of a span, for schemas of fields that [`as_text`] reads.
#[derive(Debug)]
pub enum Written {}

/// The text form of a span or `off`, for schemas of fields that [`or_off`] reads.
#[derive(Debug)]
pub enum WrittenOrOff {}

/// Serde adapter for spans in their text form: `#[serde(with = "tradewind_units::time::as_text")]`.
pub mod as_text {
    use super::Duration;
    use serde::{Deserializer, Serializer};

    /// Writes the span in microseconds, milliseconds or seconds, whichever is exact and shortest.
    ///
    /// # Errors
    /// Only those of the serializer.
    pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        let nanos = span.as_nanos();
        let text = match nanos {
            n if n % 1_000_000_000 == 0 => format!("{} s", n / 1_000_000_000),
            n if n % 1_000_000 == 0 => format!("{} ms", n / 1_000_000),
            n if n % 1_000 == 0 => format!("{} us", n / 1_000),
            n => format!("{n} ns"),
        };
        serializer.serialize_str(&text)
    }

    /// Reads the forms of [`super::parse_duration`].
    ///
    /// # Errors
    /// As [`super::parse_duration`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        crate::text::from_text(deserializer, super::EXPECTED, super::parse_duration)
    }

    /// The same for a span that may be absent: add `#[serde(default)]` beside it.
    pub mod option {
        use super::Duration;
        use serde::{Deserialize, Deserializer, Serializer};

        /// Writes the span, or nothing.
        ///
        /// # Errors
        /// Only those of the serializer.
        pub fn serialize<S: Serializer>(
            span: &Option<Duration>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            match span {
                Some(span) => super::serialize(span, serializer),
                None => serializer.serialize_none(),
            }
        }

        /// Reads a span, or nothing.
        ///
        /// # Errors
        /// As [`super::super::parse_duration`].
        pub fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Duration>, D::Error> {
            #[derive(Deserialize)]
            struct Written(#[serde(with = "super")] Duration);
            let written = Option::<Written>::deserialize(deserializer)?;
            Ok(written.map(|Written(span)| span))
        }
    }
}

/// Serde adapter for limits in their text form, or `off` for `None`.
pub mod or_off {
    use super::{Duration, as_text, parse_duration};
    use serde::{Deserializer, Serializer};

    const EXPECTED: &str = "a span such as `30 s`, or `off`";

    /// Writes the span as [`as_text`] does, or `off`.
    ///
    /// # Errors
    /// Only those of the serializer.
    pub fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => as_text::serialize(span, serializer),
            None => serializer.serialize_str("off"),
        }
    }

    /// Reads the forms of [`super::parse_duration`], or `off`.
    ///
    /// # Errors
    /// As [`super::parse_duration`].
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        crate::text::from_text(deserializer, EXPECTED, |text| match text.trim() {
            "off" => Ok(None),
            text => parse_duration(text).map(Some),
        })
    }
}

/// Serde adapter for spans as a plain number of seconds, for fields whose name ends in `_s`.
pub mod as_seconds {
    use super::{Duration, MAX_SPAN_S};
    use crate::UnitError;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the span as seconds with a fraction.
    ///
    /// # Errors
    /// Only those of the serializer.
    pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(span.as_secs_f64())
    }

    /// Reads seconds, from 0 to a year.
    ///
    /// # Errors
    /// When it is no number, or out of that range.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        if !(0.0..=MAX_SPAN_S).contains(&seconds) {
            let refused = UnitError::new("duration", "seconds from 0 to a year", seconds);
            return Err(serde::de::Error::custom(refused));
        }
        Ok(Duration::from_secs_f64(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_are_read_with_their_unit() {
        assert_eq!(parse_duration("30 ms").unwrap(), Duration::from_millis(30));
        assert_eq!(parse_duration("1.5s").unwrap(), Duration::from_millis(1500));
        assert_eq!(parse_duration("5 min").unwrap(), Duration::from_secs(300));
    }

    #[test]
    fn spans_without_unit_sign_or_sense_are_refused() {
        for text in ["30", "-3 ms", "ms", "", "1e9 s", "9999999 h", "3 parsecs", "1..2 s", "NaN s"]
        {
            let error = parse_duration(text).unwrap_err();
            assert_eq!(error.value, text);
        }
        assert!(duration_from_millis(f64::NAN).is_err());
        assert!(duration_from_millis(-1.0).is_err());
    }

    #[test]
    fn timestamp_saturates() {
        assert_eq!(Timestamp::FAR_FUTURE + Duration::from_secs(1), Timestamp::FAR_FUTURE);
        assert_eq!(Timestamp::ZERO.since(Timestamp::from_nanos(5)), Duration::ZERO);
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Holder {
        #[serde(with = "as_text")]
        span: Duration,
    }

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct MayHold {
        #[serde(default, with = "as_text::option")]
        span: Option<Duration>,
    }

    #[test]
    fn absent_span_round_trips() {
        for span in [None, Some(Duration::from_millis(30))] {
            let json = serde_json::to_string(&MayHold { span }).unwrap();
            assert_eq!(serde_json::from_str::<MayHold>(&json).unwrap(), MayHold { span });
            let text = toml::to_string(&MayHold { span }).unwrap();
            assert_eq!(toml::from_str::<MayHold>(&text).unwrap(), MayHold { span });
        }
    }

    proptest! {
        #[test]
        fn text_form_survives_a_round_trip(micros in 0u64..86_400_000_000) {
            let held = Holder { span: Duration::from_micros(micros) };
            let text = toml::to_string(&held).unwrap();
            let back: Holder = toml::from_str(&text).unwrap();
            let difference = back.span.abs_diff(held.span);
            prop_assert!(difference <= Duration::from_nanos(20), "{text} {difference:?}");
        }
    }
}
