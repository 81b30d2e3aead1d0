//! A process that stands in for its child: it forwards signals to it, and ends as it ends.
//!
//! A process cannot enter a PID namespace itself, only its children can. Its starter shall not
//! notice: job control, `kill` and exit codes work as if it were the program.

use std::convert::Infallible;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use crate::pidns;

/// The forwarded signals.
const SIGNALS: [libc::c_int; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// Starts `command`, stands in for it, and ends as it ends. The child dies with this process, and
/// sees the processes of its own PID namespace in `/proc` where that is allowed. Must be called
/// before any thread is started.
///
/// # Errors
/// When it cannot be started. Otherwise it does not return.
pub fn stand_for(mut command: Command) -> io::Result<Infallible> {
    let (mut waited_for, mut before) = (set_of(&SIGNALS), set_of(&[]));
    // SAFETY: both sets were made by sigemptyset(3) and live through the calls.
    unsafe {
        libc::sigaddset(&raw mut waited_for, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const waited_for, &raw mut before);
        // SAFETY: runs between fork and exec and makes system calls only.
        command.pre_exec(move || {
            pidns::show_in_proc();
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // Blocked signals would stay blocked in the program.
            libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            Ok(())
        });
    }
    let child = command.spawn()?;
    let status = wait(child, &waited_for)?;
    end_as(status)
}

fn wait(mut child: Child, signals: &libc::sigset_t) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        // SAFETY: plain data, which zeros are valid for; both live through the call.
        let (signal, information) = unsafe {
            let mut information: libc::siginfo_t = std::mem::zeroed();
            (libc::sigwaitinfo(signals, &raw mut information), information)
        };
        // The terminal's signals reach the child directly; those of `kill` do not.
        let from_a_process = information.si_code <= 0;
        if SIGNALS.contains(&signal) && from_a_process {
            // SAFETY: plain numbers; the child is not waited for yet, so the number is its own.
            unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        }
    }
}

/// Ends this process by the same exit code or signal.
fn end_as(status: ExitStatus) -> ! {
    let Some(signal) = status.signal() else {
        std::process::exit(status.code().unwrap_or(1));
    };
    let alone = set_of(&[signal]);
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain numbers and data that lives through the calls.
    unsafe {
        // The child has already written a core file, if any.
        libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
        libc::signal(signal, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const alone, std::ptr::null_mut());
        libc::raise(signal);
    }
    // The shells' exit code for a signal, in case that has not ended this process.
    std::process::exit(128 + signal)
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: zeros are valid for a set, which is then emptied and filled by the calls made for it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}
