//! The time for which programs on hosts wait for a CPU.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tradewind_net::netns::Namespace;
use tradewind_net::periodic::Periodic;
use tradewind_net::processes::{self, CpuTimes};
use tradewind_net::{NetError, clock};
use tradewind_units::Duration;

/// The time between two looks at this process's threads: those that end are known up to the last.
/// Chosen: short beside a transfer, and less than a hundredth of a CPU.
const EVERY: Duration = Duration::from_millis(20);

/// The CPU times of the threads of this process and of those on hosts.
#[derive(Debug)]
pub(crate) struct Programs {
    namespaces: Vec<Arc<Namespace>>,
    known: Arc<Mutex<Known>>,
    _watch: Periodic,
}

/// CPU times by thread.
#[derive(Debug, Default)]
struct Known {
    before: BTreeMap<u32, CpuTimes>,
    latest: BTreeMap<u32, CpuTimes>,
}

/// The CPU time and the waits of programs during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ProgramUse {
    /// The time for which threads were ready to run and had no CPU, added up.
    pub(crate) waited: Duration,
    /// The longest time for which one thread ran or waited.
    pub(crate) busiest: Duration,
}

impl Programs {
    /// Watches this process and the programs inside `namespaces`, from now on.
    pub(crate) fn watch(namespaces: Vec<Arc<Namespace>>) -> Result<Self, NetError> {
        let known = Arc::new(Mutex::new(Known::default()));
        let watched = Arc::clone(&known);
        let look = move || {
            // It looks in time on a busy machine, too; a thread of this class is not counted.
            let _ = clock::raise_urgency();
            let times = processes::cpu_times(std::process::id());
            lock(&watched).latest.extend(times);
        };
        let watch = Periodic::start("lab-programs", EVERY, look)?;
        let programs = Self { namespaces, known, _watch: watch };
        programs.restart();
        Ok(programs)
    }

    /// Starts to count anew.
    pub(crate) fn restart(&self) {
        let now = self.look();
        *lock(&self.known) = Known { before: now.clone(), latest: now };
    }

    /// Returns what programs got since the last restart; `None` where the kernel does not count it.
    pub(crate) fn used(&self) -> Option<ProgramUse> {
        let now = self.look();
        let mut known = lock(&self.known);
        known.latest.extend(now);
        known.used()
    }

    fn look(&self) -> BTreeMap<u32, CpuTimes> {
        let others = processes::inside_any(self.namespaces.iter().map(Arc::as_ref));
        let all = others.into_iter().chain([std::process::id()]);
        all.flat_map(processes::cpu_times).collect()
    }
}

impl Known {
    fn used(&self) -> Option<ProgramUse> {
        let since = |(thread, now): (&u32, &CpuTimes)| {
            now.since(&self.before.get(thread).copied().unwrap_or_default())
        };
        let sum = |sum: ProgramUse, used: CpuTimes| ProgramUse {
            waited: sum.waited + used.waited,
            busiest: sum.busiest.max(used.ran + used.waited),
        };
        (!self.latest.is_empty())
            .then(|| self.latest.iter().map(since).fold(ProgramUse::default(), sum))
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(ran: u64, waited: u64) -> CpuTimes {
        CpuTimes { ran: Duration::from_millis(ran), waited: Duration::from_millis(waited) }
    }

    #[test]
    fn waits_since_restart_are_added_up_over_threads() {
        let known = Known {
            before: BTreeMap::from([(1, times(500, 40))]),
            latest: BTreeMap::from([(1, times(520, 45)), (2, times(60, 10))]),
        };
        let expected =
            ProgramUse { waited: Duration::from_millis(15), busiest: Duration::from_millis(70) };
        assert_eq!(known.used(), Some(expected));
        assert_eq!(Known::default().used(), None);
    }
}
