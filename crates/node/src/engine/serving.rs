//! Flows that this node serves as a relay of their path.
//!
//! The sender of a flow requests each second, along an open path, its service; the first relay of
//! the path is its ingress relay, the last its egress relay. The path's grant was checked when it
//! was opened; a flow that one gateway's path has named is served for no other gateway.
//!
//! The flow of a group comes along several paths, one to each member, which *join* it: it is served
//! along all of them together.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use tradewind_grant::PublicIdentity;
use tradewind_net::entropy;
use tradewind_packet::egress::{Egress, EgressConfig, EgressFlow};
use tradewind_packet::event::DropReason;
use tradewind_packet::id::{FlowNumber, Peer, Tenant};
use tradewind_packet::ingress::{Acknowledging, Beside, Ingress, IngressConfig, IngressFlow};
use tradewind_packet::label::PathPosition;
use tradewind_packet::message::{Message, Service};
use tradewind_packet::session::{Now, PeerId};
use tradewind_units::{Bytes, Duration, Timestamp};

use super::context::Context;
use super::forwarding::Forwarding;
use super::{AROUND_MESSAGE, SELF};
use crate::config::NodeConfig;
use crate::counts::add;

/// Most flows that one worker serves. Chosen: at 10 packets a second each more than a core codes.
const MAX_SERVED: usize = 16_384;
/// Most of these for one gateway. Chosen: half as many conversations as it may have, in both
/// directions.
const MAX_FOR_ONE: usize = 1024;
/// Silence after which a flow is no longer served. Chosen: as for labels.
const IDLE: Duration = Duration::from_secs(30);

/// Silence after which a path is replaced by one that contradicts it. Chosen: of three messages one
/// may get lost.
const REPLACEABLE_AFTER: Duration = Duration::from_secs(3);
/// Most paths that may join one flow. Chosen: as members of a group.
const MAX_JOINED: usize = 256;

/// The flows that this node serves, and the state machines that serve them.
pub(super) struct Serving {
    ingress: Ingress,
    egress: Egress,
    served: BTreeMap<FlowNumber, Served>,
    tenants: BTreeMap<PublicIdentity, Tenancy>,
    next_tenant: u32,
}

/// A request to serve a flow along the path of a label.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskedFor {
    pub(super) label: u32,
    pub(super) flow: FlowNumber,
    pub(super) service: Service,
    /// Set if the flow is a group's, and joins those of other paths.
    pub(super) is_join: bool,
}

/// A gateway whose flows are served here, as a tenant of its own.
#[derive(Debug, Clone, Copy)]
struct Tenancy {
    tenant: Tenant,
    flows: usize,
}

/// A flow that is served here.
#[derive(Debug, Clone)]
struct Served {
    /// The gateway along whose paths it comes.
    gateway: PublicIdentity,
    /// The orders along its paths, with the time of their last message: one, or those of a group.
    orders: Vec<(Order, Timestamp)>,
    is_group: bool,
    /// Bytes sent for it, to relays and to endpoints.
    sent: [u64; 2],
}

/// An order to serve a flow: place, service and neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    place: PathPosition,
    service: Service,
    before: PeerId,
    after: PeerId,
}

impl Order {
    /// Returns whether a flow can be served along both paths: it comes from one neighbour.
    fn goes_with(&self, other: &Self) -> bool {
        let source = |order: &Self| (order.place.is_first, order.before);
        (self.service, source(self)) == (other.service, source(other))
    }

    fn is_same_branch(&self, other: &Self) -> bool {
        (self.before, self.after) == (other.before, other.after)
    }
}

impl Served {
    const fn new(gateway: PublicIdentity) -> Self {
        Self { gateway, orders: Vec::new(), is_group: false, sent: [0; 2] }
    }

    /// Returns the neighbours before and after this node on its paths.
    fn neighbours(&self) -> impl Iterator<Item = PeerId> {
        self.orders.iter().flat_map(|(order, _)| [order.before, order.after])
    }

