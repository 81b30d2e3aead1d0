//! Flows that relays serve and of which no packet has come yet.
//!
//! Relays report each second which flows they serve, from the moment a path is open. A flow's
//! report is kept for its first packet: lost packets of its first burst are then requested at once,
//! and not a second later.

use std::collections::BTreeMap;

use tradewind_grant::PublicIdentity;
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::Service;
use tradewind_packet::session::{Link, Now, PeerId};
use tradewind_units::Timestamp;

use super::super::Engine;
use super::super::paths::Label;
use super::{MOST, SERVED_FOR};

/// The last report on such a flow.
#[derive(Debug, Clone, Copy)]
struct Expected {
    received: Timestamp,
    label: u32,
    service: Service,
    /// The gateway along whose path it comes, where another has opened that.
    gateway: Option<PublicIdentity>,
}

/// All of them; at most as many as ends.
#[derive(Debug, Default)]
pub(super) struct Expectations(BTreeMap<FlowNumber, Expected>);

impl Expectations {
    pub(super) fn note(
        &mut self,
        now: Now,
        flow: FlowNumber,
        (label, service): (u32, Service),
        gateway: Option<PublicIdentity>,
    ) {
        if !self.0.contains_key(&flow) && self.0.len() >= MOST {
            self.0.retain(|_, it| now.steady.since(it.received) < SERVED_FOR);
        }
        if self.0.contains_key(&flow) || self.0.len() < MOST {
            self.0.insert(flow, Expected { received: now.steady, label, service, gateway });
        }
    }
}

impl Engine {
    /// Applies the relays' reports on an incoming flow from `peer`, which belongs to the end that
    /// sends `outgoing`.
    pub(super) fn take_expected(
        &mut self,
        now: Now,
        peer: PeerId,
        (incoming, outgoing): (FlowNumber, FlowNumber),
    ) {
        let expected = self.services.ends.expected.0.remove(&incoming);
        let recent = expected.filter(|it| now.steady.since(it.received) < SERVED_FOR);
        let Some(Expected { label, service, gateway, .. }) = recent else { return };
        if !self.is_served_along(label, (peer, gateway)) {
            return;
        }
        if let Some(remote) = self.remotes.get_mut(&peer) {
            remote.presume_path(now, label);
        }
        self.sessions.ping(now, peer, Link::Overlay(label));
        let place = self.labels.get(label).and_then(Label::place);
        self.served_to_here(now, (label, incoming, service), place);
        self.maintain_end(now, outgoing);
    }

    /// Returns whether a path that ends here is one between this node and `peer`, opened by
    /// `gateway` or, if that is `None`, by this node.
    fn is_served_along(
        &self,
        label: u32,
        (peer, gateway): (PeerId, Option<PublicIdentity>),
    ) -> bool {
        match gateway {
            Some(gateway) => self.sessions.identity_of(peer) == Some(gateway),
            None => self.remotes.get(&peer).is_some_and(|remote| remote.label == Some(label)),
        }
    }
}
