//! Shutdown of a process: first it drains, then it stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::watch;

use crate::StreamError;

/// The phase of the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serving.
    Running,
    /// The next process takes new sessions; open sessions have a long timeout.
    Retiring,
    /// No new sessions are accepted; open sessions go on.
    Draining,
    /// The process ends now; open sessions are cut.
    Stopping,
}

/// The switch that ends a relay or gateway; clones work the same switch.
#[derive(Debug, Clone)]
pub struct Shutdown {
    phase: Arc<watch::Sender<Phase>>,
    /// True once the next process has taken over, in any phase.
    retired: Arc<watch::Sender<bool>>,
    /// The number of requests for an upgrade.
    upgrades: Arc<watch::Sender<u32>>,
    /// The number of requests for a reload.
    reloads: Arc<watch::Sender<u32>>,
    /// True once the start is over: a request that no part handles by then is ignored.
    has_begun: Arc<AtomicBool>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// Creates a switch in the running phase.
    #[must_use]
    pub fn new() -> Self {
        Self {
            phase: Arc::new(watch::Sender::new(Phase::Running)),
            retired: Arc::new(watch::Sender::new(false)),
            upgrades: Arc::new(watch::Sender::new(0)),
            reloads: Arc::new(watch::Sender::new(0)),
            has_begun: Arc::default(),
        }
    }

    /// Takes no new sessions, and ends once the open ones have ended or the drain deadline passes.
    pub fn drain(&self) {
        self.turn_to(Phase::Draining);
    }

    /// Starts the program anew, which takes over the listeners, and retires once it is ready. If
    /// that fails, nothing changes.
    pub fn upgrade(&self) {
        self.upgrades.send_modify(|count| *count += 1);
    }

    /// Requests a reload of the configuration, from parts that can reload one
    /// ([`Reloads`](crate::Reloads)).
    pub fn reload(&self) {
        self.reloads.send_modify(|count| *count += 1);
    }

    /// Drains, or stops if it drains already.
    pub(crate) fn end_sooner(&self) {
        if *self.phase.borrow() >= Phase::Draining { self.stop() } else { self.drain() }
    }

    /// Returns true if some part waits for the shutdown: not before the start is over.
    pub(crate) fn is_watched(&self) -> bool {
        self.phase.receiver_count() > 0
    }

    /// Returns true if some part reloads a configuration, or may yet.
    pub(crate) fn reloads(&self) -> bool {
        self.reloads.receiver_count() > 0 || !self.has_begun.load(Relaxed)
    }

    /// Returns true if some part upgrades, or may yet.
    pub(crate) fn upgrades(&self) -> bool {
        self.upgrades.receiver_count() > 0 || !self.has_begun.load(Relaxed)
    }

    /// Ends the start: all parts that handle requests have begun to wait for them.
    pub fn begin(&self) {
        self.has_begun.store(true, Relaxed);
    }

    /// Runs `then`, on a thread of its own, once the next process has taken over. If none does it
    /// is dropped when the process stops.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn once_retired(&self, then: impl FnOnce() + Send + 'static) -> Result<(), StreamError> {
        let (mut retired, mut phase) = (self.retired.subscribe(), self.watch());
        let runtime =
            tokio::runtime::Builder::new_current_thread().build().map_err(StreamError::Runtime)?;
        let wait = move || {
            let retired = runtime.block_on(async {
                tokio::select! {
                    biased;
                    retired = retired.wait_for(|retired| *retired) => retired.is_ok(),
                    _ = phase.wait_for(|phase| *phase == Phase::Stopping) => false,
                }
            });
            if retired {
                then();
            }
        };
        let thread = std::thread::Builder::new().name("retire".to_owned());
        thread.spawn(wait).map(drop).map_err(StreamError::Runtime)
    }

    /// Returns a receiver of whether the next process has taken over.
    pub(crate) fn watch_retired(&self) -> watch::Receiver<bool> {
        self.retired.subscribe()
    }

    /// Leaves new sessions to the next process.
    pub(crate) fn retire(&self) {
        self.retired.send_replace(true);
        self.turn_to(Phase::Retiring);
    }

    /// Ends now; open sessions are reset.
    pub fn stop(&self) {
        self.turn_to(Phase::Stopping);
    }

    /// Returns a receiver of the phase.
    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn watch_upgrades(&self) -> watch::Receiver<u32> {
        with_earlier(&self.upgrades)
    }

    pub(crate) fn watch_reloads(&self) -> watch::Receiver<u32> {
        with_earlier(&self.reloads)
    }

    fn turn_to(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let later = phase > *current;
            if later {
                *current = phase;
            }
            later
        });
    }
}

/// Returns a receiver of requests, including those made while the process started.
fn with_earlier(orders: &watch::Sender<u32>) -> watch::Receiver<u32> {
    let mut receiver = orders.subscribe();
    if *receiver.borrow() > 0 {
        receiver.mark_changed();
    }
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upgrade_request_during_start_is_not_lost() {
        let shutdown = Shutdown::new();
        // Parts of the process wait for its end before any waits for upgrades.
        let _phase = shutdown.watch();
        shutdown.once_retired(|| {}).unwrap();
        assert!(shutdown.upgrades() && shutdown.reloads());
        shutdown.upgrade();
        let upgrades = shutdown.watch_upgrades();
        assert!(upgrades.has_changed().unwrap());
        shutdown.begin();
        assert!(shutdown.upgrades() && !shutdown.reloads());
        drop(upgrades);
        assert!(!shutdown.upgrades());
        shutdown.stop();
    }
}
