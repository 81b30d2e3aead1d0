//! Processes found by their network namespace or arguments, and their threads' CPU times.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tradewind_units::Duration;

use crate::capability;
use crate::clock;
use crate::error::{NetError, Result};
use crate::netns::Namespace;

/// Returns the processes other than this one whose main thread is inside `namespace`.
#[must_use]
pub fn inside(namespace: &Namespace) -> Vec<u32> {
    inside_any([namespace])
}

/// Returns the processes other than this one whose main thread is inside one of `namespaces`.
#[must_use]
pub fn inside_any<'a>(namespaces: impl IntoIterator<Item = &'a Namespace>) -> Vec<u32> {
    let link = |namespace: &Namespace| {
        fs::read_link(format!("/proc/self/fd/{}", namespace.as_raw_fd())).ok()
    };
    let identities: BTreeSet<PathBuf> = namespaces.into_iter().filter_map(link).collect();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes
        .filter(|process| *process != std::process::id())
        .filter(|process| {
            fs::read_link(format!("/proc/{process}/ns/net"))
                .is_ok_and(|link| identities.contains(&link))
        })
        .collect()
}

/// The time for which a thread ran, and for which it was ready to run but had no CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTimes {
    /// The time on a CPU.
    pub ran: Duration,
    /// The time in a queue for a CPU.
    pub waited: Duration,
}

impl CpuTimes {
    /// Returns the times since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            ran: self.ran.saturating_sub(earlier.ran),
            waited: self.waited.saturating_sub(earlier.waited),
        }
    }
}

/// Returns the CPU times of a process's ordinary threads by their ids, those aside that have not
/// run yet. Threads of real-time or idle priority wait by other rules and are left out.
#[must_use]
pub fn cpu_times(process: u32) -> Vec<(u32, CpuTimes)> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let threads = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let read = |thread: u32| {
        let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
        Some((thread, parse_cpu_times(&text)?))
    };
    threads.filter(|thread| clock::is_ordinary(*thread)).filter_map(read).collect()
}

/// Parses the nanoseconds on a CPU, those in a queue, and the number of turns.
fn parse_cpu_times(text: &str) -> Option<CpuTimes> {
    let mut numbers = text.split_whitespace().map_while(|word| word.parse::<u64>().ok());
    let (ran, waited, turns) = (numbers.next()?, numbers.next()?, numbers.next()?);
    // A kernel that does not count them reports zeroes.
    (turns > 0)
        .then(|| CpuTimes { ran: Duration::from_nanos(ran), waited: Duration::from_nanos(waited) })
}

/// Kills all processes other than this one whose main thread is inside `namespace`.
pub fn kill_all_in(namespace: &Namespace) {
    for process in inside(namespace) {
        // It may have ended by itself in the meantime.
        let _ = kill(Pid::from_raw(process as i32), Signal::SIGKILL);
    }
}

/// Stops a process (SIGSTOP).
///
/// # Errors
/// When there is no such process, or it is another user's.
pub fn pause(process: u32) -> Result<()> {
    send(process, Signal::SIGSTOP)
}

/// Resumes a stopped process (SIGCONT).
///
/// # Errors
/// As [`pause`].
pub fn resume(process: u32) -> Result<()> {
    send(process, Signal::SIGCONT)
}

/// Has a process end in order (SIGTERM).
///
/// # Errors
/// As [`pause`].
pub fn end(process: u32) -> Result<()> {
    send(process, Signal::SIGTERM)
}

/// Has a process of this program read its configuration anew (SIGHUP).
///
/// # Errors
/// As [`pause`].
pub fn reload(process: u32) -> Result<()> {
    send(process, Signal::SIGHUP)
}

/// Has a process of this program start its successor (SIGUSR2).
///
/// # Errors
/// As [`pause`].
pub fn upgrade(process: u32) -> Result<()> {
    send(process, Signal::SIGUSR2)
}

/// A process that was found running. Its number alone may belong to another one later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Running {
    /// Its start, in ticks of the kernel since the host's.
    pub started: u64,
    /// Its number.
    pub process: u32,
}

impl Running {
    /// Returns the process with this number, if there is one that has not ended.
    #[must_use]
    pub fn of(process: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name before may contain anything.
        let mut fields = text.rsplit_once(") ")?.1.split_whitespace();
        let has_ended = matches!(fields.next()?, "Z" | "X");
        let started = fields.nth(18)?.parse().ok()?;
        (!has_ended).then_some(Self { started, process })
    }

