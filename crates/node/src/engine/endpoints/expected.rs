//! Flows that relays serve and of which no packet has come yet.
//!
//! Relays report each second which flows they serve, from the moment a path is open. A flow's
//! report is kept for its first packet: lost packets of its first burst are then requested at once,
//! and not a second later.

use std::collections::BTreeMap;

use tradewind_grant::PublicIdentity;
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::Service;
use tradewind_packet::session::Now;
use tradewind_units::Timestamp;

use super::{MAX, SERVED_FOR};

/// The last report on such a flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) received: Timestamp,
    pub(super) label: u32,
    pub(super) service: Service,
    /// The gateway along whose path it comes, where another has opened that.
    pub(super) gateway: Option<PublicIdentity>,
}

/// All of them; at most as many as ends.
#[derive(Debug, Default)]
pub(super) struct Expectations(BTreeMap<FlowNumber, Expected>);

impl Expectations {
    pub(super) fn take(&mut self, flow: FlowNumber) -> Option<Expected> {
        self.0.remove(&flow)
    }

    pub(super) fn note(
        &mut self,
        now: Now,
        flow: FlowNumber,
        (label, service): (u32, Service),
        gateway: Option<PublicIdentity>,
    ) {
        if !self.0.contains_key(&flow) && self.0.len() >= MAX {
            self.0.retain(|_, it| now.steady.since(it.received) < SERVED_FOR);
        }
        if self.0.contains_key(&flow) || self.0.len() < MAX {
            self.0.insert(flow, Expected { received: now.steady, label, service, gateway });
        }
    }
}
