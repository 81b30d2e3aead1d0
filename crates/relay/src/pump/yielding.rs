//! Lets data gather: a worker gives way after bulky moves.
//!
//! Where others wait for its CPU it yields: they run, and make more of what it moves next. Where
//! none does it rests for a moment ([`Rests`]).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::rests::{Rests, Whose};

/// A yield that took longer has let others run. Chosen: well above what the call alone takes, far
/// below a slice of the scheduler's, which is about a millisecond.
const OTHERS_RAN: Duration = Duration::from_micros(5);

/// How a worker gives way. Only its own thread asks.
#[derive(Debug, Default)]
pub(crate) struct Yielding {
    rests: Rests,
    /// Bulky moves so far.
    moves: AtomicU64,
}

impl Yielding {
    /// Gives way after a bulky move of a direction, whose last one was the worker's `last`;
    /// `is_behind` tells whether as much waits as was moved. True when others have run, or data had
    /// time to gather.
    pub(super) fn moved(&self, last: &mut u64, is_behind: impl FnOnce() -> bool) -> bool {
        let whose = self.whose(last);
        let begin = Instant::now();
        thread::yield_now();
        begin.elapsed() >= OTHERS_RAN || self.rests.after_move(whose, is_behind)
    }

    /// Whether other directions have made bulky moves since the direction's last one.
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
    fn who_moves_again_before_any_other_is_alone() {
        let yielding = Yielding::default();
        let (mut first, mut second) = (0, 0);
        assert_eq!(yielding.whose(&mut first), Whose::Alone);
        assert_eq!(yielding.whose(&mut first), Whose::Alone);
        assert_eq!(yielding.whose(&mut second), Whose::InTurns);
        assert_eq!(yielding.whose(&mut first), Whose::InTurns);
        assert_eq!(yielding.whose(&mut first), Whose::Alone);
    }
}
