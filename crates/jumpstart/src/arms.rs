//! Connections that jumped, compared with those that did not, so that the benefit is measured.
//!
//! Only connections that began while the learner was observing count: how older ones began is
//! unknown.

use std::collections::BTreeMap;

use serde::Serialize;
use tradewind_units::{Bytes, Duration};

use crate::Sample;

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
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
}

impl Totals {
    fn add(&mut self, last: &Sample) {
        self.connections += 1;
        self.acked = self.acked.saturating_add(last.acked);
        self.retransmitted_segments += u64::from(last.retransmitted_segments);
        self.busy = self.busy.saturating_add(last.busy);
    }
}

/// The totals of all arms.
pub type Arms = BTreeMap<Arm, Totals>;

/// Counts a connection that is no longer open by its last sample.
pub(crate) fn count_ended(arms: &mut Arms, arm: Arm, last: &Sample) {
    arms.entry(arm).or_default().add(last);
}
