//! Batching delays, in which data gathers.
//!
//! The cost of a move depends little on its length. A worker that moves each piece as it arrives
//! spends its CPU, and that of the processes it serves, on many small moves. When bulky moves
//! follow each other closely it therefore pauses for a moment between them, like the interrupt
//! moderation of network cards.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The length of a delay. Chosen: 50 kB gather at 8 Gbit/s, and the added latency is negligible.
/// Measured by `bench/relay`: 100 us save a little more CPU and gain no throughput, 20 us save a
/// quarter to a third less.
const BATCHING_DELAY: Duration = Duration::from_micros(50);

/// Longest time from the end of one move to the end of the next at which they follow each other
/// closely. Chosen: four delays.
const CLOSE: Duration = Duration::from_micros(200);

/// The batching delays of a worker. Only that worker uses them.
#[derive(Debug)]
pub(super) struct BatchingDelay {
    born: Instant,
    /// The ends of the last move, with its delay, and of the last delay, in nanoseconds after
    /// `born`.
    moved: AtomicU64,
    rested: AtomicU64,
}

impl Default for BatchingDelay {
    fn default() -> Self {
        Self { born: Instant::now(), moved: AtomicU64::new(0), rested: AtomicU64::new(0) }
    }
}

impl BatchingDelay {
    /// Pauses after a move, if one is due, and unless `is_behind` says that the worker is behind:
    /// that as much data waits as it has just moved. Returns true if it has paused.
    ///
    /// When several directions take turns the worker pauses no longer than it works, so that they
    /// wait for each other at most twice as long as without delays.
    ///
    /// A delay is that short only if [`tradewind_net::clock::sharpen_timers`] was called.
    pub(super) fn after_move(&self, whose: Whose, is_behind: impl FnOnce() -> bool) -> bool {
        let batching = self.is_due(self.born.elapsed(), whose) && !is_behind();
        if batching {
            thread::sleep(BATCHING_DELAY);
            self.note(&self.rested);
        }
        self.note(&self.moved);
        batching
    }

    fn is_due(&self, now: Duration, whose: Whose) -> bool {
        let since = |at: &AtomicU64| now.saturating_sub(Duration::from_nanos(at.load(Relaxed)));
        let has_worked = whose == Whose::Alone || since(&self.rested) >= BATCHING_DELAY;
        has_worked && since(&self.moved) <= CLOSE
    }

    fn note(&self, at: &AtomicU64) {
        at.store(self.born.elapsed().as_nanos() as u64, Relaxed);
    }
}

/// The directions whose moves a worker makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// Those of one direction.
    Alone,
    /// Those of several directions, in turns.
    InTurns,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the delays of a worker whose last move and delay ended at these times, in
    /// microseconds.
    fn after(moved: u64, rested: u64) -> BatchingDelay {
        let [moved, rested] = [moved, rested].map(|micros| AtomicU64::new(1000 * micros));
        BatchingDelay { moved, rested, ..BatchingDelay::default() }
    }

    #[test]
    fn close_moves_are_batched() {
        let at = Duration::from_micros;
        for whose in [Whose::Alone, Whose::InTurns] {
            assert!(!after(1000, 500).is_due(at(1201), whose), "a move by itself");
            assert!(after(1000, 500).is_due(at(1200), whose));
        }
    }

    #[test]
    fn pause_is_no_longer_than_the_work() {
        let at = Duration::from_micros;
        assert!(after(1000, 1000).is_due(at(1001), Whose::Alone));
        assert!(!after(1000, 1000).is_due(at(1049), Whose::InTurns));
        assert!(after(1000, 1000).is_due(at(1050), Whose::InTurns));
    }

    #[test]
    fn lagging_worker_does_not_pause() {
        // A move that is over at the end of time is close to the next one, however slow the
        // machine.
        let close = || after(u64::MAX / 1000, 0);
        let behind = close();
        assert!(!behind.after_move(Whose::Alone, || true));
        assert_eq!(behind.rested.into_inner(), 0);

        let batching = close();
        let begin = batching.born.elapsed();
        assert!(batching.after_move(Whose::Alone, || false));
        let [rested, moved] = [batching.rested, batching.moved].map(AtomicU64::into_inner);
        assert!(Duration::from_nanos(rested) >= begin + BATCHING_DELAY);
        assert!(moved >= rested);
    }
}
