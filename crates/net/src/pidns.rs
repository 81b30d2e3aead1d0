//! A PID namespace whose processes end with the process that created it, however that ends.
//!
//! A process can leave its group by setsid(2), and a death signal requested from the kernel is not
//! inherited by children. The kernel's kill of a whole PID namespace misses no process: it happens
//! when the namespace's first process ends (pid_namespaces(7)). Here that process only waits for
//! the end of a pipe whose other end the creator holds, and reaps orphans.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::{NetError, Result};
use crate::netns::in_new_thread;

/// Longest wait for the processes' end when dropped. Chosen: a process whose parent is outside and
/// stopped is never reaped, and does no harm.
const START_TIMEOUT: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The namespace. Dropping it kills everything in it and waits for the end.
#[derive(Debug)]
pub struct PidNamespace {
    descriptor: OwnedFd,
    first: libc::pid_t,
    lifeline: Option<OwnedFd>,
}

impl PidNamespace {
    /// Creates a namespace with only its first process.
    ///
    /// # Errors
    /// Without the right to make one, or when the kernel's limit is reached.
    pub fn create() -> Result<Self> {
        let (read_end, write_end) = nix::unistd::pipe2(OFlag::O_CLOEXEC)
            .map_err(|errno| NetError::system("make a pipe", errno))?;
        // On a thread of its own, as one that has done this cannot start threads any more.
        let (first, descriptor) = in_new_thread(|| {
            unshare(CloneFlags::CLONE_NEWPID).map_err(|errno| match errno {
                Errno::EPERM => NetError::NotPermitted {
                    action: "make a PID namespace",
                    needs: "run as root, or where unprivileged user namespaces are allowed",
                },
                other => NetError::system("make a PID namespace", other),
            })?;
            // SAFETY: the child makes system calls only: it allocates nothing and takes no lock.
            let first = unsafe { libc::fork() };
            match first {
                -1 => return Err(NetError::last_os("start the first process of a PID namespace")),
                0 => be_first(read_end.as_raw_fd()),
                _ => {}
            }
            let path = "/proc/thread-self/ns/pid_for_children";
            let file = File::open(path).map_err(|e| NetError::system(format!("open {path}"), e))?;
            Ok((first, OwnedFd::from(file)))
        })??;
        Ok(Self { descriptor, first, lifeline: Some(write_end) })
    }
}

impl PidNamespace {
    /// Starts `command` inside: it and all its descendants end with the namespace, and see their
    /// own processes in `/proc` where that is allowed.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or the program not be started.
    pub fn spawn(&self, mut command: Command) -> Result<io::Result<Child>> {
        // SAFETY: runs between fork and exec and makes system calls only.
        unsafe {
            command.pre_exec(|| {
                show_in_proc();
                Ok(())
            });
        }
        // On a thread of its own: all later children of this one start inside as well.
        in_new_thread(|| {
            enter(&self.descriptor)?;
            Ok(command.spawn())
        })?
    }
}

impl AsFd for PidNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for PidNamespace {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let started = Instant::now();
        // SAFETY: plain numbers: `first` is a child of ours that nobody else waits for.
        while unsafe { libc::waitpid(self.first, std::ptr::null_mut(), libc::WNOHANG) } == 0
            && started.elapsed() < START_TIMEOUT
        {
            thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Makes all later children of this process start inside the namespace that `descriptor` holds.
/// Must be called before any thread is started, as none can be afterwards.
///
/// # Errors
/// Without CAP_SYS_ADMIN over it, or from a namespace that it does not descend from.
pub fn enter(descriptor: &OwnedFd) -> Result<()> {
    setns(descriptor, CloneFlags::CLONE_NEWPID)
        .map_err(|errno| NetError::system("enter a PID namespace", errno))
}

/// Mounts a `/proc` for this process that shows its own PID namespace; without the right to that,
/// `/proc` stays as it is. For use between fork and exec.
pub(crate) fn show_in_proc() {
    let nothing = std::ptr::null();
    // SAFETY: system calls with constant strings; what fails changes nothing that matters.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS) != 0 {
            return;
        }
        // Later mounts outside still appear here, and mounts here do not appear outside.
        let slave = libc::MS_REC | libc::MS_SLAVE;
        if libc::mount(nothing, c"/".as_ptr(), nothing, slave, nothing.cast()) != 0 {
            return;
        }
        let (name, place) = (c"proc".as_ptr(), c"/proc".as_ptr());
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        libc::mount(name, place, name, flags, nothing.cast());
    }
}

/// Runs the first process: it reaps orphans until the pipe's other end is closed.
fn be_first(read_end: RawFd) -> ! {
    let mut byte = 0u8;
    // SAFETY: system calls on plain numbers, constant strings and a byte that lives through them.
    // No other thread of the maker's is in this process, so nobody else uses what is closed.
    unsafe {
        // Orphans are reaped by the kernel when they end.
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"tradewind-init".as_ptr());
        // Closes all descriptors of the creator, so that locks and pipes end with it.
        let all_but_the_pipe = libc::dup2(read_end, 0) == 0
            && libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) == 0;
        while all_but_the_pipe
            && libc::read(0, (&raw mut byte).cast(), 1) < 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
        libc::_exit(0)
    }
}
