//! Processes found by their network namespace.

use std::fs;
use std::os::fd::AsRawFd;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{NetError, Result};
use crate::netns::Namespace;

/// Returns the processes other than this one whose main thread is inside `namespace`.
#[must_use]
pub fn inside(namespace: &Namespace) -> Vec<u32> {
    let Ok(identity) = fs::read_link(format!("/proc/self/fd/{}", namespace.as_raw_fd())) else {
        return Vec::new();
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes
        .filter(|process| *process != std::process::id())
        .filter(|process| {
            fs::read_link(format!("/proc/{process}/ns/net")).is_ok_and(|link| link == identity)
        })
        .collect()
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
    fn this_process_is_never_among_those_found() {
        let here = Namespace::of_this_thread().unwrap();
        assert!(!inside(&here).contains(&std::process::id()));
    }
}
