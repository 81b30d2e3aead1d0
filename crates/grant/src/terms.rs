//! The terms of a hop header, in the byte that is rewritten at every hop: whether the neighbour may
//! stripe the leg, and for how long relays may dial the next one.
//!
//! ```text
//! bits  field
//!    3  hop that this copy of the header is for, from 0
//!    4  half seconds for which a relay may dial the next one; 0: as long as it is configured to
//!    1  whether the neighbour may stripe the leg
//! ```
//!
//! A gateway that has another path sets the limit: every second of waiting for a dead leg is lost
//! to that path, too.

use tradewind_units::Duration;

const HOP: u8 = 0x07;
const LIMIT_AT: u32 = 3;
const LIMIT: u8 = 0x0f;
const MAY_STRIPE: u8 = 0x80;

/// The longest time for relays to dial the next one: half seconds, from one to fifteen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialLimit(u8);

impl DialLimit {
    const UNIT: Duration = Duration::from_millis(500);

    /// Returns the least limit that is not below `limit`, or the longest one, 7.5 s.
    #[must_use]
    pub fn covering(limit: Duration) -> Self {
        let units = limit.as_nanos().div_ceil(Self::UNIT.as_nanos());
        Self(units.clamp(1, u128::from(LIMIT)) as u8)
    }

    /// Returns the limit as a time.
    #[must_use]
    pub fn duration(self) -> Duration {
        Self::UNIT * u32::from(self.0)
    }
}

/// The terms of a leg, and of those after it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Terms {
    /// True if the neighbour may stripe the leg: further connections may join the session.
    pub may_stripe: bool,
    /// Longest time for relays to dial the next one, where the gateway has another path.
    pub dial_limit: Option<DialLimit>,
}

impl Terms {
    /// Returns the byte with these terms in a header for `hop`, which is below
    /// [`HOP_LIMIT`](crate::header::HOP_LIMIT).
    pub(crate) fn byte(self, hop: u8) -> u8 {
        let limit = self.dial_limit.map_or(0, |limit| limit.0);
        hop | limit << LIMIT_AT | if self.may_stripe { MAY_STRIPE } else { 0 }
    }

    /// Splits a byte into the hop and the terms.
    pub(crate) fn of_byte(byte: u8) -> (u8, Self) {
        let limit = byte >> LIMIT_AT & LIMIT;
        let dial_limit = (limit > 0).then_some(DialLimit(limit));
        (byte & HOP, Self { may_stripe: byte & MAY_STRIPE != 0, dial_limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::HOP_LIMIT;

    #[test]
    fn each_byte_has_one_meaning_and_hops_fit() {
        for byte in 0..=u8::MAX {
            let (hop, terms) = Terms::of_byte(byte);
            assert_eq!(terms.byte(hop), byte);
        }
        assert_eq!(usize::from(HOP) + 1, HOP_LIMIT);
    }

    #[test]
    fn limit_is_rounded_up_and_has_a_longest() {
        let ms = Duration::from_millis;
        for (asked, rounded) in
            [(0, 500), (500, 500), (501, 1000), (1000, 1000), (1801, 2000), (99_000, 7500)]
        {
            assert_eq!(DialLimit::covering(ms(asked)).duration(), ms(rounded), "{asked} ms");
        }
    }
}
