//! Whether the workers go on: each counts its ticks, of which there is one at least each `engine::TICK`. One that is stuck, or has ended,
//! counts no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often a worker has ticked.
pub(crate) type Ticks = Arc<AtomicU64>;

/// Looks at the ticks of all workers.
#[derive(Debug, Default)]
pub(crate) struct AllTicks(Vec<(Ticks, u64)>);

impl AllTicks {
    pub(crate) fn of(workers: impl IntoIterator<Item = Ticks>) -> Self {
        Self(workers.into_iter().map(|ticks| (ticks, 0)).collect())
    }

    /// Whether each worker has ticked since this was last so.
    pub(crate) fn have_all_gone_on(&mut self) -> bool {
        let now: Vec<u64> = self.0.iter().map(|(ticks, _)| ticks.load(Ordering::Relaxed)).collect();
        let goes_on = self.0.iter().zip(&now).all(|((_, before), now)| before != now);
        if goes_on {
            self.0.iter_mut().zip(now).for_each(|((_, before), now)| *before = now);
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_gone_on_when_the_last_of_them_has_ticked() {
        let workers = [Ticks::default(), Ticks::default()];
        let mut all = AllTicks::of(workers.iter().map(Arc::clone));
        let mut look = |ticking: &[usize]| {
            for worker in ticking {
                workers[*worker].fetch_add(1, Ordering::Relaxed);
            }
            all.have_all_gone_on()
        };
        assert!(!look(&[]), "none has begun");
        assert!(look(&[0, 1]));
        assert!(!look(&[]));
        assert!(!look(&[0, 0]));
        assert!(look(&[1]), "the other had before");
        assert!(!look(&[1, 1]));
    }
}
