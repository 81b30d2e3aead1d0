//! Timeouts that a reload changes while sessions run.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Timeouts;
use crate::live::Live;
use crate::pump::IdleLimits;

/// The timeouts of a process; clones change together.
#[derive(Debug, Clone)]
pub(crate) struct LiveTimeouts(Arc<Live<Timeouts>>);

impl LiveTimeouts {
    /// Keys of `[timeouts]` that it takes over. Sockets have the others from their start.
    pub(crate) const KEYS: [&str; 6] = [
        "timeouts.header",
        "timeouts.dial",
        "timeouts.idle",
        "timeouts.half_closed",
        "timeouts.drain",
        "timeouts.retire",
    ];

    /// Begins with `timeouts`.
    pub(crate) fn new(timeouts: &Timeouts) -> Self {
        Self(Arc::new(Live::new(timeouts.clone())))
    }

    /// Has what begins from now on go by `timeouts`.
    pub(crate) fn set(&self, timeouts: &Timeouts) {
        self.0.replace(timeouts.clone());
    }

    /// Returns how long a header or request may take.
    pub(crate) fn header(&self) -> Duration {
        self.0.current().header
    }

    /// Returns how long each connection of a path may take to open.
    pub(crate) fn dial(&self) -> Duration {
        self.0.current().dial
    }

    /// Returns how long a session may be silent.
    pub(crate) fn idle(&self) -> IdleLimits {
        let timeouts = self.0.current();
        IdleLimits { open: timeouts.idle, half_closed: timeouts.half_closed }
    }

    /// Returns how long open sessions go on when the process is told to end.
    pub(crate) fn drain(&self) -> Duration {
        self.0.current().drain
    }

    /// Returns how long they go on when the next process has taken over.
    pub(crate) fn retire(&self) -> Duration {
        self.0.current().retire
    }
}
