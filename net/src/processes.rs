//! Processes found by the network namespace that they are in.

use std::fs;
use std::os::fd::AsRawFd;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::netns::Namespace;

/// The processes other than this one whose main thread is inside `namespace`.
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

/// Leaves the terminal that this process was started from, so that closing it does no harm.
/// Nothing happens to a process that leads a group: it is on its own already.
pub fn leave_terminal() {
    // The only refusal is that of a group's leader.
    let _ = nix::unistd::setsid();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_never_among_those_found() {
        let here = Namespace::of_this_thread().unwrap();
        assert!(!inside(&here).contains(&std::process::id()));
    }
}
