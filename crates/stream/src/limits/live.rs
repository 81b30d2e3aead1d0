//! The limits of a running process, which a reload changes.

use std::sync::Arc;

use crate::StreamError;
use crate::limits::capacity::Capacity;
use crate::limits::timeouts::LiveTimeouts;
use crate::process::worker::SharedLimits;
use tradewind_config::{Limits, Timeouts};

/// Keys of `[limits]` that a reload applies; a listener's `backlog` is set when it is opened.
pub const LIMITS_KEYS: [&str; 9] = [
    "limits.sessions",
    "limits.unauthenticated",
    "limits.resting",
    "limits.rate",
    "limits.memory",
    "limits.each_gateway",
    "limits.each_grant",
    "limits.each_source",
    "limits.trusted_sources",
];

/// The limits and timeouts that all workers share.
#[derive(Debug, Clone)]
pub struct LiveLimits {
    shared: Arc<SharedLimits>,
    capacity: Capacity,
    timeouts: LiveTimeouts,
}

/// Limits and timeouts that this process can keep.
#[derive(Debug)]
pub struct NewLimits {
    /// The limits.
    pub limits: Limits,
    /// The number of sessions allowed: fewer than wanted where memory or descriptors allow no more.
    pub most_sessions: usize,
    timeouts: Timeouts,
}

impl LiveLimits {
    /// Creates the limits in `shared`, of a process with this `capacity`.
    pub(crate) const fn new(
        shared: Arc<SharedLimits>,
        capacity: Capacity,
        timeouts: LiveTimeouts,
    ) -> Self {
        Self { shared, capacity, timeouts }
    }

    /// Prepares other limits, and changes nothing yet.
    ///
    /// # Errors
    /// When they leave no descriptor for any session.
    pub fn prepare(&self, limits: &Limits, timeouts: &Timeouts) -> Result<NewLimits, StreamError> {
        let most_sessions = self.capacity.sessions(limits)?;
        Ok(NewLimits { limits: limits.clone(), most_sessions, timeouts: timeouts.clone() })
    }

    /// Puts other limits in force. Open sessions go on, however many.
    pub fn set(&self, new: &NewLimits) {
        self.shared.set(&new.limits, new.most_sessions);
        self.timeouts.set(&new.timeouts);
    }
}
