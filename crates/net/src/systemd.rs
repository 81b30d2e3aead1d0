//! systemd, if it started this process: its notifications (sd_notify(3)), its watchdog, and the
//! listeners that it passes (sd_listen_fds(3)).

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

use sd_notify::NotifyState;
use tradewind_units::Duration;

use crate::handover::take;

/// Sends a state: `READY=1`, `WATCHDOG=1`, or `MAINPID=` when another process is to be watched.
/// Without effect if systemd did not request notifications (`NOTIFY_SOCKET`).
///
/// # Errors
/// When its socket does not take the message.
pub fn notify(state: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Custom(state)])
}

/// Returns the longest pause between two `WATCHDOG=1`: half of systemd's timeout, as
/// sd_watchdog_enabled(3) advises. `None` if it expects none of this process.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    let timeout = sd_notify::watchdog_enabled().filter(|timeout| !timeout.is_zero())?;
    Some(timeout / 2)
}

/// Returns the listeners that systemd passed to this process. Later calls return none.
#[must_use]
pub fn passed_listeners() -> Vec<TcpListener> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let Ok(passed) = sd_notify::listen_fds() else { return Vec::new() };
    passed.filter_map(|number| take(number).ok()).map(TcpListener::from).collect()
}
