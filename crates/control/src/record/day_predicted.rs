//! Predicted speedups, added up by day.

use serde::{Deserialize, Serialize};
use tradewind_units::FlowId;

/// The predicted speedups of a flow's sessions in one day. Some 100 bytes of each size class in the
/// store, so a hundred flows with ten classes take 40 MB in 13 months.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DayPredicted {
    /// The day, in days since the Unix epoch (UTC), on which their batches came in.
    pub day: u64,
    /// The flow.
    pub flow: FlowId,
    /// The sums of each size class, in order.
    pub classes: Vec<ClassPredicted>,
}

/// The predicted speedups of the sessions of one size class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClassPredicted {
    /// The size class.
    pub size_class: u8,
    /// Sessions for which the plan gave relays, and of which it predicted the speedup.
    pub sessions: u64,
    /// The sum of the logarithms of their predicted speedups: direct time by that over relays.
    pub log_speedup: f64,
}

impl DayPredicted {
    /// Returns the geometric mean of the predicted speedups of sessions of these size classes;
    /// `None` without any.
    pub(crate) fn speedup(&self, is_wanted: impl Fn(u8) -> bool) -> Option<f64> {
        let classes = || self.classes.iter().filter(|class| is_wanted(class.size_class));
        let sessions: u64 = classes().map(|class| class.sessions).sum();
        let log_speedup: f64 = classes().map(|class| class.log_speedup).sum();
        (sessions > 0).then(|| (log_speedup / sessions as f64).exp())
    }

    pub(crate) fn add(&mut self, size_class: u8, sessions: u64, log_speedup: f64) {
        let at = self.classes.binary_search_by_key(&size_class, |class| class.size_class);
        let at = at.unwrap_or_else(|at| {
            self.classes.insert(at, ClassPredicted { size_class, sessions: 0, log_speedup: 0.0 });
            at
        });
        self.classes[at].sessions = self.classes[at].sessions.saturating_add(sessions);
        self.classes[at].log_speedup += log_speedup;
    }
}
