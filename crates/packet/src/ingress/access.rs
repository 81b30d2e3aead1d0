//! Which copies of one sender have come, and when to say so.

use tradewind_units::Timestamp;

use super::Acknowledging;
use crate::message::{ACKNOWLEDGED_WORDS, Acknowledgement};
use crate::window::{Seen, Window};

/// Copies that an acknowledgement tells beyond its first gap.
const TOLD: u64 = 64 * ACKNOWLEDGED_WORDS as u64;
/// Copies after which one does not wait for others that come together with them. Chosen: half of
/// what it can tell, so that a gap is told before what comes behind it is more than that.
const MOST_OWED: u8 = (TOLD / 2) as u8;

/// One sender's copies.
#[derive(Debug, Clone)]
pub(crate) struct Arrivals {
    window: Window,
    /// The first that has not come and is waited for.
    next: u64,
    /// One beyond the highest that has come.
    end: u64,
    /// Copies that came since the last acknowledgement.
    owed: u8,
    due: Option<Timestamp>,
    /// That an acknowledgement is owed now was told, and nothing was sent since.
    is_told: bool,
}

/// When to acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owed {
    /// Now, whatever else comes together with this.
    AtOnce,
    /// Before anything is sent.
    Now,
    /// Set a timer for then.
    At(Timestamp),
    /// That was told already.
    Later,
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Self { window: Window::new(), next: 0, end: 0, owed: 0, due: None, is_told: false }
    }

    /// One beyond the highest that has come.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Takes a copy; `false` when it came before, or is not waited for any more.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        if self.window.look(number) != Seen::New {
            return false;
        }
        self.window.insert(number);
        self.end = self.end.max(number + 1);
        // What no acknowledgement can tell any more is not waited for.
        self.next = self.next.max(self.end.saturating_sub(TOLD));
        while self.next < self.end && self.window.look(self.next) != Seen::New {
            self.next += 1;
        }
        true
    }

    /// Something came that is to be acknowledged.
    pub(super) fn owe(
        &mut self,
        now: Timestamp,
        acknowledging: &Acknowledging,
        is_again: bool,
    ) -> Owed {
        self.owed = self.owed.saturating_add(1);
        if self.owed >= MOST_OWED {
            return Owed::AtOnce;
        }
        if is_again || self.next < self.end || self.owed >= acknowledging.every {
            let was_told = std::mem::replace(&mut self.is_told, true);
            return if was_told { Owed::Later } else { Owed::Now };
        }
        if self.is_told || self.due.is_some() {
            return Owed::Later;
        }
        let due = now + acknowledging.within;
        self.due = Some(due);
        Owed::At(due)
    }

    /// Whether the timer that was set for `at` still counts.
    pub(super) fn is_due(&mut self, at: Timestamp) -> bool {
        if self.due != Some(at) {
            return false;
        }
        self.due = None;
        self.owes()
    }

    /// Something is about to be sent; whether an acknowledgement is to go first.
    pub(super) fn settle(&mut self) -> bool {
        self.is_told = false;
        self.owes()
    }

    /// Whether something came since the last acknowledgement.
    fn owes(&self) -> bool {
        self.owed > 0
    }

    /// What to tell the sender.
    pub(super) fn acknowledge(&mut self) -> Acknowledgement {
        self.owed = 0;
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
        fn what_is_acknowledged_has_come_or_is_long_past(
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
                    let expected = came.contains(&number) || number < end.saturating_sub(TOLD);
                    prop_assert_eq!(seen.has(number), expected, "{} of {}", number, end);
                }
            }
        }
    }
}
