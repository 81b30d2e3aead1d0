//! Child processes that die with their parent, however it dies.
//!
//! `PR_SET_PDEATHSIG` follows the *thread* that started a child, so a child would die with a pool's
//! idle worker. A [`Lifeline`] is a pipe whose write end only the parent holds. Each child opens
//! the read end for itself and asks the kernel to kill its process group when the pipe changes;
//! nobody writes, so the only change is the close of the last write end, when the parent is gone.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use nix::fcntl::OFlag;

use crate::error::{NetError, Result};
use crate::netns::Namespace;

/// Least number of a child's read end, out of the way of shells' redirections.
const MIN_CHILD_DESCRIPTOR: libc::c_int = 200;

/// The pipe. Dropping it kills all children tied to it.
#[derive(Debug)]
pub struct Lifeline {
    read_end: OwnedFd,
    _write_end: OwnedFd,
}

/// The processes that the end of the lifeline kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The child and its whole group, which it leads: it leaves the terminal's foreground.
    Group,
    /// Only the child, which stays in its parent's group.
    Child,
}

impl Lifeline {
    /// Creates a lifeline.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> Result<Self> {
        let (read_end, write_end) = nix::unistd::pipe2(OFlag::O_CLOEXEC)
            .map_err(|errno| NetError::system("make a pipe", errno))?;
        Ok(Self { read_end, _write_end: write_end })
    }

    /// Returns a copy of the read end, for a process that calls [`hold_on`].
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn read_end(&self) -> Result<OwnedFd> {
        self.read_end.try_clone().map_err(|e| NetError::system("copy a descriptor", e))
    }

    /// Makes `command` start inside `namespace`, as the leader of a process group that dies with
    /// this lifeline. `command` must be started while the lifeline exists.
    pub fn tie(&self, command: &mut Command, namespace: Arc<Namespace>) {
        let read_end = DescriptorPath::of(self.read_end.as_raw_fd());
        let prepare = move || {
            let inside = namespace.as_raw_fd();
            // SAFETY: a plain system call on a descriptor that `namespace` keeps open.
            if unsafe { libc::setns(inside, libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: plain numbers: this process becomes its own group's leader.
            if unsafe { libc::setpgid(0, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
            read_end.hold(Reach::Group)
        };
        // SAFETY: `prepare` runs between fork and exec and makes system calls only: it allocates
        // nothing and takes no lock.
        unsafe { command.pre_exec(prepare) };
    }
}

/// Ties the calling process, and the programs that it executes, to the lifeline of `read_end`.
///
/// # Errors
/// When the kernel refuses, or the lifeline's owner is gone.
pub fn hold_on(read_end: &OwnedFd, reach: Reach) -> Result<()> {
    let path = DescriptorPath::of(read_end.as_raw_fd());
    path.hold(reach).map_err(|source| NetError::system("hold on to a lifeline", source))
}

/// The path `/proc/self/fd/N`, prepared so that it can be opened between fork and exec.
struct DescriptorPath([u8; 32]);

impl DescriptorPath {
    fn of(fd: RawFd) -> Self {
        let text = format!("/proc/self/fd/{fd}");
        let mut path = [0; 32];
        path[..text.len()].copy_from_slice(text.as_bytes());
        Self(path)
    }

    /// Reopens the pipe, as signals are set per open file, and requests a kill at its end.
    fn hold(&self, reach: Reach) -> io::Result<()> {
        let check = |status: libc::c_int| match status {
            -1 => Err(io::Error::last_os_error()),
            value => Ok(value),
        };
        let flags = libc::O_RDONLY | libc::O_NONBLOCK;
        // SAFETY: the path ends in a zero byte; the calls below take plain numbers and a
        // descriptor that was just made. It stays open on purpose: closing it ends the watch.
        unsafe {
            let low = check(libc::open(self.0.as_ptr().cast(), flags | libc::O_CLOEXEC))?;
            let fd = check(libc::fcntl(low, libc::F_DUPFD, MIN_CHILD_DESCRIPTOR))?;
            check(libc::close(low))?;
            let owner = match reach {
                Reach::Group => -libc::getpid(),
                Reach::Child => libc::getpid(),
            };
            check(libc::fcntl(fd, libc::F_SETOWN, owner))?;
            check(libc::fcntl(fd, F_SETSIG, libc::SIGKILL))?;
            check(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_ASYNC))?;
            // Nothing to read while a write end is open; end of file when none is.
            let mut byte = 0u8;
            if libc::read(fd, (&raw mut byte).cast(), 1) == 0 {
                return Err(io::Error::from_raw_os_error(libc::EOWNERDEAD));
            }
        }
        Ok(())
    }
}

/// `F_SETSIG` of the kernel's `fcntl.h`; the libc crate lacks it on some targets.
const F_SETSIG: libc::c_int = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn process_group_dies_with_its_lifeline() {
        let lifeline = Lifeline::new().unwrap();
        let path = DescriptorPath::of(lifeline.read_end.as_raw_fd());
        let mut command = Command::new("sleep");
        command.arg("600").process_group(0);
        // SAFETY: system calls only.
        unsafe { command.pre_exec(move || path.hold(Reach::Group)) };
        let mut child = std::thread::spawn(move || command.spawn().unwrap()).join().unwrap();
        assert!(child.try_wait().unwrap().is_none(), "the starting thread's end does not matter");
        drop(lifeline);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
