//! The monotonic clock, CPU clocks, and the scheduling of this thread.

use tradewind_units::{Duration, Timestamp};

use crate::error::{NetError, Result};

/// Reads a kernel clock, in nanoseconds.
fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec, and all clocks passed here exist on every Linux.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert!(status == 0, "a clock that every Linux has");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the time since this machine's boot (CLOCK_MONOTONIC), the same in every network
/// namespace.
#[must_use]
pub fn monotonic() -> Timestamp {
    Timestamp::from_nanos(read(libc::CLOCK_MONOTONIC))
}

/// Returns the CPU time that the calling thread has used.
#[must_use]
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(read(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// Returns the kernel's number of the calling thread, as `/proc/self/task` has it.
#[must_use]
pub fn thread_number() -> u32 {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::gettid() }.unsigned_abs()
}

/// Returns the CPU time that all threads of this process have used.
#[must_use]
pub fn process_cpu() -> Duration {
    Duration::from_nanos(read(libc::CLOCK_PROCESS_CPUTIME_ID))
}

/// Sets this thread's timer slack to 1 ns, so that the kernel fires its timers on time instead of
/// grouping them.
pub fn sharpen_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes one number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64) };
}

/// The scheduling class of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// SCHED_FIFO: ahead of all ordinary threads.
    RealTime,
    /// nice -20: the largest share among ordinary threads.
    Nice,
    /// The default.
    Ordinary,
}

/// Priority among real-time threads. Chosen: above none of this workspace.
const REAL_TIME_PRIORITY: libc::c_int = 20;

/// Raises the priority of the calling thread as far as this process may; returns the class reached.
#[must_use]
pub fn raise_urgency() -> Urgency {
    // SCHED_RESET_ON_FORK: children and threads started from here are ordinary again.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    if set_scheduler(policy, REAL_TIME_PRIORITY) {
        return Urgency::RealTime;
    }
    // SAFETY: plain numbers; who 0 is the calling thread on Linux.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } == 0 {
        return Urgency::Nice;
    }
    Urgency::Ordinary
}

/// Lets the calling thread run only when no other wants to (SCHED_IDLE); returns whether that is
/// set.
#[must_use]
pub fn stand_back() -> bool {
    set_scheduler(libc::SCHED_IDLE, 0)
}

/// Gives the calling thread a scheduling class and its priority there; returns whether that is set.
fn set_scheduler(policy: libc::c_int, priority: libc::c_int) -> bool {
    // By number: musl's functions of this name always fail.
    // SAFETY: pid 0 is the calling thread, and `priority`, which is all that the kernel's
    // `struct sched_param` has, lives through the call.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) == 0 }
}

/// Returns whether a thread has the scheduling class of ordinary programs.
pub(crate) fn is_ordinary(thread: u32) -> bool {
    // SAFETY: a plain number.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread as libc::pid_t) };
    let policy = policy as libc::c_int & !libc::SCHED_RESET_ON_FORK;
    [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&policy)
}

/// Sleeps until `deadline` on the monotonic clock.
///
/// # Errors
/// When a signal handler interrupts the sleep.
pub fn sleep_until(deadline: Timestamp) -> Result<()> {
    let nanos = deadline.as_nanos();
    let time = libc::timespec {
        tv_sec: (nanos / 1_000_000_000) as i64,
        tv_nsec: (nanos % 1_000_000_000) as i64,
    };
    // SAFETY: `time` lives through the call; no remainder is asked for.
    let status = unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const time,
            std::ptr::null_mut(),
        )
    };
    match status {
        0 => Ok(()),
        errno => Err(NetError::system("sleep", std::io::Error::from_raw_os_error(errno))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_clock_never_runs_back() {
        let earlier = monotonic();
        assert!(monotonic() >= earlier);
    }
}
