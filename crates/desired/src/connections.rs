//! The number of connections that carry a stream over one leg [TRN: one connection does not fill a
//! VM].

use std::num::NonZeroU16;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Most connections that a stream may have on one leg. Source: the number that Skyplane gives a
/// whole machine, and that the published throughput grids were measured with.
pub const MAX_CONNECTIONS: u16 = 64;

/// The number of connections that carry a bulky stream over one leg.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Connections {
    /// One: the leg is never striped.
    #[default]
    One,
    /// So many, from 2 to [`MAX_CONNECTIONS`].
    Fixed(NonZeroU16),
    /// As many as raise the stream's goodput.
    Adaptive,
}

impl Connections {
    /// Creates a fixed number.
    ///
    /// # Errors
    /// When it is 0 or above [`MAX_CONNECTIONS`].
    pub fn fixed(number: u64) -> Result<Self, String> {
        match u16::try_from(number).ok().and_then(NonZeroU16::new) {
            Some(number) if number.get() == 1 => Ok(Self::One),
            Some(number) if number.get() <= MAX_CONNECTIONS => Ok(Self::Fixed(number)),
            _ => Err(format!("{number} connections: expected 1 to {MAX_CONNECTIONS}")),
        }
    }

    /// Returns whether a leg always has one connection.
    #[must_use]
    pub const fn is_one(&self) -> bool {
        matches!(self, Self::One)
    }
}

tradewind_units::inline_schema!(Connections, "number or `adaptive`", {
    "anyOf": [
        { "type": "integer", "minimum": 1, "maximum": MAX_CONNECTIONS },
        { "const": "adaptive" },
    ],
});

impl Serialize for Connections {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::One => serializer.serialize_u16(1),
            Self::Fixed(number) => serializer.serialize_u16(number.get()),
            Self::Adaptive => serializer.serialize_str("adaptive"),
        }
    }
}

impl<'de> Deserialize<'de> for Connections {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Connections;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "a number from 1 to {MAX_CONNECTIONS} or \"adaptive\"")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Connections, E> {
                self.visit_u64(u64::try_from(number).unwrap_or(0))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Connections, E> {
                Connections::fixed(number).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Connections, E> {
                match text {
                    "adaptive" => Ok(Connections::Adaptive),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