    /// Returns whether it has not ended yet.
    #[must_use]
    pub fn is_running(&self) -> bool {
        Self::of(self.process) == Some(*self)
    }
}

/// Returns this user's processes (root: all) that were started with exactly `arguments` after the
/// program's name, the oldest first.
#[must_use]
pub fn with_arguments(arguments: &[OsString]) -> Vec<Running> {
    let wanted: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_them = |process: &u32| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let words = line.strip_suffix(&[0]).unwrap_or(&line).split(|byte| *byte == 0);
        words.skip(1).eq(wanted.iter().copied())
    };
    let found = processes.filter(has_them).filter(|process| is_ours(*process));
    let mut found: Vec<Running> = found.filter_map(Running::of).collect();
    found.sort_unstable();
    found
}

/// Returns whether a process is this user's, as any is for root.
fn is_ours(process: u32) -> bool {
    let user = capability::user_id();
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let of_process = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let of_process = of_process.and_then(|ids| ids.split_whitespace().next()?.parse().ok());
    user == 0 || of_process == Some(user)
}

fn send(process: u32, signal: Signal) -> Result<()> {
    kill(Pid::from_raw(process as i32), signal)
        .map_err(|errno| NetError::system(format!("send {signal} to process {process}"), errno))
}

/// Detaches this process from its terminal, so that closing that does no harm. Has no effect on the
/// leader of a process group, which is detached already.
pub fn leave_terminal() {
    // The only refusal is that of a group's leader.
    let _ = nix::unistd::setsid();
}

/// Lowers the CPU share of the session that this process leads (where the kernel groups sessions:
/// autogroup, sched(7)), so that its ordinary threads take nothing from programs of other sessions.
pub fn stand_back_as_session() {
    // Where sessions are not grouped, each thread lowers its own priority.
    let _ = fs::write("/proc/self/autogroup", "19");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_paused_and_resumed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let state = || {
            let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            text.rsplit_once(") ").unwrap().1.chars().next().unwrap()
        };
        pause(child.id()).unwrap();
        while state() != 'T' {
            std::thread::yield_now();
        }
        resume(child.id()).unwrap();
        while state() == 'T' {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let error = pause(child.id()).unwrap_err().to_string();
        assert!(error.contains("SIGSTOP"), "{error}");
    }

    #[test]
    fn process_is_found_by_its_arguments_until_it_ends() {
        let seconds = format!("60.{}", std::process::id());
        let mut child = std::process::Command::new("sleep").arg(&seconds).spawn().unwrap();
        // Until it executes the program it is this one.
        let found = loop {
            if let [found] = with_arguments(&[seconds.clone().into()])[..] {
                break found;
            }
        };
        assert_eq!(found.process, child.id());
        assert!(found.is_running());
        assert!(!Running { started: found.started + 1, ..found }.is_running(), "another one");
        assert_eq!(with_arguments(&[seconds.clone().into(), "1".into()]), []);
        end(child.id()).unwrap();
        while found.is_running() {
            std::thread::yield_now();
        }
        assert_eq!(with_arguments(&[seconds.into()]), [], "it has ended and is not reaped yet");
        child.wait().unwrap();
    }

    #[test]
    fn cpu_times_of_running_threads_grow() {
        let mine = || cpu_times(std::process::id()).iter().map(|(_, times)| times.ran).sum();
        let before: Duration = mine();
        if before.is_zero() {
            crate::skipped("processes: this kernel does not count CPU times of threads");
            return;
        }
        let begun = clock::thread_cpu();
        while clock::thread_cpu() < begun + Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        assert!(mine() > before);
        assert_eq!(cpu_times(u32::MAX), []);
    }

    #[test]
    fn cpu_times_are_parsed() {
        let [ran, waited] = [937_539, 94_320].map(Duration::from_nanos);
        assert_eq!(parse_cpu_times("937539 94320 1\n"), Some(CpuTimes { ran, waited }));
        assert_eq!(parse_cpu_times("0 0 0\n"), None);
        assert_eq!(parse_cpu_times("1 2"), None);
    }

    #[test]
    fn this_process_is_never_among_those_found() {
        let here = Namespace::of_this_thread().unwrap();
        assert!(!inside(&here).contains(&std::process::id()));
    }
}
