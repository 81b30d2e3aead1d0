//! Timeouts that a reload changes while sessions run.

use std::sync::Arc;
use std::time::Duration;

use crate::process::live::Live;
use crate::session::pump::IdleLimits;
use tradewind_config::Timeouts;

/// The timeouts of a process; clones share them.
#[derive(Debug, Clone)]
pub struct LiveTimeouts(Arc<Live<Timeouts>>);

impl LiveTimeouts {
    /// Keys of `[timeouts]` that a reload changes. The others are set on sockets when they are
    /// opened.
    pub const KEYS: [&str; 6] = [
        "timeouts.header",
        "timeouts.dial",
        "timeouts.idle",
        "timeouts.half_closed",
        "timeouts.drain",
        "timeouts.retire",
    ];

    /// Creates them with `timeouts`.
    pub fn new(timeouts: &Timeouts) -> Self {
        Self(Arc::new(Live::new(timeouts.clone())))
    }

    /// Applies `timeouts` to everything that begins from now on.
    pub(crate) fn set(&self, timeouts: &Timeouts) {
        self.0.replace(timeouts.clone());
    }

    /// Returns the time limit of a header or request.
    pub fn header(&self) -> Duration {
        self.0.current().header
    }

    /// Returns the time limit of opening each connection of a path.
    pub(crate) fn dial(&self) -> Duration {
        self.0.current().dial
    }

    /// Returns the idle limits of a session.
    pub fn idle(&self) -> IdleLimits {
        let timeouts = self.0.current();
        IdleLimits { open: timeouts.idle, half_closed: timeouts.half_closed }
    }

    /// Returns the time for which open sessions go on when the process drains.
    pub(crate) fn drain(&self) -> Duration {
        self.0.current().drain
    }

    /// Returns the time for which they go on when the next process has taken over.
    pub(crate) fn retire(&self) -> Duration {
        self.0.current().retire
    }
}
