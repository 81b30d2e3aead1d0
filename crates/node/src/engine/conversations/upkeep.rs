//! Conversations that are silent or over.

use tradewind_packet::session::Now;
use tradewind_units::Timestamp;

use super::{Conversations, IDLE, Inbound, Outbound};

/// Ids of conversations that begin here, and of those that end here.
pub(in crate::engine) struct Ids {
    pub(in crate::engine) outbound: Vec<u32>,
    pub(in crate::engine) inbound: Vec<u32>,
}

impl Conversations {
    /// Returns the conversations that are over. One is kept as long as its remote endpoint's
    /// session, however silent it is: what a server sends after an hour arrives, as it would
    /// without gateways. `eviction` bounds how many there are.
    pub(in crate::engine) fn over(&self, now: Now, is_backed: impl Fn(&Outbound) -> bool) -> Ids {
        let is_idle = |used: Timestamp| now.steady.since(used) >= IDLE;
        self.which(
            |it| is_idle(it.used) && !is_backed(it),
            // Those of a gateway that is gone went with its session. The last datagrams may still
            // be on their way.
            |it| it.is_over && is_idle(it.used),
        )
    }

    /// Returns the conversations that have been silent for long since their last record.
    pub(in crate::engine) fn silent(&self, now: Now) -> Ids {
        let is_idle = |used: Timestamp| now.steady.since(used) >= IDLE;
        self.which(
            |it| it.tally.has_begun() && is_idle(it.used),
            |it| it.tally.has_begun() && is_idle(it.used),
        )
    }

    fn which(
        &self,
        is_outbound: impl Fn(&Outbound) -> bool,
        is_inbound: impl Fn(&Inbound) -> bool,
    ) -> Ids {
        let outbound = self.outbound.ids().zip(self.outbound.values());
        let inbound = self.inbound.ids().zip(self.inbound.values());
        Ids {
            outbound: outbound.filter(|(_, it)| is_outbound(it)).map(|(id, _)| id).collect(),
            inbound: inbound.filter(|(_, it)| is_inbound(it)).map(|(id, _)| id).collect(),
        }
    }
}
