//! CPUs kept awake, so that whoever must act on time does.
//!
//! A CPU that has nothing to do halts, and a virtual one is then given back to its host, which takes its time to
//! wake it: some 50 to 100 us, and milliseconds where the host is short of CPUs. So while something is measured, each CPU has
//! a thread that spins when nobody else wants to run (SCHED_IDLE): it makes way at once, needs no rights, and costs power.

use std::fs;
use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tradewind_units::{Duration, Timestamp};

use crate::error::{NetError, Result};
use crate::{affinity, clock};

/// Where a container sees its limit on CPU time; a machine's own root has no such file.
const QUOTA: &str = "/sys/fs/cgroup/cpu.max";
/// Spins between two looks at the clock. Chosen: some 50 us, so that a look's cost does not count.
const SPINS: u32 = 1000;
/// How long a thread sleeps that need not keep its CPU awake. Chosen: as long as a CPU may be late at first.
const NAP: Duration = Duration::from_millis(5);

/// While this lives, the CPUs that this process may use can be kept awake by [`Self::keep_awake_until`].
#[derive(Debug)]
pub struct WakefulCpus {
    orders: Arc<Orders>,
}

/// What the spinning threads are told, and what they tell.
#[derive(Debug)]
struct Orders {
    until_ns: AtomicU64,
    is_over: AtomicBool,
    spun_ns: Vec<AtomicU64>,
}

impl WakefulCpus {
    /// Starts a thread for each CPU that the calling thread may use.
    ///
    /// # Errors
    /// Where CPU time is rationed, so that spinning would take from those who work, and when threads cannot be started.
    pub fn hold() -> Result<Self> {
        if fs::read_to_string(QUOTA).is_ok_and(|quota| !quota.starts_with("max")) {
            let ability = "CPU time to spare";
            return Err(NetError::Unsupported {
                ability,
                needs: "a control group without cpu.max",
            });
        }
        let cpus = affinity::allowed()?;
        let orders = Arc::new(Orders {
            until_ns: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            spun_ns: cpus.iter().map(|_| AtomicU64::new(0)).collect(),
        });
        let wakeful = Self { orders };
        for (index, cpu) in cpus.into_iter().enumerate() {
            let orders = wakeful.orders.clone();
            let _detached = thread::Builder::new()
                .name(format!("awake-{cpu}"))
                .spawn(move || orders.obey(cpu, &orders.spun_ns[index]))
                .map_err(|e| NetError::system("start a thread that keeps a CPU awake", e))?;
        }
        Ok(wakeful)
    }

    /// Keeps the CPUs awake until then; an earlier time than what is set changes nothing.
    pub fn keep_awake_until(&self, until: Timestamp) {
        self.orders.until_ns.fetch_max(until.as_nanos(), Ordering::Relaxed);
    }

    /// The CPU time that went into keeping awake so far, all CPUs together.
    #[must_use]
    pub fn spun(&self) -> Duration {
        let nanos = self.orders.spun_ns.iter().map(|spun| spun.load(Ordering::Relaxed)).sum();
        Duration::from_nanos(nanos)
    }
}

impl Drop for WakefulCpus {
    /// Nobody waits for the threads to end: while others want all of the CPUs theirs may be half a minute away.
    fn drop(&mut self) {
        self.orders.is_over.store(true, Ordering::Relaxed);
    }
}

impl Orders {
    /// A CPU's thread. One that cannot stand back, or not stay on its CPU, must not spin and ends.
    fn obey(&self, cpu: usize, spun_ns: &AtomicU64) {
        if !clock::stand_back() || affinity::restrict(&[cpu]).is_err() {
            return;
        }
        while !self.is_over.load(Ordering::Relaxed) {
            let now = clock::monotonic();
            if now.as_nanos() < self.until_ns.load(Ordering::Relaxed) {
                (0..SPINS).for_each(|_| hint::spin_loop());
            } else {
                // A signal that ends the nap early does no harm.
                let _ = clock::sleep_until(now + NAP);
            }
            let used = u64::try_from(clock::thread_cpu().as_nanos()).unwrap_or(u64::MAX);
            spun_ns.store(used, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_kept_awake_when_asked() {
        let Ok(wakeful) = WakefulCpus::hold() else {
            crate::skipped("idle: CPU time is rationed here");
            return;
        };
        let begun = clock::monotonic();
        wakeful.keep_awake_until(begun + Duration::from_secs(3600));
        while wakeful.spun() < Duration::from_millis(5) {
            clock::sleep_until(clock::monotonic() + Duration::from_millis(1)).unwrap();
        }
        let orders = Arc::clone(&wakeful.orders);
        // One that may not stand back, or not stay on its CPU, has ended.
        let most = 2 + affinity::allowed().unwrap().len();
        assert!((3..=most).contains(&Arc::strong_count(&orders)));
        assert!(wakeful.spun() <= clock::process_cpu());
        drop(wakeful);
        while Arc::strong_count(&orders) > 1 {
            clock::sleep_until(clock::monotonic() + Duration::from_millis(1)).unwrap();
        }
    }
}
