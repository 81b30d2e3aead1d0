//! How a process is told to end: first to drain, then to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::watch;

use crate::RelayError;

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Serving.
    Running,
    /// The next process takes what is new; open sessions have long to end.
    Retiring,
    /// Taking nothing new; open sessions go on.
    Draining,
    /// Ending now, whatever is open.
    Stopping,
}

/// The switch that ends a relay or gateway; clones work the same switch.
#[derive(Debug, Clone)]
pub struct Shutdown {
    phase: Arc<watch::Sender<Phase>>,
    /// Whether the next process has taken over, in whatever phase.
    retired: Arc<watch::Sender<bool>>,
    /// How often an upgrade was asked for.
    upgrades: Arc<watch::Sender<u32>>,
    /// How often the configuration was to be read anew.
    reloads: Arc<watch::Sender<u32>>,
    /// Whether the start is over: orders that nobody obeys by now have no meaning here.
    has_begun: Arc<AtomicBool>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// A switch that nobody has used yet.
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

    /// Starts the program anew, which takes the listeners over, and retires once it is ready. If
    /// that fails, nothing changes.
    pub fn upgrade(&self) {
        self.upgrades.send_modify(|count| *count += 1);
    }

    /// Has the configuration read anew, by whoever has one that can be
    /// ([`Reloads`](crate::Reloads)).
    pub fn reload(&self) {
        self.reloads.send_modify(|count| *count += 1);
    }

    /// Drains, or stops if it drains already.
    pub(crate) fn end_sooner(&self) {
        if *self.phase.borrow() >= Phase::Draining { self.stop() } else { self.drain() }
    }

    /// Whether anybody would notice an end: not before the start is over.
    pub(crate) fn is_watched(&self) -> bool {
        self.phase.receiver_count() > 0
    }

    /// Whether anybody reads a configuration anew, or may yet.
    pub(crate) fn reloads(&self) -> bool {
        self.reloads.receiver_count() > 0 || !self.has_begun.load(Relaxed)
    }

    /// Whether anybody upgrades, or may yet.
    pub(crate) fn upgrades(&self) -> bool {
        self.upgrades.receiver_count() > 0 || !self.has_begun.load(Relaxed)
    }

    /// Ends the start: all who obey orders have begun to wait for them.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Relaxed);
    }

    /// Does `then`, on a thread of its own, once the next process has taken over. If none does it
    /// is dropped when the process is told to stop.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn once_retired(&self, then: impl FnOnce() + Send + 'static) -> Result<(), RelayError> {
        let (mut retired, mut phase) = (self.retired.subscribe(), self.watch());
        let runtime =
            tokio::runtime::Builder::new_current_thread().build().map_err(RelayError::Runtime)?;
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
        thread.spawn(wait).map(drop).map_err(RelayError::Runtime)
    }

    /// Returns whether the next process has taken over, now and later.
    pub(crate) fn watch_retired(&self) -> watch::Receiver<bool> {
        self.retired.subscribe()
    }

    /// Leaves what is new to the next process.
    pub(crate) fn retire(&self) {
        self.retired.send_replace(true);
        self.turn_to(Phase::Retiring);
    }

    /// Ends now; open sessions are reset.
    pub fn stop(&self) {
        self.turn_to(Phase::Stopping);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Phase> {
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

/// Tells each time that something is asked for, what was asked for while the process started
/// included.
fn with_earlier(orders: &watch::Sender<u32>) -> watch::Receiver<u32> {
    let mut told = orders.subscribe();
    if *told.borrow() > 0 {
        told.mark_changed();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_that_is_asked_for_during_the_start_is_not_lost() {
        let shutdown = Shutdown::new();
        // Parts of the process look at its end before anybody looks for upgrades.
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
