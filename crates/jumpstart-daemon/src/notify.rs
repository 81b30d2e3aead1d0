//! Notification of systemd that the daemon is ready, and that it is alive (sd_notify(3)): datagrams
//! to the socket that it names.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tradewind_units::Duration;

/// Sends `state`, such as `READY=1`, to the socket named `name`; a leading `@` stands for an
/// abstract one.
///
/// # Errors
/// When nobody listens there.
pub fn send(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(hidden) => SocketAddr::from_abstract_name(hidden)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

/// Reports to the service manager, if it asked for that (NOTIFY_SOCKET), that the daemon is ready.
pub fn ready() {
    tell("READY=1");
}

fn tell(state: &str) {
    if let Some(name) = env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&name, state)
    {
        tracing::warn!(%error, state, "systemd could not be told");
    }
}

/// Watchdog reports to the service manager, if it asked for them (WATCHDOG_USEC): systemd ends a
/// daemon that hangs, and its routes are removed.
#[derive(Debug, Default)]
pub struct Watchdog {
    rest: Option<Duration>,
}

impl Watchdog {
    /// Creates one as this process's environment asks.
    #[must_use]
    pub fn of_this_process() -> Self {
        let variable = |name| env::var(name).ok();
        let (span, whose) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
        Self { rest: rest_of(span.as_deref(), whose.as_deref(), std::process::id()) }
    }

    /// Returns the longest pause between two reports: half of the timeout, as
    /// sd_watchdog_enabled(3) advises. `None`: nobody asked.
    #[must_use]
    pub const fn rest(&self) -> Option<Duration> {
        self.rest
    }

    /// Reports that the daemon is alive.
    pub fn heartbeat(&self) {
        if self.rest.is_some() {
            tell("WATCHDOG=1");
        }
    }
}

fn rest_of(span_us: Option<&str>, whose: Option<&str>, own: u32) -> Option<Duration> {
    let span = Duration::from_micros(span_us?.parse().ok()?);
    let is_ours = whose.is_none_or(|whose| whose.parse() == Ok(own));
    (is_ours && !span.is_zero()).then(|| span / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_reports_at_half_the_timeout() {
        let half = Some(Duration::from_secs(15));
        assert_eq!(rest_of(Some("30000000"), None, 7), half);
        assert_eq!(rest_of(Some("30000000"), Some("7"), 7), half);
        assert_eq!(rest_of(Some("30000000"), Some("8"), 7), None);
        for span in [None, Some("0"), Some("soon")] {
            assert_eq!(rest_of(span, None, 7), None, "{span:?}");
        }
    }

    #[test]
    fn unit_enables_the_watchdog() {
        let unit = include_str!("../../../systemd/tradewind-jumpstart.service");
        assert!(unit.contains("\nType=notify\n") && unit.contains("\nWatchdogSec="));
    }

    #[test]
    fn state_arrives_at_an_abstract_socket() {
        let name = format!("tradewind-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let systemd = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "READY=1").unwrap();
        let mut buffer = [0; 16];
        let length = systemd.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
        drop(systemd);
        assert!(send(OsStr::new(&format!("@{name}")), "READY=1").is_err());
    }
}
