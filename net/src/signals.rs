//! Signals as input to wait for, instead of interruptions.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{NetError, Result};

/// A descriptor that has input when one of its signals has come.
#[derive(Debug)]
pub struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Takes SIGTERM and SIGINT, which end a process, and SIGHUP, which comes when its terminal is
    /// closed. To be called before any thread is started, so that no thread is interrupted.
    /// Programs started later hold them back, too, unless they are told otherwise.
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

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
