//! Network namespaces without names.
//!
//! A [`Namespace`] is only a descriptor: no file under `/run/netns`, no bind mount. It lives as
//! long as a descriptor, a thread or a socket holds it, so nothing is left behind when its owner is
//! killed.

use std::fs::File;
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

use crate::error::{NetError, Result};

/// One network namespace, held by a descriptor.
#[derive(Debug)]
pub struct Namespace {
    descriptor: OwnedFd,
}

impl Namespace {
    /// Creates a new, empty namespace (its only device is a `lo` that is down).
    ///
    /// # Errors
    /// Without the right to create one, or when the kernel's limit is reached.
    pub fn create() -> Result<Self> {
        in_new_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| match errno {
                nix::errno::Errno::EPERM => NetError::NotPermitted {
                    action: "make a network namespace",
                    needs: "it takes the capability CAP_SYS_ADMIN, which root in a container often \
                            lacks, or a kernel that allows user namespaces",
                },
                other => NetError::system("make a network namespace", other),
            })?;
            Self::of_this_thread()
        })?
    }

    /// Returns the namespace of the calling thread.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn of_this_thread() -> Result<Self> {
        let path = "/proc/thread-self/ns/net";
        let file = File::open(path).map_err(|e| NetError::system(format!("open {path}"), e))?;
        Ok(Self { descriptor: file.into() })
    }

    /// Takes ownership of a namespace's descriptor.
    #[must_use]
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// Moves the calling thread into this namespace, for good.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN over the namespace.
    pub fn enter(&self) -> Result<()> {
        setns(&self.descriptor, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| NetError::system("enter a network namespace", errno))
    }

    /// Runs `work` on a thread inside this namespace and waits for it. Sockets that `work` creates
    /// stay in the namespace wherever they are used later.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    ///
    /// # Panics
    /// When `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        in_new_thread(|| {
            self.enter()?;
            Ok(work())
        })?
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Namespace {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

/// Returns the kernel's id of the network namespace of the calling thread, unique as long as this
/// machine runs.
///
/// # Errors
/// On kernels before 5.14.
pub fn cookie_of_this_thread() -> Result<u64> {
    let refused = |source| NetError::system("ask for a network namespace's number", source);
    let socket =
        std::net::UdpSocket::bind("0.0.0.0:0").or_else(|_| std::net::UdpSocket::bind("[::]:0"));
    let socket = socket.map_err(refused)?;
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of_val(&cookie)).expect("eight bytes");
    // SAFETY: the option's value is an integer of eight bytes, writable for its length.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if outcome == 0 { Ok(cookie) } else { Err(refused(io::Error::last_os_error())) }
}

/// Runs `work` on a thread of its own, so that its changes to the thread's namespace end with it.
pub(crate) fn in_new_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, work)
            .map_err(|e| NetError::system("start a thread", e))?;
        match worker.join() {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
