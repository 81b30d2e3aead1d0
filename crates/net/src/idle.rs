//! CPUs kept awake, so that timers are served on time.
//!
//! An idle CPU halts, and a virtual one is then given back to its host, which takes a while to wake
//! it: some 50 to 100 us, and milliseconds where the host is short of CPUs. So during measurements
//! each CPU has a thread that spins when no other wants to run (SCHED_IDLE): it yields at once,
//! needs no privileges, and costs power.

use std::fs;
use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tradewind_units::{Duration, Timestamp};

use crate::error::{NetError, Result};
use crate::{affinity, clock};

/// The file with a container's limit on CPU time; the root of a machine has none.
const QUOTA: &str = "/sys/fs/cgroup/cpu.max";
/// Spins between two reads of the clock. Chosen: some 50 us, so that the cost of a read does not
/// count.
const SPINS: u32 = 1000;
/// Sleep of a thread that need not keep its CPU awake. Chosen: as long as a CPU may be late at
/// first.
const NAP: Duration = Duration::from_millis(5);

/// A handle that keeps the CPUs of this process awake on request, by [`Self::keep_awake_until`].
#[derive(Debug)]
pub struct WakefulCpus {
    orders: Arc<Orders>,
}

/// The state shared with the spinning threads: their orders, and the time that they have spun.
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
    /// When CPU time is limited, so that spinning would take it from working threads, and when
    /// threads cannot be started.
    pub fn hold() -> Result<Self> {
        if fs::read_to_string(QUOTA).is_ok_and(|quota| !quota.starts_with("max")) {
            let kernel_feature = "CPU time to spare";
            return Err(NetError::Unsupported {
                kernel_feature,
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
                .spawn(move || orders.run(cpu, &orders.spun_ns[index]))
                .map_err(|e| NetError::system("start a thread that keeps a CPU awake", e))?;
        }
        Ok(wakeful)
    }

    /// Keeps the CPUs awake until then; an earlier time than the current one changes nothing.
    pub fn keep_awake_until(&self, until: Timestamp) {
        self.orders.until_ns.fetch_max(until.as_nanos(), Ordering::Relaxed);
    }

    /// Returns the CPU time spent on keeping awake so far, all CPUs together.
    #[must_use]
    pub fn spun(&self) -> Duration {
        let nanos = self.orders.spun_ns.iter().map(|spun| spun.load(Ordering::Relaxed)).sum();
        Duration::from_nanos(nanos)
    }
}

impl Drop for WakefulCpus {
    /// Does not wait for the threads to end: while others use all CPUs, that may take half a
    /// minute.
    fn drop(&mut self) {
        self.orders.is_over.store(true, Ordering::Relaxed);
    }
}

impl Orders {
    /// Runs the thread of a CPU. One that cannot get SCHED_IDLE, or stay on its CPU, must not spin
    /// and ends.
    fn run(&self, cpu: usize, spun_ns: &AtomicU64) {
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
    fn cpus_are_kept_awake_on_request() {
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
        // A thread that cannot get SCHED_IDLE, or stay on its CPU, has ended.
        let most = 2 + affinity::allowed().unwrap().len();
        assert!((3..=most).contains(&Arc::strong_count(&orders)));
        assert!(wakeful.spun() <= clock::process_cpu());
        drop(wakeful);
        while Arc::strong_count(&orders) > 1 {
            clock::sleep_until(clock::monotonic() + Duration::from_millis(1)).unwrap();
        }
    }
}
