//! Listening sockets inherited from the previous process.
//!
//! A successor is started with one end of a local socket, over which the listeners are passed and
//! the two processes agree who serves. A process starts its successor itself, or has its
//! [`starter`] do so, which may have rights that the process has given up.

pub mod starter;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
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

    /// Starts a successor, or has the starter of this process do so; returns it with the socket to
    /// it.
    ///
    /// # Errors
    /// When the program no longer exists, or no descriptor is left.
    pub fn start_successor(&self) -> io::Result<(Successor, UnixStream)> {
        let (here, there) = UnixStream::pair()?;
        if let Some(process) = starter::start(&there) {
            return Ok((Successor { process, child: None }, here));
        }
        // The starter may have taken the other pair and be late: whom it starts finds it closed.
        let (here, there) = UnixStream::pair()?;
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        match sandbox::bound_by() {
            Some(filters) => command.env(sandbox::BOUND_BY, filters),
            None => command.env_remove(sandbox::BOUND_BY),
        };
        let child = spawn(&mut command, &there)?;
        Ok((Successor { process: child.id(), child: Some(child) }, here))
    }
}

/// A successor that was started.
#[derive(Debug)]
pub struct Successor {
    process: u32,
    /// Absent if the starter of this process has started it.
    child: Option<Child>,
}

impl Successor {
    /// Returns its number.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.process
    }

    /// Ends it, whatever its state, and returns how it ended; `None` if that is left to its
    /// starter. It serves in neither case, once the socket to it is closed.
    ///
    /// # Errors
    /// When its status cannot be read.
    pub fn end(self) -> io::Result<Option<ExitStatus>> {
        let Some(mut child) = self.child else { return Ok(None) };
        let _ended = child.kill();
        child.wait().map(Some)
    }
}

/// Starts the program of `command` as a successor, with `there` as its socket to the process before
/// it.
fn spawn(command: &mut Command, there: &impl AsFd) -> io::Result<Child> {
    let inherited = there.as_fd().as_raw_fd();
    command.env(PREDECESSOR, inherited.to_string());
    // SAFETY: runs between fork and exec and makes one system call, on a descriptor that is open.
    unsafe {
        command.pre_exec(move || match libc::fcntl(inherited, libc::F_SETFD, 0) {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    command.spawn()
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
