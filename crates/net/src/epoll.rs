//! Waiting for many descriptors, with a deadline in nanoseconds.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use tradewind_units::Duration;

use crate::error::{NetError, Result};

/// Most events fetched from the kernel at once. Chosen: more than the hosts of a lab on one
/// machine.
const BATCH: usize = 256;

/// An epoll set of descriptors that are watched for input, each with a token.
#[derive(Debug)]
pub struct Epoll {
    descriptor: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// Creates an empty set.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> Result<Self> {
        // SAFETY: takes one flag; the descriptor it returns is new and ours alone.
        let raw = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if raw < 0 {
            return Err(NetError::last_os("make an epoll set"));
        }
        // SAFETY: `raw` was just made and is owned by nobody else.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Self { descriptor, events: vec![libc::epoll_event { events: 0, u64: 0 }; BATCH] })
    }

    /// Watches `source` for input (level-triggered); `token` identifies it.
    ///
    /// # Errors
    /// When `source` cannot be watched, or already is.
    pub fn watch(&self, source: &impl AsFd, token: u64) -> Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        let (set, fd) = (self.descriptor.as_raw_fd(), source.as_fd().as_raw_fd());
        // SAFETY: both descriptors are open, and `event` lives through the call.
        if unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) } != 0 {
            return Err(NetError::last_os("watch a descriptor"));
        }
        Ok(())
    }

    /// Stops watching `source`; without effect if it was not watched.
    pub fn forget(&self, source: &impl AsFd) {
        let (set, fd) = (self.descriptor.as_raw_fd(), source.as_fd().as_raw_fd());
        // SAFETY: both descriptors are open; this request takes no event.
        unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Waits for input, for at most `timeout`, or without limit. Returns the tokens that have
    /// input; none after a timeout or a signal.
    ///
    /// # Errors
    /// When the kernel lacks epoll_pwait2 (before Linux 5.11).
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<impl Iterator<Item = u64> + '_> {
        let time = timeout.map(|span| libc::timespec {
            tv_sec: span.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: i64::from(span.subsec_nanos()),
        });
        let time_pointer = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `events` has space for BATCH events, `time` outlives the call, no signal mask.
        let count = unsafe {
            libc::epoll_pwait2(
                self.descriptor.as_raw_fd(),
                self.events.as_mut_ptr(),
                BATCH as libc::c_int,
                time_pointer,
                std::ptr::null(),
            )
        };
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => match std::io::Error::last_os_error() {
                error if error.kind() == std::io::ErrorKind::Interrupted => 0,
                error if error.raw_os_error() == Some(libc::ENOSYS) => {
                    return Err(NetError::Unsupported {
                        kernel_feature: "epoll_pwait2",
                        needs: "Linux 5.11 or later",
                    });
                }
                error => return Err(NetError::system("wait for input", error)),
            },
        };
        Ok(self.events[..count].iter().map(|event| event.u64))
    }
}

/// A waker (eventfd): one thread wakes another that waits on its [`Epoll`].
#[derive(Debug)]
pub struct Waker {
    descriptor: OwnedFd,
}

impl Waker {
    /// Creates a waker without a pending wake-up.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> Result<Self> {
        // SAFETY: plain numbers; the descriptor it returns is new and ours alone.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if raw < 0 {
            return Err(NetError::last_os("make an eventfd"));
        }
        // SAFETY: `raw` was just made and is owned by nobody else.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    /// Sends a wake-up: the descriptor has input until [`Waker::silence`].
    pub fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // A full counter is already readable, so a failed write changes nothing.
        let _ = nix::unistd::write(&self.descriptor, &one);
    }

    /// Clears the input.
    pub fn silence(&self) {
        let mut counter = [0u8; 8];
        // Nothing to read means that it is clear already.
        let _ = nix::unistd::read(&self.descriptor, &mut counter);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_up_is_pending_until_cleared() {
        let mut set = Epoll::new().unwrap();
        let waker = Waker::new().unwrap();
        set.watch(&waker, 7).unwrap();
        assert_eq!(set.wait(Some(Duration::ZERO)).unwrap().count(), 0);
        waker.ring();
        assert_eq!(set.wait(None).unwrap().collect::<Vec<_>>(), [7]);
        waker.silence();
        assert_eq!(set.wait(Some(Duration::ZERO)).unwrap().count(), 0);
        waker.ring();
        set.forget(&waker);
        assert_eq!(set.wait(Some(Duration::ZERO)).unwrap().count(), 0);
    }
}