    /// Records an order. Returns whether something changes by it, `None` when it cannot be
    /// followed.
    fn take(&mut self, now: Now, order: Order, is_join: bool) -> Option<bool> {
        if self.is_group != is_join {
            (self.is_group, self.orders) = (is_join, Vec::new());
        }
        let same = self.orders.iter_mut().find(|(known, _)| known.is_same_branch(&order));
        match same {
            Some((known, last_message)) if *known == order => {
                *last_message = now.steady;
                return Some(false);
            }
            Some(known) => *known = (order, now.steady),
            None if is_join => {
                if !self.fits(&order) {
                    // The neighbour before may have restarted: the paths over its previous session
                    // that are still in use have sent messages lately.
                    self.orders.retain(|(_, last_message)| {
                        now.steady.since(*last_message) < REPLACEABLE_AFTER
                    });
                }
                if !self.fits(&order) || self.orders.len() >= MAX_JOINED {
                    return None;
                }
                self.orders.push((order, now.steady));
            }
            None => self.orders = vec![(order, now.steady)],
        }
        Some(true)
    }

    fn fits(&self, order: &Order) -> bool {
        self.orders.iter().all(|(known, _)| known.goes_with(order))
    }

    /// Drops paths without recent messages; returns whether there were some.
    fn forget_idle(&mut self, now: Now) -> bool {
        let before = self.orders.len();
        self.orders.retain(|(_, last_message)| now.steady.since(*last_message) < IDLE);
        self.orders.len() < before
    }

    /// Returns the orders at some places.
    fn orders(&self, is_wanted: impl Fn(&PathPosition) -> bool) -> Vec<Order> {
        let orders = self.orders.iter().map(|(order, _)| *order);
        orders.filter(|order| is_wanted(&order.place)).collect()
    }
}

impl Serving {
    /// Returns no served flows, and state machines that serve.
    ///
    /// # Errors
    /// When the system has no entropy.
    pub(super) fn new(config: &NodeConfig) -> io::Result<Self> {
        Ok(Self {
            ingress: Ingress::new(IngressConfig {
                coding: config.services.coding,
                acknowledging: Some(Acknowledging::default()),
                // Another process may have served under this identity before, by another clock.
                first_block: u64::from_be_bytes(entropy::bytes()?) / 2,
            }),
            egress: Egress::new(EgressConfig::default()),
            served: BTreeMap::new(),
            tenants: BTreeMap::new(),
            next_tenant: 0,
        })
    }

