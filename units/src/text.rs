//! The one grammar of all text forms: a decimal number, an optional space, a unit.

use crate::UnitError;

/// Splits `30 ms` into `30.0` and its scale, looked up in `units`.
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

/// The text that reads back as exactly `value` (up to 2^53): in the largest unit in which it has at
/// most three decimals.
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
    f: &mut std::fmt::Formatter<'_>,
    value: f64,
    units_ascending: &[(&str, f64)],
) -> std::fmt::Result {
    let fits = units_ascending.iter().rev().find(|(_, scale)| value >= *scale);
    let (name, scale) = fits.unwrap_or(&units_ascending[0]);
    let number = format!("{:.3}", value / scale);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    f.pad(&format!("{number} {name}"))
}

/// Implements `Serialize` and `Deserialize` through text, read by `FromStr`: the text of `Display`,
/// or the exact one in the given units, since `Display` rounds.
macro_rules! serde_as_text {
    ($type:ty) => {
        crate::text::serde_as_text!($type, |value: &$type| value.to_string());
    };
    ($type:ty, $text:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&$text(self))
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;
