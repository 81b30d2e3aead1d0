//! Shares and probabilities.

use crate::UnitError;

/// A share from 0 to 1: a loss ratio, a utilisation, a probability. Never a percentage. Files may
/// hold it as a number or as text; it is written as a number.
#[derive(
    Debug, Clone, Copy, PartialEq, PartialOrd, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "Written", into = "f64")]
pub struct Ratio(f64);

const EXPECTED: &str = "a share such as `0.01` or `1 %`";

/// A share in a file.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "expected a share such as `0.01` or `\"1 %\"`")]
enum Written {
    Number(f64),
    Text(String),
}

impl Ratio {
    /// Nothing.
    pub const ZERO: Self = Self(0.0);
    /// All.
    pub const ONE: Self = Self(1.0);

    /// Creates a share of `value`.
    ///
    /// # Errors
    /// When `value` is NaN or outside 0..=1.
    pub fn new(value: f64) -> Result<Self, UnitError> {
        if !(0.0..=1.0).contains(&value) {
            return Err(UnitError::new("ratio", "a share from 0 to 1", value));
        }
        // Adding zero turns a negative zero into a positive one.
        Ok(Self(value + 0.0))
    }

    /// Returns the share as a number from 0 to 1.
    #[must_use]
    pub const fn as_f64(self) -> f64 {
        self.0
    }
}

impl TryFrom<Written> for Ratio {
    type Error = UnitError;

    fn try_from(written: Written) -> Result<Self, UnitError> {
        match written {
            Written::Number(value) => Self::new(value),
            Written::Text(text) => text.parse(),
        }
    }
}

impl From<Ratio> for f64 {
    fn from(ratio: Ratio) -> Self {
        ratio.0
    }
}

impl std::str::FromStr for Ratio {
    type Err = UnitError;

    /// Reads a share such as `0.01`, or a percentage that says so: `1 %`.
    fn from_str(input: &str) -> Result<Self, UnitError> {
        let refused = || UnitError::new("ratio", EXPECTED, input);
        let trimmed = input.trim();
        let (number, scale) = match trimmed.strip_suffix('%') {
            Some(percent) => (percent.trim_end(), 0.01),
            None => (trimmed, 1.0),
        };
        let value: f64 = number.parse().map_err(|_| refused())?;
        Self::new(value * scale).map_err(|_| refused())
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shares_are_ratios() {
        assert!(Ratio::new(0.5).is_ok());
        for value in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Ratio::new(value).is_err());
        }
        assert_eq!(Ratio::new(-0.0).unwrap().to_string(), "0");
        assert_eq!("1 %".parse::<Ratio>().unwrap(), Ratio::new(0.01).unwrap());
        assert!("101%".parse::<Ratio>().is_err());
    }
}
