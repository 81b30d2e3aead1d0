//! How a process is told to end: first to drain, then to stop.

use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::RelayError;

/// The status of a process that a signal has ended, as shells show it for SIGINT.
const INTERRUPTED: i32 = 130;

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
        }
    }

    /// A switch that SIGTERM or SIGINT turns to drain, and a second one of them to stop; SIGUSR2 asks for an
    /// upgrade.
    ///
    /// # Errors
    /// When the handlers or their thread cannot be installed.
    pub fn on_signals() -> Result<Self, RelayError> {
        let shutdown = Self::new();
        let handle = shutdown.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(RelayError::Runtime)?;
        let (mut terminate, mut interrupt, mut upgrade) = {
            let _inside = runtime.enter();
            let install = |kind| signal(kind).map_err(RelayError::Runtime);
            let upgrade = install(SignalKind::user_defined2())?;
            (install(SignalKind::terminate())?, install(SignalKind::interrupt())?, upgrade)
        };
        let watch = move || {
            runtime.block_on(async {
                let mut turns = [Self::drain, Self::stop].into_iter();
                loop {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                        _ = upgrade.recv() => {
                            handle.upgrade();
                            continue;
                        }
                    }
                    // Nobody looks yet: the start itself takes long, and there is nothing to end in order.
                    if handle.phase.receiver_count() == 0 {
                        std::process::exit(INTERRUPTED);
                    }
                    match turns.next() {
                        Some(turn) => turn(&handle),
                        None => return,
                    }
                }
            });
        };
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(watch).map_err(RelayError::Runtime)?;
        Ok(shutdown)
    }

    /// Takes no new sessions, and ends once the open ones have ended or the drain deadline passes.
    pub fn drain(&self) {
        self.turn_to(Phase::Draining);
    }

    /// Starts the program anew, which takes the listeners over, and retires once it is ready. If that fails,
    /// nothing changes.
    pub fn upgrade(&self) {
        self.upgrades.send_modify(|count| *count += 1);
    }

    /// Does `then`, on a thread of its own, once the next process has taken over. If none does it is dropped when the process is
    /// told to stop.
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
        let mut upgrades = self.upgrades.subscribe();
        // One that was asked for while the process started.
        if *upgrades.borrow() > 0 {
            upgrades.mark_changed();
        }
        upgrades
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
