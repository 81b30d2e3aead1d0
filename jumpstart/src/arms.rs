//! Connections that jumped beside those that did not, so that the benefit is measured.
//!
//! Only connections that began while we looked count: of older ones nobody knows how they began.

use std::collections::BTreeMap;

use serde::Serialize;
use tradewind_units::{Bytes, Duration};

use crate::Sample;

/// How a connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// With a window that was learned.
    Jumped,
    /// With the default window, on purpose.
    Control,
    /// With the default window, as nothing was known of its destination.
    Unlearned,
    /// Before we looked.
    Earlier,
}

/// What the ended connections of one arm did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Connections.
    pub connections: u64,
    /// Payload acknowledged.
    pub acked: Bytes,
    /// Segments sent again.
    pub retransmitted_segments: u64,
    /// Time with something to send: divides `acked` to a rate that stands for completion times.
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

/// Counts a connection that is not seen any more by what was last seen of it.
pub(crate) fn count_ended(arms: &mut Arms, arm: Arm, last: &Sample) {
    arms.entry(arm).or_default().add(last);
}
