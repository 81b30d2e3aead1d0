//! Dates of the Gregorian calendar, in grant specifications and in error messages.

use std::fmt;

use tradewind_units::Timestamp;

use crate::wire::from_unix_ms;

const DAY_S: u64 = 86_400;
/// Days from 0000-03-01, the first day of year 0 here, to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;

/// Returns the point in time of a full date with time and zone; `None` if incomplete, or before
/// 1970.
pub(crate) fn from_date(written: &toml::value::Datetime) -> Option<Timestamp> {
    let (date, time, offset) = (written.date?, written.time?, written.offset?);
    let offset_minutes = match offset {
        toml::value::Offset::Z => 0,
        toml::value::Offset::Custom { minutes } => i64::from(minutes),
    };
    let minutes = days_since_1970(date.year, date.month, date.day) * 1440
        + i64::from(time.hour) * 60
        + i64::from(time.minute)
        - offset_minutes;
    let seconds = u64::try_from(minutes * 60 + i64::from(time.second)).ok()?;
    Some(from_unix_ms(seconds.checked_mul(1000)?))
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March, so
/// that the leap day is a year's last.
fn days_since_1970(year: u16, month: u8, day: u8) -> i64 {
    let year = i64::from(year) - i64::from(month <= 2);
    let month_from_march = (i64::from(month) + 9) % 12;
    let days_before_month = (153 * month_from_march + 2) / 5;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days_from_0000_03_01 = year * 365 + leap_days + days_before_month + i64::from(day) - 1;
    days_from_0000_03_01 - EPOCH_DAYS
}

/// A point in time that is formatted as `2027-01-31T00:00:00Z`.
pub struct Date(
    /// Seconds since the Unix epoch.
    pub u64,
);

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / DAY_S, self.0 % DAY_S);
        // The calendar repeats after 400 years: 146,097 days.
        let days = days.saturating_add(EPOCH_DAYS.unsigned_abs());
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let leap_days = day_of_era / 1_460 + day_of_era / 146_096 - day_of_era / 36_524;
        let year_of_era = (day_of_era - leap_days) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = (month_from_march + 2) % 12 + 1;
        let year = 400 * era + year_of_era + u64::from(month <= 2);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_600_years_round_trip() {
        for day in 0..220_000 {
            let shown = Date(day * DAY_S + 3_723).to_string();
            let read = from_date(&shown.parse().unwrap()).unwrap();
            assert_eq!(read, from_unix_ms((day * DAY_S + 3_723) * 1000), "{shown}");
        }
    }

    #[test]
    fn known_dates() {
        assert_eq!(Date(0).to_string(), "1970-01-01T00:00:00Z");
        assert_eq!(Date(951_782_400).to_string(), "2000-02-29T00:00:00Z");
        assert_eq!(Date(1_795_179_600).to_string(), "2026-11-20T13:00:00Z");
    }
}
