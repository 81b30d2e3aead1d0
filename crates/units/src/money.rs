//! Money in US dollars, and prices by volume.

use crate::{Bytes, UnitError};

/// An amount in nano-dollars: sums are exact and rounded only when printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Money(u64);

const MAX_USD: f64 = 1e9;

impl Money {
    /// Zero dollars.
    pub const ZERO: Self = Self(0);
    /// A millionth of a dollar.
    pub const MICRO: Self = Self(1000);

    /// Creates an amount of `usd` dollars, rounded to nano-dollars.
    ///
    /// # Errors
    /// When `usd` is NaN, negative or above a billion.
    pub fn from_usd(usd: f64) -> Result<Self, UnitError> {
        if !(0.0..=MAX_USD).contains(&usd) {
            return Err(UnitError::new("money", "dollars from 0 to 10^9", usd));
        }
        Ok(Self((usd * 1e9).round() as u64))
    }

    /// Reads an amount of a day such as `6 usd/day`, `6usd/day`, `$6` or `6`.
    ///
    /// # Errors
    /// When the text is no such amount.
    pub fn of_day(text: &str) -> Result<Self, UnitError> {
        let refused = || UnitError::new("amount", "dollars a day such as `6 usd/day`", text);
        let words: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let words = words.to_ascii_lowercase();
        let number = words.strip_suffix("/day").unwrap_or(&words);
        let number = number.strip_suffix("usd").or(number.strip_prefix('$')).unwrap_or(number);
        number
            .parse()
            .map_err(|_| refused())
            .and_then(|usd| Self::from_usd(usd).map_err(|_| refused()))
    }

    /// Returns the amount in dollars.
    #[must_use]
    pub fn as_usd(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the amount in nano-dollars.
    #[must_use]
    pub const fn as_nano_usd(self) -> u64 {
        self.0
    }

    /// Returns the sum, at most `u64::MAX` nano-dollars.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the rest of this amount after `spent`; `None` when `spent` is more.
    #[must_use]
    pub const fn checked_sub(self, spent: Self) -> Option<Self> {
        match self.0.checked_sub(spent.0) {
            Some(left) => Some(Self(left)),
            None => None,
        }
    }

    /// Returns `count` times this amount, at most `u64::MAX` nano-dollars.
    #[must_use]
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// Returns the part of this amount that `part` is of `whole`, rounded down, at most `u64::MAX`
    /// nano-dollars; nothing of none.
    #[must_use]
    pub fn prorated(self, part: u64, whole: u64) -> Self {
        let product = u128::from(self.0) * u128::from(part);
        let quotient = product.checked_div(u128::from(whole)).unwrap_or(0);
        Self(u64::try_from(quotient).unwrap_or(u64::MAX))
    }

    /// Returns the share of the amount that each of `count` payers pays, rounded down; all of it
    /// when `count` is zero.
    #[must_use]
    pub const fn shared_by(self, count: u32) -> Self {
        Self(self.0 / if count == 0 { 1 } else { count as u64 })
    }

    /// Returns how many times this amount pays `price`; `None` (without limit) when the price is
    /// zero.
    #[must_use]
    pub const fn pays(self, price: Self) -> Option<u64> {
        self.0.checked_div(price.0)
    }
}

impl std::ops::Add for Money {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl std::iter::Sum for Money {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Self::saturating_add)
    }
}

impl std::fmt::Display for Money {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "${:.2}", self.as_usd())
    }
}

/// A price for each gigabyte (10^9 bytes), as clouds bill egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PricePerGb(Money);

impl PricePerGb {
    /// Free of charge.
    pub const FREE: Self = Self(Money::ZERO);

    /// Creates a price of `usd_per_gb` dollars for each gigabyte.
    ///
    /// # Errors
    /// When it is NaN, negative or above 100 dollars, more than any cloud has ever asked.
    pub fn from_usd_per_gb(usd_per_gb: f64) -> Result<Self, UnitError> {
        if !(0.0..=100.0).contains(&usd_per_gb) {
            return Err(UnitError::new("price", "dollars per GB from 0 to 100", usd_per_gb));
        }
        Money::from_usd(usd_per_gb).map(Self)
    }

    /// Returns the dollars for each gigabyte.
    #[must_use]
    pub fn as_usd_per_gb(self) -> f64 {
        self.0.as_usd()
    }

    /// Returns the cost of `volume`, rounded to the nearest nano-dollar.
    #[must_use]
    pub fn cost_of(self, volume: Bytes) -> Money {
        let nanos =
            (u128::from(self.0.0) * u128::from(volume.as_u64()) + 500_000_000) / 1_000_000_000;
        Money(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl serde::Serialize for Money {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_usd())
    }
}

impl<'de> serde::Deserialize<'de> for Money {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let usd = f64::deserialize(deserializer)?;
        Self::from_usd(usd).map_err(serde::de::Error::custom)
    }
}

impl serde::Serialize for PricePerGb {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_usd_per_gb())
    }
}

impl<'de> serde::Deserialize<'de> for PricePerGb {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let usd_per_gb = f64::deserialize(deserializer)?;
        Self::from_usd_per_gb(usd_per_gb).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_a_day_are_read_as_people_write_them() {
        for text in ["6 usd/day", "6usd/day", "6 USD / day", "$6", "$6/day", "6", "6.00 usd"] {
            assert_eq!(Money::of_day(text), Money::from_usd(6.0), "{text}");
        }
        for text in ["", "usd/day", "-6", "6 eur/day", "6 usd/hour", "nan", "$$6"] {
            let refused = Money::of_day(text).unwrap_err().to_string();
            assert!(refused.contains("`6 usd/day`"), "{text}: {refused}");
        }
    }

    #[test]
    fn two_gigabytes_at_eight_cents_cost_sixteen_cents() {
        let price = PricePerGb::from_usd_per_gb(0.08).unwrap();
        assert_eq!(price.cost_of(Bytes::new(2_000_000_000)), Money::from_usd(0.16).unwrap());
    }

    #[test]
    fn small_costs_add_up_without_rounding() {
        let cost = PricePerGb::from_usd_per_gb(0.09).unwrap().cost_of(Bytes::new(1_000));
        let total: Money = std::iter::repeat_n(cost, 1_000_000).sum();
        assert_eq!(total, Money::from_usd(0.09).unwrap());
    }

    #[test]
    fn amounts_without_sense_are_refused() {
        assert!(Money::from_usd(-0.01).is_err());
        assert!(Money::from_usd(f64::NAN).is_err());
        assert!(PricePerGb::from_usd_per_gb(1000.0).is_err());
        assert_eq!(Money::from_usd(1.0).unwrap().checked_sub(Money::from_usd(2.0).unwrap()), None);
    }
}
