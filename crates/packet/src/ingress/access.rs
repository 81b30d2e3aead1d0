//! Arrivals of one sender's copies, and when to acknowledge them.

use tradewind_units::Timestamp;

use super::Acknowledging;
use crate::message::{ACKNOWLEDGED_WORDS, Acknowledgement};
use crate::window::{Seen, Window};

/// Copies that an acknowledgement covers beyond its first gap.
const ACKNOWLEDGED: u64 = 64 * ACKNOWLEDGED_WORDS as u64;
/// Unacknowledged copies after which an acknowledgement is sent without waiting for the rest of the
/// batch. Chosen: half of what one covers, so that a gap is reported before more copies than that
/// follow it.
const MAX_UNACKNOWLEDGED: u8 = (ACKNOWLEDGED / 2) as u8;

/// One sender's copies.
#[derive(Debug, Clone)]
pub(crate) struct Arrivals {
    window: Window,
    /// The first copy that has not come and is waited for.
    next: u64,
    /// One beyond the highest copy that has come.
    end: u64,
    /// Copies that have come since the last acknowledgement.
    unacknowledged: u8,
    due: Option<Timestamp>,
    /// Set when the caller knows that an acknowledgement is due before the next send.
    is_reported: bool,
}

/// When to acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AckDue {
    /// Immediately, before the rest of the batch.
    AtOnce,
    /// Before anything is sent.
    Now,
    /// When a timer set for that time goes off.
    At(Timestamp),
    /// The caller knows already.
    Later,
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Self {
            window: Window::new(),
            next: 0,
            end: 0,
            unacknowledged: 0,
            due: None,
            is_reported: false,
        }
    }

    /// Returns one beyond the highest copy that has come.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Takes a copy; returns `false` when it came before, or is not waited for any more.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        if self.window.look(number) != Seen::New {
            return false;
        }
        self.window.insert(number);
        self.end = self.end.max(number + 1);
        // Copies that no acknowledgement can cover any more are not waited for.
        self.next = self.next.max(self.end.saturating_sub(ACKNOWLEDGED));
        while self.next < self.end && self.window.look(self.next) != Seen::New {
            self.next += 1;
        }
        true
    }

    /// Notes a copy that is to be acknowledged; returns when.
    pub(super) fn note_unacknowledged(
        &mut self,
        now: Timestamp,
        acknowledging: &Acknowledging,
        is_again: bool,
    ) -> AckDue {
        self.unacknowledged = self.unacknowledged.saturating_add(1);
        if self.unacknowledged >= MAX_UNACKNOWLEDGED {
            return AckDue::AtOnce;
        }
        if is_again || self.next < self.end || self.unacknowledged >= acknowledging.every {
            let was_reported = std::mem::replace(&mut self.is_reported, true);
            return if was_reported { AckDue::Later } else { AckDue::Now };
        }
        if self.is_reported || self.due.is_some() {
            return AckDue::Later;
        }
        let due = now + acknowledging.within;
        self.due = Some(due);
        AckDue::At(due)
    }

    /// Returns whether the timer set for `at` is still valid.
    pub(super) fn is_due(&mut self, at: Timestamp) -> bool {
        if self.due != Some(at) {
            return false;
        }
        self.due = None;
        self.has_unacknowledged()
    }

    /// Returns whether an acknowledgement is to be sent before what is about to be sent.
    pub(super) fn take_reported(&mut self) -> bool {
        self.is_reported = false;
        self.has_unacknowledged()
    }

    /// Returns whether a copy has come since the last acknowledgement.
    fn has_unacknowledged(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Returns the acknowledgement for the sender.
    pub(super) fn acknowledge(&mut self) -> Acknowledgement {
        self.unacknowledged = 0;
        let has_come = |number: &u64| self.window.look(*number) == Seen::Before;
        Acknowledgement::of(self.next, (self.next + 1..self.end).filter(has_come))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn acknowledged_copies_have_arrived(
            numbers in prop::collection::vec(0..600_u64, 1..100),
        ) {
            let mut arrivals = Arrivals::new();
            let mut came = BTreeSet::new();
            for number in numbers {
                if arrivals.insert(number) {
                    prop_assert!(came.insert(number));
                }
                came.insert(number);
                let seen = arrivals.acknowledge();
                let end = came.last().unwrap() + 1;
                prop_assert_eq!(seen.end(), end);
                for number in 0..end {
                    let is_old = number < end.saturating_sub(ACKNOWLEDGED);
                    let expected = came.contains(&number) || is_old;
                    prop_assert_eq!(seen.has(number), expected, "{} of {}", number, end);
                }
            }
        }
    }
}
