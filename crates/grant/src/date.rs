//! Dates of the Gregorian calendar, in grant specifications and in error messages.

use std::fmt;

use tradewind_units::Timestamp;

use crate::wire::from_unix_ms;

/// Returns the point in time of a full date with time and zone; `None` if incomplete, or before
/// 1970.
pub fn from_date(written: &toml::value::Datetime) -> Option<Timestamp> {
    let time: jiff::Timestamp = written.to_string().parse().ok()?;
    u64::try_from(time.as_millisecond()).ok().map(from_unix_ms)
}

/// A point in time that is formatted as `2027-01-31T00:00:00Z`; one after the year 9999 as the last
/// of that year.
pub struct Date(
    /// Seconds since the Unix epoch.
    pub u64,
);

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = i64::try_from(self.0).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
        write!(f, "{:.0}", time.unwrap_or(jiff::Timestamp::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_600_years_round_trip() {
        for day in 0..220_000 {
            let second = day * 86_400 + 3_723;
            let shown = Date(second).to_string();
            let read = from_date(&shown.parse().unwrap()).unwrap();
            assert_eq!(read, from_unix_ms(second * 1000), "{shown}");
        }
    }

    #[test]
    fn known_dates() {
        assert_eq!(Date(0).to_string(), "1970-01-01T00:00:00Z");
        assert_eq!(Date(951_782_400).to_string(), "2000-02-29T00:00:00Z");
        assert_eq!(Date(1_795_179_600).to_string(), "2026-11-20T13:00:00Z");
        assert!(Date(u64::MAX).to_string().starts_with("9999-12-"));
    }

    #[test]
    fn date_without_zone_or_before_1970_is_refused() {
        for (written, ms) in [
            ("2027-01-31T00:00:00+01:00", Some(1_801_350_000_000)),
            ("2027-01-31 00:00:00.5Z", Some(1_801_353_600_500)),
            ("2027-01-31T00:00:00", None),
            ("2027-01-31", None),
            ("1969-12-31T23:59:59Z", None),
        ] {
            assert_eq!(from_date(&written.parse().unwrap()), ms.map(from_unix_ms), "{written}");
        }
    }
}
