//! Short delays in which datagrams gather into batches.
//!
//! Waking, reading and sending are most of the cost of a single datagram, and cost little more for
//! several. A worker that is woken for each datagram spends its CPU on that, and makes neighbours
//! wake as often. So where datagrams keep following each other closely, it pauses for a moment
//! before it waits for the next, as network cards moderate their interrupts.

use std::ops::AddAssign;

use tradewind_units::{Duration, Timestamp};

/// The delay. Chosen: that of the stream relays, and a thousandth of the packets' latency budgets.
pub(crate) const REST: Duration = Duration::from_micros(50);

/// Longest time between two drained inputs that follow each other closely. Chosen: half a delay.
const CLOSE: Duration = Duration::from_micros(25);

/// Number of inputs in a row that must follow each other closely before the first delay. Chosen: at
/// ten thousand datagrams a second, at random times, that happens less than once a second.
const IN_A_ROW: u32 = 8;

/// Least number of messages for which a delay was worth it; after one with fewer, the row starts
/// again. Chosen: waking for fewer costs little more.
const FEW: usize = 4;

/// The input of one wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fetched {
    /// Datagrams and trains of neighbours and applications.
    pub(crate) messages: usize,
    /// Set if more wait than were read at once.
    pub(crate) is_behind: bool,
}

impl AddAssign for Fetched {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.is_behind |= other.is_behind;
    }
}

/// The state that decides when a worker delays.
#[derive(Debug)]
pub(crate) struct BatchingDelay {
    /// The time at which the input was last drained.
    done: Timestamp,
    /// Number of inputs in a row that followed each other closely.
    close: u32,
    has_rested: bool,
}

impl BatchingDelay {
    pub(crate) const fn new(now: Timestamp) -> Self {
        Self { done: now, close: 0, has_rested: false }
    }

    /// Returns whether to delay now, after this input; a worker that is behind does not.
    pub(crate) fn is_due(&mut self, now: Timestamp, fetched: Fetched) -> bool {
        if fetched.messages == 0 {
            return false;
        }
        let is_close =
            if self.has_rested { fetched.messages >= FEW } else { now.since(self.done) <= CLOSE };
        self.close = if is_close { self.close.saturating_add(1) } else { 0 };
        self.done = now;
        self.has_rested = self.close >= IN_A_ROW && !fetched.is_behind;
        self.has_rested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker with its own clock, in microseconds.
    struct Worker(BatchingDelay, u64);

    impl Worker {
        fn new() -> Self {
            Self(BatchingDelay::new(Timestamp::ZERO), 0)
        }

        /// Wakes after so many microseconds for so many messages; returns whether it delays then.
        fn wakes(&mut self, after: u64, messages: usize) -> bool {
            self.fetches(after, Fetched { messages, is_behind: false })
        }

        fn fetches(&mut self, after: u64, fetched: Fetched) -> bool {
            self.1 += after;
            self.0.is_due(Timestamp::ZERO + Duration::from_micros(self.1), fetched)
        }

        /// Wakes every 25 us, until it delays.
        fn rested() -> Self {
            let mut worker = Self::new();
            assert!((1..IN_A_ROW).all(|_| !worker.wakes(25, 1)));
            assert!(worker.wakes(25, 1));
            worker
        }
    }

    #[test]
    fn delay_is_due_for_close_datagrams() {
        let mut worker = Worker::rested();
        assert!(!worker.wakes(60, 3), "a rest in vain");
        assert!((1..IN_A_ROW).all(|_| !worker.wakes(20, 1)));
        assert!(worker.wakes(20, 1));
        assert!(worker.wakes(60, 4) && worker.wakes(60, 20), "enough gathers");
    }

    #[test]
    fn single_datagrams_are_not_delayed() {
        let mut worker = Worker::new();
        assert!((0..100).all(|turn| !worker.wakes(if turn % 7 == 0 { 26 } else { 1 }, 1)));
    }

    #[test]
    fn timers_do_not_start_delay() {
        let mut worker = Worker::new();
        assert!((0..100).all(|_| !worker.wakes(20, 0) && !worker.wakes(20, 1)));
    }

    #[test]
    fn no_delay_while_behind() {
        let mut worker = Worker::rested();
        assert!(!worker.fetches(60, Fetched { messages: 40, is_behind: true }));
        assert!(worker.wakes(10, 31), "once all is fetched");
    }
}
