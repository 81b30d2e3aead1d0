//! Listening sockets inherited from the previous process.
//!
//! A successor is started with one end of a local socket, over which the listeners are passed and
//! the two processes agree who serves.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::unistd::{AccessFlags, access};

use crate::sandbox;

/// The environment variable with the descriptor of the socket to the previous process.
const PREDECESSOR: &str = "TRADEWIND_PREDECESSOR";

/// The byte that a successor sends before its reason for not serving.
pub const DECLINED: u8 = 0x45;

/// A duplicate of the socket to the previous process, while that waits for a message.
static WAITING: Mutex<Option<UnixStream>> = Mutex::new(None);

/// The first descriptor that systemd passes.
const FIRST_PASSED: RawFd = 3;

/// The program and arguments of this process, to start its successor in the same way.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Returns the program of this process, by the path that it was called with, so that a replaced
    /// file is what is started; a name found on the PATH is resolved to its path.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn of_this_process() -> io::Result<Self> {
        let mut arguments = std::env::args_os();
        let called = arguments.next().map(PathBuf::from).unwrap_or_default();
        let path = match called.components().count() {
            0 | 1 => std::env::current_exe()?,
            _ => std::path::absolute(called)?,
        };
        Ok(Self { path, arguments: arguments.collect() })
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether this process may start it.
    #[must_use]
    pub fn may_start(&self) -> bool {
        access(&self.path, AccessFlags::X_OK).is_ok()
    }

    /// Starts a successor, and returns it with the socket to it.
    ///
    /// # Errors
    /// When the program no longer exists, or no descriptor is left.
    pub fn start_successor(&self) -> io::Result<(Child, UnixStream)> {
        let (here, there) = UnixStream::pair()?;
        let inherited = there.as_raw_fd();
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).env(PREDECESSOR, inherited.to_string());
        match sandbox::bound_by() {
            Some(filters) => command.env(sandbox::BOUND_BY, filters),
            None => command.env_remove(sandbox::BOUND_BY),
        };
        // SAFETY: runs between fork and exec and makes one system call, on a descriptor that is
        // open.
        unsafe {
            command.pre_exec(move || match libc::fcntl(inherited, libc::F_SETFD, 0) {
                0.. => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let child = command.spawn()?;
        Ok((child, here))
    }
}

/// Returns whether this process was started as the successor of another.
#[must_use]
pub fn is_successor() -> bool {
    std::env::var_os(PREDECESSOR).is_some()
}

/// Returns the socket to the previous process, if this one was started as a successor. There is one
/// for a process: later calls return `None`.
#[must_use]
pub fn predecessor() -> Option<UnixStream> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number: RawFd = std::env::var(PREDECESSOR).ok()?.parse().ok()?;
    if TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    let stream = UnixStream::from(take(number).ok()?);
    hold(stream.try_clone().ok());
    Some(stream)
}

/// Replaces the duplicate of the socket to a waiting process, and returns the old one.
fn hold(stream: Option<UnixStream>) -> Option<UnixStream> {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *waiting, stream)
}

/// Tells the previous process, if it waits for a message, why this one will not serve.
pub fn decline(why: &str) {
    // It may not have been taken yet; taking it stores the duplicate.
    drop(predecessor());
    if let Some(mut stream) = hold(None) {
        // A previous process that has ended needs no reason.
        let _gone = stream.write_all(&[&[DECLINED], why.as_bytes()].concat());
    }
}

/// Closes the duplicate of the socket to the previous process, which knows that this one is ready.
pub fn is_ready() {
    drop(hold(None));
}

/// Takes ownership of a passed descriptor, and closes it in programs that this one starts.
pub(crate) fn take(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a system call on a number; when it names no descriptor, the call says so.
    if number < FIRST_PASSED || unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0
    {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, was passed to this process by name, and the caller asks once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