    /// Returns the neighbours of flows.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = PeerId> {
        self.served.values().flat_map(Served::neighbours)
    }

    /// Returns the earliest deadline of the state machines.
    pub(super) fn due(&self) -> Option<Timestamp> {
        let all = [self.ingress.poll_timeout(), self.egress.poll_timeout()];
        all.into_iter().flatten().map(|(at, _)| at).min()
    }

    /// Runs the state machines' timers.
    pub(super) fn handle_timeout(&mut self, now: Now) {
        self.ingress.handle_timeout(now.steady);
        self.egress.handle_timeout(now.steady);
    }

    /// Passes a service's message to its state machine.
    pub(super) fn handle_message(
        &mut self,
        context: &Context,
        now: Now,
        from: PeerId,
        message: Message<'_>,
    ) {
        let (now, from) = (now.steady, Peer::from(from));
        match message {
            Message::Copy { .. } => {
                let beside = Beside { name: SELF, egress: &mut self.egress };
                self.ingress.handle_message_beside(now, from, message, beside);
            }
            Message::Presence { .. } => self.ingress.handle_message(now, from, message),
            Message::Source(_)
            | Message::Repair(_)
            | Message::Nack(_)
            | Message::HelpAnswer { .. }
            | Message::Keepalive { is_answer: false, .. } => {
                self.egress.handle_message(now, from, message);
            }
            _ => add(&context.counts.dropped, 1),
        }
    }

    /// Sends the output of the state machines, and counts.
    pub(super) fn drive(&mut self, context: &mut Context, now: Now) {
        let Self { ingress, egress, served, .. } = self;
        while let Some(sent) = ingress.poll_transmit() {
            if sent.to == SELF {
                egress.handle_datagram(now.steady, SELF, sent.bytes);
            } else {
                charge(served, 0, sent.bytes);
                context.post(sent.to.into(), sent.bytes);
            }
        }
        while let Some(sent) = egress.poll_transmit() {
            if sent.to == SELF {
                ingress.handle_datagram(now.steady, SELF, sent.bytes);
            } else {
                charge(served, 1, sent.bytes);
                context.post(sent.to.into(), sent.bytes);
            }
        }
        while let Some(event) = ingress.poll_event().or_else(|| egress.poll_event()) {
            context.counts.count(event);
        }
    }

    /// Handles a neighbour's request to serve a flow that comes along the path of `label`, alone or
    /// joining others, and that goes on from here.
    pub(super) fn serve(
        &mut self,
        (context, forwarding): (&mut Context, &mut Forwarding),
        now: Now,
        (from, order): (PeerId, AskedFor),
        (place, (after, next)): (Option<PathPosition>, (PeerId, u32)),
    ) {
        let AskedFor { label, flow, service, is_join } = order;
        let Some(place) = place else { return add(&context.counts.dropped, 1) };
        if service == Service::Direct {
            return self.forward_leaving(context, place, (next, after), flow);
        }
        let order = Order { place, service, before: from, after };
        if !self.serve_here(context, now, flow, (order, is_join)) {
            return add(&context.counts.dropped, 1);
        }
        if service == Service::Forwarding && !is_join {
            let bytes = forwarding.labels.take_uncharged(label);
            if let Some(served) = self.served.get_mut(&flow) {
                served.sent[usize::from(place.is_last)] += bytes;
            }
        }
        let (path, label) = (label, next);
        if is_join {
            context.send_message(after, &Message::Join { label, flow, service })
        } else {
            context.send_message(after, &Message::Serve { label, flow, service })
        }
        if let (Some((before, label)), Some(served)) =
            (forwarding.labels.backwards(path), self.served.get(&flow))
        {
            let [to_relays, to_endpoints] = served.sent;
            let prices = &context.config.services;
            let cost = prices.to_relays.cost_of(Bytes::new(to_relays))
                + prices.to_endpoints.cost_of(Bytes::new(to_endpoints));
            let (is_egress, bytes) = (!place.is_first, to_relays + to_endpoints);
            let nano_usd = (cost.as_usd() * 1e9).round() as u64;
            context
                .send_message(before, &Message::Bill { label, flow, is_egress, bytes, nano_usd });
        }
    }

    /// Forwards to the next node that a flow served here is left to the Internet. Its cached copies
    /// stay for receivers that miss them, until it has been idle for long.
    fn forward_leaving(
        &self,
        context: &mut Context,
        place: PathPosition,
        (label, after): (u32, PeerId),
        flow: FlowNumber,
    ) {
        let served = self.served.get(&flow);
        if !served.is_some_and(|known| known.gateway == place.gateway && !known.is_group) {
            return add(&context.counts.dropped, 1);
        }
        context.send_message(after, &Message::Serve { label, flow, service: Service::Direct });
    }

    /// Begins or continues to serve a flow; `false` when it may not be served.
    fn serve_here(
        &mut self,
        context: &Context,
        now: Now,
        flow: FlowNumber,
        (order, is_join): (Order, bool),
    ) -> bool {
        let Order { place, service, .. } = order;
        let is_possible = match service {
            Service::Direct => false,
            Service::Coding => !is_join,
            Service::Forwarding | Service::Caching => true,
        };
        let is_allowed = match self.served.get(&flow) {
            Some(known) => known.gateway == place.gateway,
            None => self.has_capacity_for(place.gateway),
        };
        if !is_possible || !is_allowed || !(place.is_first || place.is_last) {
            return false;
        }
        if !self.served.contains_key(&flow) {
            self.tenancy(place.gateway).flows += 1;
        }
        let served = self.served.entry(flow);
        match served.or_insert_with(|| Served::new(place.gateway)).take(now, order, is_join) {
            Some(false) => true,
            Some(true) => {
                let is_served = self.set_served(context, flow).is_ok();
                // Packets may have arrived before the request to serve them.
                let Self { ingress, egress, .. } = self;
                egress.take_early(now.steady, flow);
                ingress.take_early(now.steady, flow, Some(Beside { name: SELF, egress }));
                is_served
            }
            None => false,
        }
    }

    /// Configures the state machines for a flow as ordered.
    fn set_served(&mut self, context: &Context, flow: FlowNumber) -> Result<(), DropReason> {
        let Some(served) = self.served.get(&flow) else { return Ok(()) };
        let (first, last) = (served.orders(|at| at.is_first), served.orders(|at| at.is_last));
        let is_group = served.is_group;
        let or_self = |is_here: bool, peer: PeerId| if is_here { SELF } else { peer.into() };
        if let Some(order) = first.first() {
            let egress = |order: &Order| or_self(order.place.is_last, order.after);
            let ingress = IngressFlow {
                sender: order.before.into(),
                egress: egress(order),
                tenant: self.tenancy(order.place.gateway).tenant,
                sharing: context.config.services.sharing,
                most: order.service,
                in_stream: context.config.services.in_stream,
            };
            let egresses: BTreeSet<Peer> = first.iter().map(egress).collect();
            let egresses: Vec<Peer> = egresses.into_iter().collect();
            if is_group {
                self.ingress.set_group(flow, ingress, &egresses)?
            } else {
                self.ingress.set_flow(flow, ingress)?
            }
        }
        if let Some(order) = last.first() {
            let tenant = self.tenancy(order.place.gateway).tenant;
            let ingress = or_self(order.place.is_first, order.before);
            let egress = EgressFlow { ingress, receiver: order.after.into(), tenant };
            let receivers: Vec<Peer> = last.iter().map(|order| order.after.into()).collect();
            if is_group {
                self.egress.set_group(flow, egress, &receivers)?
            } else {
                self.egress.set_flow(flow, egress)?
            }
        }
        Ok(())
    }

    fn has_capacity_for(&self, gateway: PublicIdentity) -> bool {
        let of_it = self.tenants.get(&gateway).map_or(0, |known| known.flows);
        self.served.len() < MAX_SERVED && of_it < MAX_FOR_ONE
    }

    fn tenancy(&mut self, gateway: PublicIdentity) -> &mut Tenancy {
        self.tenants.entry(gateway).or_insert_with(|| {
            self.next_tenant += 1;
            Tenancy { tenant: Tenant(self.next_tenant), flows: 0 }
        })
    }

    /// Stops serving idle flows.
    pub(super) fn maintain(&mut self, context: &Context, now: Now) {
        let mut changed = Vec::new();
        for (flow, served) in &mut self.served {
            if served.forget_idle(now) {
                changed.push((*flow, served.orders.is_empty()));
            }
        }
        for (flow, is_over) in changed {
            // The rest of a group continues; the state machines have room for what they had.
            self.ingress.remove_flow(flow);
            self.egress.remove_flow(flow);
            if is_over {
                self.end_service(flow)
            } else {
                let _served = self.set_served(context, flow);
            }
        }
    }

    fn end_service(&mut self, flow: FlowNumber) {
        let Some(Served { gateway, .. }) = self.served.remove(&flow) else { return };
        let tenancy = self.tenancy(gateway);
        tenancy.flows -= 1;
        if tenancy.flows == 0 {
            self.tenants.remove(&gateway);
        }
    }
}

/// Charges the bytes of a message to the flows that it is sent for: `place` is 0 towards relays, 1
/// towards endpoints.
fn charge(served: &mut BTreeMap<FlowNumber, Served>, place: usize, message: &[u8]) {
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
