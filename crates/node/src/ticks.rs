//! Liveness of the workers: each counts its ticks, at least one each [`TICK`]. The count of
//! one that is stuck, or has ended, stands still.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tradewind_telemetry::{Health, Heart};
use tradewind_units::Duration;

/// Interval of periodic work.
pub(crate) const TICK: Duration = Duration::from_millis(50);
/// Checks of `net::interception::Keeper` without a tick before a worker counts as hung: 1.6 s.
const QUIET_BEATS: u32 = 8;
/// Time without a tick after which the process counts as dead. Chosen: as for the workers of
/// streams.
const MAX_SILENCE: Duration = Duration::from_secs(10);

/// A worker's ticks.
pub(crate) type Ticks = Arc<Ticker>;

/// A worker's count of ticks.
#[derive(Debug, Default)]
pub(crate) struct Ticker {
    count: AtomicU64,
    heart: OnceLock<Heart>,
    has_ended: AtomicBool,
}

impl Ticker {
    /// Counts a tick; for the worker.
    pub(crate) fn tick(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.heart.get().into_iter().for_each(Heart::heartbeat);
    }

    /// Has `health` expect heartbeats of it from now on, until the last handle of the ticks is
    /// dropped.
    pub(crate) fn register_heartbeats(&self, health: &Health, number: usize) {
        let worker = format!("packets {number}");
        self.heart.get_or_init(|| health.expect_heartbeats(worker, MAX_SILENCE));
    }

    /// Marks the worker as ended; for the worker.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// A check of all workers' ticks.
#[derive(Debug, Clone, Default)]
pub(crate) struct AllTicks {
    workers: Vec<(Ticks, u64)>,
    /// Checks in a row at which a worker had not ticked.
    quiet: u32,
}

impl AllTicks {
    pub(crate) fn of(workers: impl IntoIterator<Item = Ticks>) -> Self {
        Self { workers: workers.into_iter().map(|ticks| (ticks, 0)).collect(), quiet: 0 }
    }

    /// Returns whether each worker has ticked since this was last so, and logs when one hangs.
    pub(crate) fn go_on(&mut self) -> bool {
        let goes_on = self.have_all_gone_on();
        self.quiet = if goes_on { 0 } else { self.quiet.saturating_add(1) };
        if self.quiet == QUIET_BEATS {
            tracing::warn!("a worker hangs: intercepted traffic takes its original path");
        }
        goes_on
    }

    /// Returns whether one has ended, by a bug or otherwise.
    pub(crate) fn has_one_ended(&self) -> bool {
        self.workers.iter().any(|(ticks, _)| ticks.has_ended.load(Ordering::Relaxed))
    }

    fn have_all_gone_on(&mut self) -> bool {
        let workers = &mut self.workers;
        let now: Vec<u64> = workers.iter().map(|(ticks, _)| ticks.count()).collect();
        let goes_on = workers.iter().zip(&now).all(|((_, before), now)| before != now);
        if goes_on {
            workers.iter_mut().zip(now).for_each(|((_, before), now)| *before = now);
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn all_ticks_wait_for_slowest_worker() {
        let workers = [Ticks::default(), Ticks::default()];
        let mut all = AllTicks::of(workers.iter().map(Arc::clone));
        let mut look = |ticking: &[usize]| {
            for worker in ticking {
                workers[*worker].tick();
            }
            all.have_all_gone_on()
        };
        assert!(!look(&[]), "none has begun");
        assert!(look(&[0, 1]));
        assert!(!look(&[]));
        assert!(!look(&[0, 0]));
        assert!(look(&[1]), "the other had before");
        assert!(!look(&[1, 1]));
        let all = AllTicks::of(workers.iter().map(Arc::clone));
        assert!(!all.has_one_ended());
        workers[1].end();
        assert!(all.has_one_ended());
    }

    #[test]
    fn hung_worker_fails_liveness() {
        let (health, ticks) = (Health::new(), Ticks::default());
        ticks.register_heartbeats(&health, 0);
        let later = Instant::now() + MAX_SILENCE + MAX_SILENCE;
        let fault = health.live_at(later).unwrap_err();
        assert!(fault.starts_with("packets 0: no heartbeat"), "{fault}");
        drop(ticks);
        assert_eq!(health.live_at(later), Ok(()));
    }
}
