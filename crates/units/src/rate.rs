//! Bandwidth, in bits per second.

use crate::{Bytes, Duration, UnitError, text};

/// A rate of data: whole bits per second, from 1 bit/s to 100 Tbit/s.
///
/// A rate of zero does not exist: a link that carries nothing is absent or in outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bandwidth(u64);

const EXPECTED: &str = "a rate such as `500 Mbit/s`, above 0 and at most 100 Tbit/s";
const MAX_BPS: u64 = 100_000_000_000_000;
const UNITS: &[(&str, f64)] =
    &[("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9), ("Tbit/s", 1e12)];

impl Bandwidth {
    /// The fastest rate there is, 100 Tbit/s: stands for "no limit".
    pub const MAX: Self = Self(MAX_BPS);

    /// Creates a rate of `bps` bits per second.
    ///
    /// # Errors
    /// When `bps` is zero or above 100 Tbit/s.
    pub fn from_bps(bps: u64) -> Result<Self, UnitError> {
        if bps == 0 || bps > MAX_BPS {
            return Err(UnitError::new("bandwidth", EXPECTED, format!("{bps} bit/s")));
        }
        Ok(Self(bps))
    }

    /// Creates a rate of `mbps` megabits (10^6 bits) per second, rounded to a whole bit per second.
    ///
    /// # Errors
    /// When `mbps` is NaN, not above zero, or above 100 Tbit/s.
    pub fn from_mbps(mbps: f64) -> Result<Self, UnitError> {
        let bps = (mbps * 1e6).round();
        if !(1.0..=MAX_BPS as f64).contains(&bps) {
            return Err(UnitError::new("bandwidth", EXPECTED, format!("{mbps} Mbit/s")));
        }
        Ok(Self(bps as u64))
    }

    /// Returns the rate at which `size` passes in `span`; `None` when that is below 1 bit/s or
    /// above the maximum.
    #[must_use]
    pub fn from_transfer(size: Bytes, span: Duration) -> Option<Self> {
        Self::from_mbps(size.as_u64() as f64 * 8.0 / 1e6 / span.as_secs_f64()).ok()
    }

    /// Creates a rate from a computed number of bytes per second, clamped to the range of rates.
    ///
    /// # Panics
    /// When `bytes_per_s` is NaN or negative: the caller's bug.
    #[must_use]
    pub fn saturating_from_bytes_per_s(bytes_per_s: f64) -> Self {
        assert!(bytes_per_s >= 0.0, "a rate was computed as {bytes_per_s} bytes per second");
        Self((bytes_per_s * 8.0).round().clamp(1.0, MAX_BPS as f64) as u64)
    }

    /// Returns the bits per second.
    #[must_use]
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// Returns the megabits (10^6 bits) per second.
    #[must_use]
    pub fn as_mbps(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns the bytes per second.
    #[must_use]
    pub fn as_bytes_per_s(self) -> f64 {
        self.0 as f64 / 8.0
    }

    /// Returns the time that `size` takes at this rate, rounded to the nearest nanosecond.
    #[must_use]
    pub fn time_for(self, size: Bytes) -> Duration {
        let nanos = (u128::from(size.as_u64()) * 8_000_000_000 + u128::from(self.0) / 2)
            / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the volume that passes in `span`, rounded down to whole bytes.
    #[must_use]
    pub fn volume_in(self, span: Duration) -> Bytes {
        let bytes = u128::from(self.0).saturating_mul(span.as_nanos()) / 8_000_000_000;
        Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Returns this rate times `factor`, clamped to the range of rates.
    ///
    /// # Panics
    /// When `factor` is NaN or negative: the caller's bug.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        assert!(factor >= 0.0, "a rate was scaled by {factor}");
        Self((self.0 as f64 * factor).round().clamp(1.0, MAX_BPS as f64) as u64)
    }
}

impl std::str::FromStr for Bandwidth {
    type Err = UnitError;

    fn from_str(input: &str) -> Result<Self, UnitError> {
        let bps = text::parse_scaled("bandwidth", EXPECTED, input, UNITS)?;
        Self::from_mbps(bps / 1e6).map_err(|_| UnitError::new("bandwidth", EXPECTED, input))
    }
}

impl std::fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        text::format_scaled(f, self.0 as f64, UNITS)
    }
}

text::serde_as_text!(Bandwidth, EXPECTED, |rate: &Bandwidth| text::exact_scaled(rate.0, UNITS));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_a_size_make_a_time() {
        let rate: Bandwidth = "1 Gbit/s".parse().unwrap();
        assert_eq!(rate.time_for(Bytes::new(125_000_000)), Duration::from_secs(1));
        assert_eq!(rate.volume_in(Duration::from_millis(8)), Bytes::new(1_000_000));
    }

    #[test]
    fn rates_print_as_they_are_read() {
        for text in ["500 Mbit/s", "1.75 Gbit/s", "64 kbit/s", "1 bit/s"] {
            assert_eq!(text.parse::<Bandwidth>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn stored_rate_is_exact() {
        for bps in [1, 999, 1_234_567_890, 1_750_000_000, 100_000_000_000_000] {
            let rate = Bandwidth::from_bps(bps).unwrap();
            let stored = toml::Value::try_from(rate).unwrap();
            assert_eq!(stored.try_into::<Bandwidth>().unwrap(), rate);
        }
    }

    #[test]
    fn volume_saturates() {
        assert_eq!(Bandwidth::MAX.volume_in(Duration::MAX), Bytes::new(u64::MAX));
    }

    #[test]
    fn rates_without_sense_are_refused() {
        for text in ["0 Mbit/s", "-1 Mbit/s", "5 MB/s", "5", "900 Tbit/s", "inf Mbit/s"] {
            assert_eq!(text.parse::<Bandwidth>().unwrap_err().value, text);
        }
        assert!(Bandwidth::from_mbps(f64::NAN).is_err());
        assert!(Bandwidth::from_bps(0).is_err());
    }
}
