//! Rate limits of log lines that others can cause: a few are logged, the rest is counted.
//!
//! An unauthenticated peer, a tenant or a health check can make a process log the same line as
//! often as it likes. Such lines have a limit, of which each cause gets a share (`units::share`);
//! the next line that is logged tells how many were left out before it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tradewind_units::{SharedRate, Timestamp};

/// Lines in each [`WINDOW`]. Chosen: few enough for any log; one cause alone gets half of them.
const LINES: usize = 20;
/// Span in which lines are counted.
const WINDOW: Duration = Duration::from_secs(10);

/// Number of lines that this process has left out, whatever their cause.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Returns the number of lines that this process has left out.
pub(crate) fn left_out() -> u64 {
    LEFT_OUT.load(Relaxed)
}

/// A limit of log lines by cause; use it with [`limited!`](crate::limited).
#[derive(Debug)]
pub struct LogLimit<K> {
    begin: Instant,
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    rate: SharedRate<K>,
    left_out: u64,
}

impl<K: Ord> LogLimit<K> {
    /// Creates an unused limit.
    #[must_use]
    pub fn new() -> Self {
        Self::of(LINES, WINDOW)
    }

    /// Creates one of `lines` in each `window`, of which one cause alone gets half.
    #[must_use]
    pub fn of(lines: usize, window: Duration) -> Self {
        let state = State { rate: SharedRate::new(lines, window), left_out: 0 };
        Self { begin: Instant::now(), state: Mutex::new(state) }
    }

    /// Returns the lines that were left out before one that is logged whatever the limit.
    pub fn admit_always(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut state.left_out)
    }

    /// Counts lines as left out that were admitted and not written.
    pub fn give_back(&self, left_out: u64) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).left_out += left_out;
    }

    /// Returns the number of lines left out before this one, which `cause` caused; `None` when this
    /// one is to be left out as well.
    pub fn admit(&self, cause: K) -> Option<u64> {
        self.admit_at(Timestamp::ZERO + self.begin.elapsed(), cause)
    }

    fn admit_at(&self, now: Timestamp, cause: K) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.rate.take(now, cause) {
            return Some(std::mem::take(&mut state.left_out));
        }
        state.left_out += 1;
        LEFT_OUT.fetch_add(1, Relaxed);
        None
    }
}

impl<K: Ord> Default for LogLimit<K> {
    fn default() -> Self {
        Self::new()
    }
}

/// Logs a line, with `$level` and arguments as in `tracing`, if the limit admits it for its cause,
/// with the number of lines left out before it (`left_out`); otherwise only at debug level.
#[macro_export]
macro_rules! limited {
    ($level:ident, $limit:expr, $cause:expr, $($line:tt)+) => {
        match $limit.admit($cause) {
            None => $crate::tracing::debug!($($line)+),
            Some(0) => $crate::tracing::$level!($($line)+),
            Some(left_out) => $crate::tracing::$level!(left_out, $($line)+),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn one_cause_cannot_fill_the_log() {
        let limit = LogLimit::new();
        let admitted = (0..10_000).filter(|_| limit.admit_at(at(1), "flood").is_some()).count();
        assert_eq!(admitted, LINES / 2);
        assert_eq!(limit.admit_at(at(1), "other"), Some(10_000 - LINES as u64 / 2));
        assert_eq!(limit.admit_at(at(1), "other"), Some(0));
        assert_eq!(limit.admit_at(at(2), "flood"), None);
        assert_eq!(limit.admit_at(at(11), "flood"), Some(1));
        assert!(left_out() >= 9_991);
    }
}
