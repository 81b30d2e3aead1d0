//! Signals received through a descriptor, instead of interruptions.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::SigSet;
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
        Self::take(TERMINATION)
    }

    /// Takes the same and all of [`ending`], which would end a service without a log line;
    /// [`Signals::read`] returns arrived ones.
    ///
    /// # Errors
    /// As [`Signals::take_termination`].
    pub fn take_of_service() -> Result<Self> {
        Self::take(TERMINATION.into_iter().chain(ending().map(|(number, _)| number)))
    }

    fn take(signals: impl IntoIterator<Item = i32>) -> Result<Self> {
        let set = set_of(signals);
        set.thread_block().map_err(|errno| NetError::system("hold signals back", errno))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let descriptor = SignalFd::with_flags(&set, flags)
            .map_err(|errno| NetError::system("wait for signals", errno))?;
        Ok(Self { descriptor })
    }

    /// Returns the signal that has arrived and was not read yet, if there is one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn read(&self) -> Result<Option<Arrived>> {
        let read = self.descriptor.read_signal();
        let read = read.map_err(|errno| NetError::system("read a signal", errno))?;
        Ok(read.map(|signal| {
            let number = i32::try_from(signal.ssi_signo).unwrap_or(0);
            let name = ending().find(|(known, _)| *known == number).map(|(_, name)| name);
            let name = name.unwrap_or_else(|| format!("signal {number}"));
            Arrived { ends: TERMINATION.contains(&number), name }
        }))
    }
}

/// A signal that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// True if it ends a service.
    pub ends: bool,
    /// Its name.
    pub name: String,
}

/// The signals that end a service.
const TERMINATION: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// Returns a set of signals by number, as nix has no names for the real-time ones.
fn set_of(signals: impl IntoIterator<Item = i32>) -> SigSet {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initializes the set that it is given, and sigaddset changes nothing else.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        SigSet::from_sigset_t_unchecked(set.assume_init())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_signals_are_distinguished() {
        // A blocked signal that is sent to a thread stays with that thread.
        let thread = std::thread::spawn(|| {
            let signals = Signals::take_of_service().unwrap();
            let mut arrived = Vec::new();
            for number in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGRTMIN() + 3, libc::SIGTERM] {
                // SAFETY: the signal is blocked in this thread, and goes to it alone.
                assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), number) }, 0);
                let Arrived { ends, name } = signals.read().unwrap().unwrap();
                arrived.push((ends, name));
            }
            assert_eq!(signals.read().unwrap(), None);
            arrived
        });
        let handled = thread.join().unwrap();
        let names: Vec<&str> = handled.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names[..3], ["SIGUSR1", "SIGUSR2", "SIGRTMIN+3"]);
        let ends: Vec<bool> = handled.iter().map(|(ends, _)| *ends).collect();
        assert_eq!(ends, [false, false, false, true]);
    }
}
