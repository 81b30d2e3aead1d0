//! A thread that sends the heartbeats of rules (`watchdog`), as long as its process goes on.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::HEARTBEAT_INTERVAL;
use super::watchdog::Watchdog;
use crate::error::{NetError, Result};
use crate::periodic::Periodic;

/// A keeper of rules until it is dropped, or the process ends; a process that hangs intercepts
/// nothing new.
#[derive(Debug)]
pub struct Keeper {
    watchdogs: Watchdogs,
    _thread: Periodic,
}

/// The watchdogs of rules that may have been dropped.
type Watchdogs = Arc<Mutex<Vec<Weak<Watchdog>>>>;

impl Keeper {
    /// Starts a keeper that sends heartbeats while `goes_on` returns true, which is called once
    /// each [`HEARTBEAT_INTERVAL`]. It calls `fails` once when a heartbeat fails, until one
    /// succeeds again.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub fn start(
        mut goes_on: impl FnMut() -> bool + Send + 'static,
        mut fails: impl FnMut(&NetError) + Send + 'static,
    ) -> Result<Self> {
        let watchdogs = Watchdogs::default();
        let all = Arc::clone(&watchdogs);
        let heartbeat = move || {
            if goes_on() {
                for watchdog in living(&all) {
                    let held = watchdog.holds();
                    if let (Err(error), true) = (watchdog.heartbeat(), held) {
                        fails(&error);
                    }
                }
            }
        };
        Ok(Self {
            watchdogs,
            _thread: Periodic::start("interception", HEARTBEAT_INTERVAL, heartbeat)?,
        })
    }

    /// Adds the rules of `watchdog`, for as long as they exist.
    pub fn keep(&self, watchdog: &Arc<Watchdog>) {
        self.watchdogs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::downgrade(watchdog));
    }
}

/// Returns the watchdogs whose rules still exist, and drops the others.
fn living(watchdogs: &Watchdogs) -> Vec<Arc<Watchdog>> {
    let mut watchdogs = watchdogs.lock().unwrap_or_else(PoisonError::into_inner);
    watchdogs.retain(|watchdog| watchdog.strong_count() > 0);
    watchdogs.iter().filter_map(Weak::upgrade).collect()
}
