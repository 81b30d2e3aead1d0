//! Moments of rest in which datagrams gather.
//!
//! To wake, to ask for datagrams and to send them takes most of what single datagrams cost, and
//! little more for several of them. A worker that is woken for each spends its CPU on that, and has
//! neighbours wake as often. Where datagrams keep following each other closely it therefore rests
//! for a moment before it waits for the next, as network cards moderate their interrupts.

use std::ops::AddAssign;

use tradewind_units::{Duration, Timestamp};

/// How long a rest is. Chosen: as relays of streams rest, and a thousandth of the latency budgets
/// that packets have.
pub(crate) const REST: Duration = Duration::from_micros(50);

/// From one time that nothing was left to the next: longer ones do not follow each other closely.
/// Chosen: half a rest.
const CLOSE: Duration = Duration::from_micros(25);

/// Times in a row that must have followed each other closely before the first rest. Chosen: at ten
/// thousand datagrams a second, at random times, that happens less than once a second.
const IN_A_ROW: u32 = 8;

/// Messages that gather in a rest at least, or it was in vain, and the next is a row away. Chosen:
/// waking for fewer costs little more.
const FEW: usize = 4;

/// What was fetched when a worker woke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fetched {
    /// Datagrams and trains of neighbours and applications.
    pub(crate) messages: usize,
    /// Whether more wait than were fetched at once.
    pub(crate) is_behind: bool,
}

impl AddAssign for Fetched {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.is_behind |= other.is_behind;
    }
}

/// When a worker rests.
#[derive(Debug)]
pub(crate) struct Rests {
    /// When it had fetched all before.
    done: Timestamp,
    /// Times in a row that followed each other closely.
    close: u32,
    has_rested: bool,
}

impl Rests {
    pub(crate) const fn new(now: Timestamp) -> Self {
        Self { done: now, close: 0, has_rested: false }
    }

    /// Whether to rest now, that this was fetched; who is behind goes on.
    pub(crate) fn is_due(&mut self, now: Timestamp, fetched: Fetched) -> bool {
        if fetched.messages == 0 {
            return false;
        }
        let is_close = match self.has_rested {
            true => fetched.messages >= FEW,
            false => now.since(self.done) <= CLOSE,
        };
        self.close = if is_close { self.close.saturating_add(1) } else { 0 };
        self.done = now;
        self.has_rested = self.close >= IN_A_ROW && !fetched.is_behind;
        self.has_rested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker with its own time, in microseconds.
    struct Worker(Rests, u64);

    impl Worker {
        fn new() -> Self {
            Self(Rests::new(Timestamp::ZERO), 0)
        }

        /// Wakes after so many microseconds for so many messages; whether it rests then.
        fn wakes(&mut self, after: u64, messages: usize) -> bool {
            self.told(after, Fetched { messages, is_behind: false })
        }

        fn told(&mut self, after: u64, fetched: Fetched) -> bool {
            self.1 += after;
            self.0.is_due(Timestamp::ZERO + Duration::from_micros(self.1), fetched)
        }

        /// Wakes each 25 us, until it rests.
        fn rested() -> Self {
            let mut worker = Self::new();
            assert!((1..IN_A_ROW).all(|_| !worker.wakes(25, 1)));
            assert!(worker.wakes(25, 1));
            worker
        }
    }

    #[test]
    fn rests_are_due_while_datagrams_follow_each_other_closely() {
        let mut worker = Worker::rested();
        assert!(!worker.wakes(60, 3), "a rest in vain");
        assert!((1..IN_A_ROW).all(|_| !worker.wakes(20, 1)));
        assert!(worker.wakes(20, 1));
        assert!(worker.wakes(60, 4) && worker.wakes(60, 20), "enough gathers");
    }

    #[test]
    fn datagrams_by_themselves_wait_for_nothing() {
        let mut worker = Worker::new();
        assert!((0..100).all(|turn| !worker.wakes(if turn % 7 == 0 { 26 } else { 1 }, 1)));
    }

    #[test]
    fn timers_are_no_datagrams() {
        let mut worker = Worker::new();
        assert!((0..100).all(|_| !worker.wakes(20, 0) && !worker.wakes(20, 1)));
    }

    #[test]
    fn who_is_behind_does_not_rest() {
        let mut worker = Worker::rested();
        assert!(!worker.told(60, Fetched { messages: 40, is_behind: true }));
        assert!(worker.wakes(10, 31), "once all is fetched");
    }
}
