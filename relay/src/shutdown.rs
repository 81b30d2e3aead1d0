//! How a process is told to end: first to drain, then to stop.

use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::RelayError;

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Serving.
    Running,
    /// Taking nothing new; open sessions go on.
    Draining,
    /// Ending now, whatever is open.
    Stopping,
}

/// The switch that ends a relay or gateway; clones work the same switch.
#[derive(Debug, Clone)]
pub struct Shutdown(Arc<watch::Sender<Phase>>);

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// A switch that nobody has used yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Running)))
    }

    /// A switch that SIGTERM or SIGINT turns to drain, and a second one of them to stop.
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
        let (mut terminate, mut interrupt) = {
            let _inside = runtime.enter();
            let install = |kind| signal(kind).map_err(RelayError::Runtime);
            (install(SignalKind::terminate())?, install(SignalKind::interrupt())?)
        };
        let watch = move || {
            runtime.block_on(async {
                for turn in [Self::drain, Self::stop] {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                    }
                    turn(&handle);
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

    /// Ends now; open sessions are reset.
    pub fn stop(&self) {
        self.turn_to(Phase::Stopping);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Phase> {
        self.0.subscribe()
    }

    fn turn_to(&self, phase: Phase) {
        self.0.send_if_modified(|current| {
            let later = phase > *current;
            if later {
                *current = phase;
            }
            later
        });
    }
}
