//! Yielding: a worker lets data gather after bulky moves.
//!
//! If other threads wait for its CPU it yields: they run, and produce more of the data that it
//! moves next. If none does it pauses for a moment ([`BatchingDelay`]).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::batching::{BatchingDelay, Whose};

/// A yield that took longer has let others run. Chosen: well above what the call alone takes,
/// remote below a slice of the scheduler's, which is about a millisecond.
const OTHERS_RAN: Duration = Duration::from_micros(5);

/// The yielding of a worker. Only its own thread uses it.
#[derive(Debug, Default)]
pub(crate) struct Yielding {
    batching: BatchingDelay,
    /// Bulky moves so far.
    moves: AtomicU64,
}

impl Yielding {
    /// Yields after a bulky move of a direction, whose previous one had the worker's number `last`;
    /// `is_behind` tells if as much data waits as was moved. Returns true if others have run, or
    /// data had time to gather.
    pub(super) fn moved(&self, last: &mut u64, is_behind: impl FnOnce() -> bool) -> bool {
        let whose = self.whose(last);
        let begin = Instant::now();
        thread::yield_now();
        begin.elapsed() >= OTHERS_RAN || self.batching.after_move(whose, is_behind)
    }

    /// Returns [`Whose::InTurns`] if other directions have made bulky moves since the direction's
    /// last one.
    fn whose(&self, last: &mut u64) -> Whose {
        let number = self.moves.fetch_add(1, Relaxed) + 1;
        match number.wrapping_sub(std::mem::replace(last, number)) {
            1 => Whose::Alone,
            _ => Whose::InTurns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_mover_is_alone() {
        let yielding = Yielding::default();
        let (mut first, mut second) = (0, 0);
        assert_eq!(yielding.whose(&mut first), Whose::Alone);
        assert_eq!(yielding.whose(&mut first), Whose::Alone);
        assert_eq!(yielding.whose(&mut second), Whose::InTurns);
        assert_eq!(yielding.whose(&mut first), Whose::InTurns);
        assert_eq!(yielding.whose(&mut first), Whose::Alone);
    }
}
