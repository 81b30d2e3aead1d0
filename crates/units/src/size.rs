//! Amounts of data: bytes, and TCP segments.

use crate::{UnitError, text};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(u64);

const EXPECTED: &str = "a size such as `2 GB`, `64 KiB` or `1500 B`, at most 1 EB";
const MAX_BYTES: f64 = 1e18;
const DECIMAL: &[(&str, f64)] =
    &[("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12), ("PB", 1e15), ("EB", 1e18)];
const UNITS: &[(&str, f64)] = &[
    ("B", 1.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("PB", 1e15),
    ("EB", 1e18),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
];

impl Bytes {
    /// No data.
    pub const ZERO: Self = Self(0);

    /// Creates a size of `count` bytes.
    #[must_use]
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the size in gigabytes (10^9 bytes), the unit that clouds bill.
    #[must_use]
    pub fn as_gb(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the sum, at most `u64::MAX` bytes.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the difference, at least zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns this size times `factor`, rounded to whole bytes.
    ///
    /// # Panics
    /// When `factor` is NaN or negative: the caller's bug.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        assert!(factor >= 0.0, "a size was scaled by {factor}");
        Self((self.0 as f64 * factor).round() as u64)
    }
}

impl std::str::FromStr for Bytes {
    type Err = UnitError;

    fn from_str(input: &str) -> Result<Self, UnitError> {
        let exact = text::parse_scaled("size", EXPECTED, input, UNITS)?;
        let bytes = exact.round();
        if bytes > MAX_BYTES || (bytes == 0.0 && exact > 0.0) {
            return Err(UnitError::new("size", EXPECTED, input));
        }
        Ok(Self(bytes as u64))
    }
}

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        text::format_scaled(f, self.0 as f64, DECIMAL)
    }
}

text::serde_as_text!(Bytes, EXPECTED, |size: &Bytes| text::exact_scaled(size.0, DECIMAL));

/// A number of TCP segments, the unit of congestion windows.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "u32", into = "u32")]
pub struct Segments(u32);

impl Segments {
    /// Creates a number of segments.
    ///
    /// # Errors
    /// When `count` is zero or above 2^20, more than any TCP window can hold.
    pub fn new(count: u32) -> Result<Self, UnitError> {
        if count == 0 || count > 1 << 20 {
            let expected = "a window of 1 to 1048576 segments";
            return Err(UnitError::new("segments", expected, count));
        }
        Ok(Self(count))
    }

    /// Returns the number of segments.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0
    }

    /// Returns the payload of this many segments of `mss` bytes each.
    #[must_use]
    pub fn payload(self, mss: Bytes) -> Bytes {
        Bytes::new(u64::from(self.0).saturating_mul(mss.as_u64()))
    }
}

impl TryFrom<u32> for Segments {
    type Error = UnitError;

    fn try_from(count: u32) -> Result<Self, UnitError> {
        Self::new(count)
    }
}

impl From<Segments> for u32 {
    fn from(segments: Segments) -> Self {
        segments.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_binary_sizes_are_distinguished() {
        assert_eq!("2.875 MB".parse::<Bytes>().unwrap(), Bytes::new(2_875_000));
        assert_eq!("64 KiB".parse::<Bytes>().unwrap(), Bytes::new(65_536));
        assert_eq!(Bytes::new(2_875_000).to_string(), "2.875 MB");
    }

    #[test]
    fn stored_size_is_exact() {
        assert_eq!(Bytes::new(123_456_789).to_string(), "123.457 MB");
        for (count, text) in
            [(123_456_789, "123456.789 kB"), (2_875_000, "2.875 MB"), (0, "0 B"), (1, "1 B")]
        {
            let stored = toml::Value::try_from(Bytes::new(count)).unwrap();
            assert_eq!(stored.as_str(), Some(text));
            assert_eq!(stored.try_into::<Bytes>().unwrap(), Bytes::new(count));
        }
        assert_eq!(format!("[{:>9}]", Bytes::new(1500)), "[   1.5 kB]");
    }

    #[test]
    fn sizes_without_sense_are_refused() {
        for text in ["2", "-2 GB", "2 Gb", "99999999 PB", "GB"] {
            assert_eq!(text.parse::<Bytes>().unwrap_err().value, text);
        }
        assert!(Segments::new(0).is_err());
        assert!(Segments::new(2_000_000).is_err());
    }

    #[test]
    fn window_of_segments_is_a_payload() {
        assert_eq!(Segments::new(10).unwrap().payload(Bytes::new(1448)), Bytes::new(14_480));
    }
}
