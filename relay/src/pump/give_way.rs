//! Lets data gather while others want the CPU.
//!
//! What a move costs depends little on how much it moves. A worker that shares its CPU with those it serves would take each
//! bit as it comes, and leave them no time to make more of it. So after a bulky move it yields: where others wait they run, and
//! the next moves find more; where none does, that is a short system call, soon made seldom.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// A yield that took longer has let others run. Chosen: well above what the call alone takes, far below a slice of the
/// scheduler's, which is about a millisecond.
const OTHERS_RAN: Duration = Duration::from_micros(5);

/// Most bulky moves between two yields while nobody wants the CPU. Chosen: 33 MB in the largest moves, 34 ms at 8 Gbit/s.
const MOST_SKIPPED: u32 = 63;

/// When a worker yields next. Only its own thread asks.
#[derive(Debug, Default)]
pub(crate) struct GiveWay {
    /// Bulky moves until then.
    left: AtomicU32,
    /// Bulky moves between the last yield and the next one.
    skipped: AtomicU32,
}

impl GiveWay {
    /// Yields after a bulky move, if it is time to. True when others have run.
    pub(super) fn moved(&self) -> bool {
        if !self.is_due() {
            return false;
        }
        let begin = Instant::now();
        thread::yield_now();
        self.judge(begin.elapsed())
    }

    fn is_due(&self) -> bool {
        let left = self.left.load(Relaxed);
        self.left.store(left.saturating_sub(1), Relaxed);
        left == 0
    }

    /// Whether others have run in a yield that took so long: each one for nothing doubles the number of moves until the next.
    fn judge(&self, away: Duration) -> bool {
        let others_ran = away >= OTHERS_RAN;
        let skipped = match others_ran {
            true => 0,
            false => (2 * self.skipped.load(Relaxed) + 1).min(MOST_SKIPPED),
        };
        self.skipped.store(skipped, Relaxed);
        self.left.store(skipped, Relaxed);
        others_ran
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many moves each of `yields` comes, where each takes `away`.
    fn gaps(give_way: &GiveWay, away: Duration, yields: usize) -> Vec<u32> {
        let gap = |_| {
            let waited = (1..).find(|_| give_way.is_due()).unwrap();
            give_way.judge(away);
            waited
        };
        (0..yields).map(gap).collect()
    }

    #[test]
    fn yields_become_rare_while_nobody_wants_the_cpu_and_frequent_once_somebody_does() {
        let give_way = GiveWay::default();
        let (at_once, longer) = (Duration::from_nanos(400), Duration::from_micros(80));
        assert_eq!(gaps(&give_way, at_once, 9), [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(gaps(&give_way, longer, 4), [64, 1, 1, 1]);
        assert_eq!(gaps(&give_way, at_once, 3), [1, 2, 4]);
    }
}
