//! Flows that this node serves as a relay of their path.
//!
//! Whoever sends a flow says each second, along an open path, how it is to be served; the first relay of the path is its ingress relay,
//! the last its egress relay. That the path is granted was proven when it was opened; a flow that one gateway's path has named is served for no
//! other gateway.

use std::collections::BTreeMap;

use tradewind_grant::PublicIdentity;
use tradewind_packet::egress::EgressFlow;
use tradewind_packet::id::{FlowNumber, Peer, Tenant};
use tradewind_packet::ingress::IngressFlow;
use tradewind_packet::message::{Message, Service};
use tradewind_packet::session::{Now, OVERHEAD, PeerId};
use tradewind_units::{Bytes, Duration, Timestamp};

use super::Engine;
use super::paths::Along;
use super::services::SELF;
use crate::counts::add;

/// Flows that one worker serves. Chosen: at 10 packets a second each more than a core codes.
const MOST_SERVED: usize = 16_384;
/// Of these, for one gateway. Chosen: half as many conversations as it may have, in both directions.
const MOST_FOR_ONE: usize = 1024;
/// Silence after which a flow is served no more. Chosen: as labels are forgotten.
const IDLE: Duration = Duration::from_secs(30);

/// What is around a message when it is billed: the session's seal, UDP and IPv4.
const AROUND_MESSAGE: usize = OVERHEAD + 28;

/// Where on a path a node is, seen in the direction of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Whose path it is.
    pub(super) gateway: PublicIdentity,
    /// Whether packets come from an endpoint.
    pub(super) is_first: bool,
    /// Whether they go to one.
    pub(super) is_last: bool,
}

impl Place {
    /// The same seen from the other side.
    pub(super) fn back(self) -> Self {
        Self { is_first: self.is_last, is_last: self.is_first, ..self }
    }
}

/// A flow that is served here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served {
    order: Order,
    heard: Timestamp,
    /// What left for it, to relays and to endpoints.
    sent: [u64; 2],
}

/// How a flow is to be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    place: Place,
    service: Service,
    before: PeerId,
    after: PeerId,
}

impl Served {
    fn is_of(&self, gateway: PublicIdentity) -> bool {
        self.order.place.gateway == gateway
    }
}

impl Engine {
    /// A neighbour says that a flow comes along the path of `label`, and how it is to be served.
    pub(super) fn serve(
        &mut self,
        now: Now,
        from: PeerId,
        (label, flow, service): (u32, FlowNumber, Service),
    ) {
        let Some(Along { place, next }) = self.along(now, from, label) else {
            return add(&self.counts.dropped, 1);
        };
        let Some((after, next)) = next else {
            return self.served_to_here(now, (label, flow, service), place);
        };
        let Some(place) = place else { return add(&self.counts.dropped, 1) };
        if !self.serve_here(now, flow, Order { place, service, before: from, after }) {
            return add(&self.counts.dropped, 1);
        }
        self.say(after, &Message::Serve { label: next, flow, service });
        if let (Some((before, label)), Some(served)) =
            (self.backwards(label), self.services.served.get(&flow))
        {
            let [to_relays, to_endpoints] = served.sent;
            let prices = &self.config.services;
            let cost = prices.to_relays.cost_of(Bytes::new(to_relays))
                + prices.to_endpoints.cost_of(Bytes::new(to_endpoints));
            let (is_egress, bytes) = (!place.is_first, to_relays + to_endpoints);
            let nano_usd = (cost.as_usd() * 1e9).round() as u64;
            self.say(before, &Message::Bill { label, flow, is_egress, bytes, nano_usd });
        }
    }

    /// A relay on the path of `label` tells what it has sent for a flow.
    pub(super) fn bill(
        &mut self,
        now: Now,
        from: PeerId,
        label: u32,
        (flow, is_egress, bytes, nano_usd): (FlowNumber, bool, u64, u64),
    ) {
        match self.along(now, from, label) {
            Some(Along { next: Some((next, label)), .. }) => {
                self.say(next, &Message::Bill { label, flow, is_egress, bytes, nano_usd });
            }
            Some(Along { next: None, .. }) => {
                self.services.ends.take_bill(now.steady, from, flow, (is_egress, bytes, nano_usd));
            }
            None => add(&self.counts.dropped, 1),
        }
    }

