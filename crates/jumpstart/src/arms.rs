//! Connections that jumped, compared with those that did not, so that the benefit is measured.
//!
//! Only connections that began while the learner was observing count: how older ones began is
//! unknown.

use std::collections::BTreeMap;

use serde::Serialize;
use tradewind_units::{Bytes, Duration};

use crate::Sample;

/// Linux's own initial window, in segments. No larger one makes what fits into it faster, such as
/// probes of a path's health.
const DEFAULT_WINDOW: f64 = 10.0;

/// Arm of the comparison that a connection belongs to, by its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// Started with a learned window.
    Jumped,
    /// Started with the default window, on purpose.
    Control,
    /// Started with the default window, as nothing was known of its destination.
    Unlearned,
    /// Started before the learner's first round.
    Earlier,
}

/// Totals of one arm's ended connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Number of connections.
    pub connections: u64,
    /// Payload acknowledged.
    pub acked: Bytes,
    /// Segments sent again.
    pub retransmitted_segments: u64,
    /// Time with something to send: `acked` divided by it is a rate that stands for completion
    /// times.
    pub busy: Duration,
    /// Completion times of those that sent more than the kernel's own first window, by size class:
    /// the binary logarithm, rounded down, of the payload acknowledged.
    pub sizes: BTreeMap<u8, SizeTotals>,
}

/// Totals of ended connections of one size class. Times are those with something to send; they are
/// summed by their logarithms, of which geometric means and their intervals follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct SizeTotals {
    /// Number of connections.
    pub connections: u64,
    /// Payload acknowledged, in bytes.
    pub bytes: u64,
    /// Segments sent again.
    pub retransmitted_segments: u64,
    /// Sum of the times, in seconds.
    pub seconds: f64,
    /// Sum of the natural logarithms of the times in seconds.
    pub log_seconds: f64,
    /// Sum of the squares of those logarithms.
    pub log_seconds_squared: f64,
}

impl Totals {
    fn add(&mut self, last: &Sample) {
        self.connections += 1;
        self.acked = self.acked.saturating_add(last.acked);
        self.retransmitted_segments += u64::from(last.retransmitted_segments);
        self.busy = self.busy.saturating_add(last.busy);
        if last.acked_segments() > DEFAULT_WINDOW && !last.busy.is_zero() {
            let class = last.acked.as_u64().max(1).ilog2() as u8;
            self.sizes.entry(class).or_default().add(last);
        }
    }
}

impl SizeTotals {
    fn add(&mut self, last: &Sample) {
        let seconds = last.busy.as_secs_f64();
        self.connections += 1;
        self.bytes = self.bytes.saturating_add(last.acked.as_u64());
        self.retransmitted_segments += u64::from(last.retransmitted_segments);
        self.seconds += seconds;
        self.log_seconds += seconds.ln();
        self.log_seconds_squared += seconds.ln().powi(2);
    }
}

/// The totals of all arms.
pub type Arms = BTreeMap<Arm, Totals>;

/// Counts a connection that is no longer open by its last sample.
pub(crate) fn count_ended(arms: &mut Arms, arm: Arm, last: &Sample) {
    arms.entry(arm).or_default().add(last);
}
