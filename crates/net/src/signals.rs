//! Signals received through a descriptor, instead of interruptions.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{NetError, Result};

/// A descriptor that has input when one of its signals has arrived.
#[derive(Debug)]
pub struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Takes SIGTERM and SIGINT, which end a process, and SIGHUP, sent when its terminal is closed.
    /// Must be called before any thread is started, so that no thread is interrupted. Programs
    /// started later block them, too, unless they unblock them.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn take_termination() -> Result<Self> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block().map_err(|errno| NetError::system("hold signals back", errno))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let descriptor = SignalFd::with_flags(&set, flags)
            .map_err(|errno| NetError::system("wait for signals", errno))?;
        Ok(Self { descriptor })
    }
}

/// Returns the signals that end an unprepared process and do not report its own faults, by number
/// and name. SIGKILL cannot be caught, and SIGPIPE never arrives: Rust ignores it.
pub fn ending() -> impl Iterator<Item = (i32, String)> {
    let named = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGVTALRM, "SIGVTALRM"),
        (libc::SIGPROF, "SIGPROF"),
        (libc::SIGIO, "SIGIO"),
        (libc::SIGPWR, "SIGPWR"),
        (libc::SIGSTKFLT, "SIGSTKFLT"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
    ];
    let first = libc::SIGRTMIN();
    let real_time = (first..=libc::SIGRTMAX()).map(move |number| match number - first {
        0 => (number, "SIGRTMIN".to_owned()),
        above => (number, format!("SIGRTMIN+{above}")),
    });
    named.into_iter().map(|(number, name)| (number, name.to_owned())).chain(real_time)
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
