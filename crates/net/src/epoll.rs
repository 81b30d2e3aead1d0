//! Waiting for many descriptors, with a deadline in nanoseconds.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sys::epoll::{self, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use tradewind_units::Duration;

use crate::error::{NetError, Result};

/// Most events fetched from the kernel at once. Chosen: more than the hosts of a lab on one
/// machine.
const BATCH: usize = 256;

/// An epoll set of descriptors that are watched for input or their end, each with a token.
#[derive(Debug)]
pub struct Epoll {
    set: epoll::Epoll,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// Creates an empty set.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> Result<Self> {
        let set = epoll::Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let set = set.map_err(|error| NetError::system("make an epoll set", error))?;
        Ok(Self { set, events: vec![libc::epoll_event { events: 0, u64: 0 }; BATCH] })
    }

    /// Watches `source` for input (level-triggered); `token` identifies it.
    ///
    /// # Errors
    /// When `source` cannot be watched, or already is.
    pub fn watch(&self, source: &impl AsFd, token: u64) -> Result<()> {
        let added = self.set.add(source, EpollEvent::new(EpollFlags::EPOLLIN, token));
        added.map_err(|error| NetError::system("watch a descriptor", error))
    }

    /// Watches `source` for its end alone: an error, or that the other side is gone, as the reader
    /// of a pipe.
    ///
    /// # Errors
    /// When `source` cannot be watched, as a file, or already is.
    pub fn watch_end(&self, source: &impl AsFd, token: u64) -> Result<()> {
        let added = self.set.add(source, EpollEvent::new(EpollFlags::empty(), token));
        added.map_err(|error| NetError::system("watch the end of a descriptor", error))
    }

    /// Stops watching `source`; without effect if it was not watched.
    pub fn forget(&self, source: &impl AsFd) {
        let _not_watched = self.set.delete(source);
    }

    /// Waits for input, for at most `timeout`, or without limit. Returns the tokens that have
    /// input; none after a timeout or a signal.
    ///
    /// # Errors
    /// When the kernel lacks epoll_pwait2 (before Linux 5.11).
    // `nix` has epoll_wait alone, whose timeouts are whole milliseconds.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<impl Iterator<Item = u64> + '_> {
        let time = timeout.map(|span| libc::timespec {
            tv_sec: span.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: i64::from(span.subsec_nanos()),
        });
        let time_pointer = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: `events` has space for BATCH events, `time` outlives the call, no signal mask.
        let count = unsafe {
            // By number: musl has no function for it.
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.set.0.as_raw_fd(),
                self.events.as_mut_ptr(),
                BATCH as libc::c_int,
                time_pointer,
                no_mask,
                0_usize,
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
pub struct Waker(EventFd);

impl Waker {
    /// Creates a waker without a pending wake-up.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let made = EventFd::from_flags(flags).map(Self);
        made.map_err(|error| NetError::system("make an eventfd", error))
    }

    /// Sends a wake-up: the descriptor has input until [`Waker::silence`].
    pub fn ring(&self) {
        // A full counter is already readable, so a failed write changes nothing.
        let _ = self.0.write(1);
    }

    /// Clears the input.
    pub fn silence(&self) {
        // Nothing to read means that it is clear already.
        let _ = self.0.read();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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

    #[test]
    fn pipe_ends_with_its_reader() {
        let mut set = Epoll::new().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        set.watch_end(&writer, 7).unwrap();
        assert_eq!(set.wait(Some(Duration::ZERO)).unwrap().count(), 0);
        drop(reader);
        assert_eq!(set.wait(None).unwrap().collect::<Vec<_>>(), [7]);
    }
}
