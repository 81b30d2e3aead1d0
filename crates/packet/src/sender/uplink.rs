//! The rate of the uplink: all datagrams are charged, and copies take what is left.

use tradewind_units::Timestamp;

use crate::budget::{Allowance, Budget};
use crate::message::Class;

/// The fraction of the burst that only high-priority copies may use, as a divisor. Chosen: some key
/// frames.
const RESERVED_PART: u32 = 4;
/// Bytes of the UDP and IPv4 headers before a datagram.
const HEADERS: usize = 28;

/// An uplink of limited or unlimited rate.
#[derive(Debug, Clone)]
pub(super) struct Uplink {
    bound: Option<(Budget, Allowance)>,
    /// The bytes that were charged since the last call of [`Uplink::note_left`].
    counted: u64,
}

impl Uplink {
    pub(super) fn new(allowance: Option<Allowance>) -> Self {
        Self { bound: allowance.map(|bound| (Budget::new(bound), bound)), counted: 0 }
    }

    /// Charges a datagram that is sent in any case.
    pub(super) fn spend(&mut self, now: Timestamp, bytes: usize) {
        let Some((budget, _)) = &mut self.bound else { return };
        let bytes = on_the_wire(bytes);
        budget.spend(now, bytes);
        self.counted += u64::from(bytes);
    }

    /// Charges a copy, which must leave the reserve for high-priority ones; returns `false` when
    /// there is no capacity for it.
    pub(super) fn bears_copy(&mut self, now: Timestamp, class: Class, bytes: usize) -> bool {
        let Some((budget, allowance)) = &mut self.bound else { return true };
        let bytes = on_the_wire(bytes);
        let reserve = if class == Class::High { 0 } else { allowance.burst / RESERVED_PART };
        let bears = budget.take_above(now, bytes, reserve);
        if bears {
            self.counted += u64::from(bytes);
        }
        bears
    }

    /// Corrects the account by the bytes that have left since the last call, with all headers:
    /// bytes that were not charged are, and bytes that were charged and did not leave are given
    /// back.
    pub(super) fn note_left(&mut self, now: Timestamp, bytes: u64) {
        let Some((budget, _)) = &mut self.bound else { return };
        let counted = std::mem::take(&mut self.counted);
        let whole = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        budget.spend(now, whole(bytes.saturating_sub(counted)));
        budget.give_back(whole(counted.saturating_sub(bytes)));
    }
}

/// Returns the bytes of a datagram with its headers.
fn on_the_wire(bytes: usize) -> u32 {
    u32::try_from(HEADERS + bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uplink(burst: u32) -> Uplink {
        Uplink::new(Some(Allowance { per_second: 1, burst }))
    }

    /// Returns how many copies of a thousand bytes the uplink takes.
    fn bears(uplink: &mut Uplink, class: Class) -> usize {
        (0..100).take_while(|_| uplink.bears_copy(Timestamp::ZERO, class, 972)).count()
    }

    #[test]
    fn control_traffic_counts_against_copies() {
        let mut uplink = uplink(10_000);
        uplink.spend(Timestamp::ZERO, 972);
        uplink.note_left(Timestamp::ZERO, 1_000 + 4_000);
        assert_eq!(bears(&mut uplink, Class::High), 5);
    }

    #[test]
    fn unsent_bytes_are_refunded() {
        let mut uplink = uplink(10_000);
        assert_eq!(bears(&mut uplink, Class::High), 10);
        uplink.note_left(Timestamp::ZERO, 7_000);
        assert_eq!(bears(&mut uplink, Class::High), 3);
    }

    #[test]
    fn last_quarter_is_reserved_for_high_priority() {
        let mut uplink = uplink(8_000);
        assert_eq!(bears(&mut uplink, Class::Normal), 6);
        assert_eq!(bears(&mut uplink, Class::High), 2);
    }
}