    /// Takes a flow on, or notes that it goes on; `false` when it may not be served.
    fn serve_here(&mut self, now: Now, flow: FlowNumber, order: Order) -> bool {
        let Order { place, service, before, after } = order;
        let is_possible = service != Service::Direct && (place.is_first || place.is_last);
        let known = self.services.served.get(&flow);
        let is_allowed = match known {
            Some(known) => known.is_of(place.gateway),
            None => self.has_room_for(place.gateway),
        };
        if !is_possible || !is_allowed {
            return false;
        }
        let (is_same, sent) =
            known.map_or((false, [0; 2]), |known| (known.order == order, known.sent));
        self.services.served.insert(flow, Served { order, heard: now.steady, sent });
        if is_same {
            return true;
        }
        let tenant = self.tenant(place.gateway);
        let or_self = |is_here: bool, peer: PeerId| if is_here { SELF } else { peer.into() };
        let config = &self.config.services;
        let (mut at_ingress, mut at_egress) = (Ok(()), Ok(()));
        if place.is_first {
            let ingress = IngressFlow {
                sender: before.into(),
                egress: or_self(place.is_last, after),
                tenant,
                sharing: config.sharing,
                most: service,
                in_stream: config.in_stream,
            };
            at_ingress = self.services.ingress.set_flow(flow, ingress);
        }
        if place.is_last {
            let ingress: Peer = or_self(place.is_first, before);
            let egress = EgressFlow { ingress, receiver: after.into() };
            at_egress = self.services.egress.set_flow(flow, egress);
        }
        at_ingress.and(at_egress).is_ok()
    }

    fn has_room_for(&self, gateway: PublicIdentity) -> bool {
        let served = &self.services.served;
        let of_it = |served: &&Served| served.is_of(gateway);
        served.len() < MOST_SERVED && served.values().filter(of_it).count() < MOST_FOR_ONE
    }

    /// Each gateway is a tenant of its own.
    fn tenant(&mut self, gateway: PublicIdentity) -> Tenant {
        let services = &mut self.services;
        *services.tenants.entry(gateway).or_insert_with(|| {
            services.next_tenant += 1;
            Tenant(services.next_tenant)
        })
    }

    /// Serves no more what nobody speaks of.
    pub(super) fn tend_served(&mut self, now: Now) {
        let services = &mut self.services;
        let is_idle = |served: &Served| now.steady.since(served.heard) >= IDLE;
        let idle: Vec<FlowNumber> = services
            .served
            .iter()
            .filter(|(_, served)| is_idle(served))
            .map(|(flow, _)| *flow)
            .collect();
        if idle.is_empty() {
            return;
        }
        for flow in idle {
            services.served.remove(&flow);
            services.ingress.remove_flow(flow);
            services.egress.remove_flow(flow);
        }
        let served = &services.served;
        services.tenants.retain(|gateway, _| served.values().any(|served| served.is_of(*gateway)));
    }
}

/// Puts what is sent on the accounts of the flows that it is sent for: `place` is 0 towards relays, 1 towards endpoints.
pub(super) fn charge(served: &mut BTreeMap<FlowNumber, Served>, place: usize, message: &[u8]) {
    let bytes = (message.len() + AROUND_MESSAGE) as u64;
    let mut charge = |flow: FlowNumber, bytes: u64| {
        if let Some(served) = served.get_mut(&flow) {
            served.sent[place] += bytes;
        }
    };
    match Message::parse(message) {
        Ok(Message::Source(source)) => charge(source.packet.flow, bytes),
        Ok(Message::Recovered { packet, .. }) => charge(packet.flow, bytes),
        Ok(Message::HelpRequest(request)) => charge(request.packet.flow, bytes),
        Ok(Message::Repair(repair)) => {
            let members = repair.members.columns().len() as u64;
            repair.members.packets().for_each(|packet| charge(packet.flow, bytes / members.max(1)));
        }
        _ => {}
    }
}
