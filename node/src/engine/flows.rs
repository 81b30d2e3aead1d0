//! Flows of an endpoint: applications' datagrams in and out, over whichever ways are alive.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tradewind_grant::{Destination, Hop, Nonce, Request};
use tradewind_net::entropy;
use tradewind_net::udp::{SendBatch, UdpOptions, UdpPort};
use tradewind_packet::session::{HEADER_BYTES, Link, Now, PeerId};
use tradewind_units::{Duration, FlowId, Timestamp};

use super::{DEAD_AFTER, Engine, sealed_length};
use crate::NodeError;
use crate::config::{Path, Ways};
use crate::counts::{Counts, add};
use crate::message::{FIRST_HEADER, Message};

/// Flows of one worker in either direction, each with a socket at the far end. Chosen.
pub(super) const FLOWS: usize = 1024;
/// Silence after which a flow is forgotten. Chosen: as long as NATs remember UDP that answers.
const IDLE: Duration = Duration::from_secs(120);
/// Time between two tries to open an overlay path. Chosen: opening and the first question take two round trips, and a
/// path is to be back two seconds after its relay.
const OPEN_EVERY: Duration = Duration::from_secs(1);
/// Longest payload of an application: what a super-packet can carry, less all headers.
const MOST_PAYLOAD: usize = 65_000;

/// A local socket and what waits to leave through it.
pub(crate) struct Local {
    pub(crate) port: UdpPort,
    out: SendBatch,
    waits: bool,
}

impl Local {
    fn bind(address: SocketAddr) -> Result<Self, NodeError> {
        let port = UdpPort::bind(address, &UdpOptions::default())?;
        Ok(Self { port, out: SendBatch::new(2), waits: false })
    }

    fn push(&mut self, counts: &Counts, to: SocketAddr, payload: &[u8]) {
        if self.out.is_full_for(to, payload.len()) {
            self.flush(counts);
        }
        if let Some(room) = self.out.push(to, payload.len()) {
            room.copy_from_slice(payload);
            self.waits = true;
        }
    }

    fn flush(&mut self, counts: &Counts) {
        if std::mem::take(&mut self.waits) {
            add(&counts.delivered, self.out.flush(&self.port).sent);
        }
    }
}

/// A far endpoint: which ways to it are alive.
#[derive(Debug)]
pub(super) struct Far {
    /// The overlay path to it that was heard of last.
    pub(super) label: Option<u32>,
    overlay_heard: Option<Timestamp>,
}

/// A path of the configuration.
pub(crate) struct Route {
    pub(crate) local: Local,
    to: SocketAddr,
    ways: Ways,
    hops: Vec<Hop>,
    far: PeerId,
    first: Option<PeerId>,
    flow: FlowId,
    next_open: Timestamp,
    sources: BTreeMap<SocketAddr, u32>,
}

/// A flow that begins here.
pub(super) struct Outbound {
    route: usize,
    source: SocketAddr,
    is_known: bool,
    used: Timestamp,
}

/// A flow that ends here.
pub(crate) struct Inbound {
    pub(crate) local: Local,
    to: SocketAddr,
    far: PeerId,
    flow: u32,
    ways: Ways,
    used: Timestamp,
}

impl Engine {
    pub(super) fn add_route(&mut self, now: Now, path: &Path) -> Result<(), NodeError> {
        let local = Local::bind(path.listen)?;
        let full = || NodeError::Config { key: "paths", problem: "too many neighbours".into() };
        let far = self.leg(now, path.far.identity, path.far.address).ok_or_else(full)?;
        let first = match path.relays.first() {
            Some(hop) => Some(self.leg(now, hop.identity, hop.address).ok_or_else(full)?),
            None => None,
        };
        self.fars.entry(far).or_insert(Far { label: None, overlay_heard: None });
        let hops = path.relays.iter().chain([&path.far]).cloned().collect();
        let (to, ways, next_open) = (path.to, path.ways, now.steady);
        let flow = FlowId::new("packet").expect("a short word");
        let sources = BTreeMap::new();
        let route = Route { local, to, ways, hops, far, first, flow, next_open, sources };
        self.routes.push(route);
        Ok(())
    }

    /// Takes a datagram that an application wrote to the port of route `at`.
    pub(crate) fn take_application(
        &mut self,
        now: Now,
        at: usize,
        source: SocketAddr,
        payload: &[u8],
    ) {
        let route = &self.routes[at];
        let (far, ways, to) = (route.far, route.ways, route.to);
        let flow = match route.sources.get(&source) {
            Some(flow) => *flow,
            None => match self.begin(now, at, source) {
                Some(flow) => flow,
                None => return add(&self.counts.refused, 1),
            },
        };
        let Some(outbound) = self.outbound.get_mut(flow) else { return };
        outbound.used = now.steady;
        let message = match outbound.is_known {
            true => Message::Datagram { flow, payload },
            false => Message::First { flow, ways, to, payload },
        };
        self.send_far(now, far, ways, &message);
    }

    /// Takes a datagram of the application that flow `id` ends at.
    pub(crate) fn take_reply(&mut self, now: Now, id: u32, source: SocketAddr, payload: &[u8]) {
        let Some(inbound) = self.inbound.get_mut(id).filter(|inbound| inbound.to == source) else {
            return add(&self.counts.refused, 1);
        };
        inbound.used = now.steady;
        let (far, ways, flow) = (inbound.far, inbound.ways, inbound.flow);
        self.send_far(now, far, ways, &Message::Datagram { flow, payload });
    }

    fn begin(&mut self, now: Now, route: usize, source: SocketAddr) -> Option<u32> {
        let salt = self.next_salt();
        let outbound = Outbound { route, source, is_known: false, used: now.steady };
        let flow = self.outbound.insert(salt, outbound)?;
        self.routes[route].sources.insert(source, flow);
        Some(flow)
    }

    /// Seals a message end to end and sends it over the ways that the flow wants and that are alive.
    fn send_far(&mut self, now: Now, peer: PeerId, ways: Ways, message: &Message<'_>) {
        let length = sealed_length(message.len());
        if message.len() > MOST_PAYLOAD + FIRST_HEADER {
            return add(&self.counts.refused, 1);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let datagram = &mut scratch[..length];
        message.put(&mut datagram[HEADER_BYTES..]);
        match self.sessions.seal(peer, datagram) {
            Ok(link) => {
                add(&self.counts.taken, 1);
                self.send_ways(now, peer, ways, link, datagram);
            }
            Err(_) => add(&self.counts.refused, 1),
        }
        self.scratch = scratch;
    }

    fn send_ways(&mut self, now: Now, peer: PeerId, ways: Ways, link: Link, datagram: &[u8]) {
        let far = self.fars.get(&peer);
        let label = far.and_then(|far| far.label).filter(|_| ways != Ways::Direct);
        let is_alive = far.is_some_and(|far| far.is_overlay_alive(now));
        let went = match label {
            Some(label) if is_alive || ways == Ways::Both => self.send_over(label, datagram),
            _ => false,
        };
        if ways == Ways::Relays && went {
            return;
        }
        let is_ours = self.sessions.is_ours(peer);
        if let Link::Internet(to) = link
            && let Some(room) = self.sockets.room(is_ours, to, datagram.len())
        {
            room.copy_from_slice(datagram);
        }
    }

    /// Hands a payload to the application that its flow belongs to: at the flow's end, or back at its beginning.
    pub(super) fn deliver(&mut self, now: Now, peer: PeerId, flow: u32, payload: &[u8]) {
        if let Some(id) = self.inbound_ids.get(&(peer, flow)).copied() {
            if let Some(inbound) = self.inbound.get_mut(id) {
                inbound.used = now.steady;
                inbound.local.push(&self.counts, inbound.to, payload);
            }
            return;
        }
        let Some(outbound) = self.outbound.get_mut(flow) else {
            return add(&self.counts.dropped, 1);
        };
        let route = &mut self.routes[outbound.route];
        if route.far == peer {
            outbound.used = now.steady;
            route.local.push(&self.counts, outbound.source, payload);
        }
    }

    /// The same for a flow that is perhaps new here: whether it may be is asked of the grant and the policy.
    pub(super) fn deliver_first(
        &mut self,
        now: Now,
        peer: PeerId,
        (flow, ways, to): (u32, Ways, SocketAddr),
        payload: &[u8],
    ) {
        if !self.inbound_ids.contains_key(&(peer, flow)) {
            let policy = &self.config.policy;
            let is_granted = self
                .sessions
                .grant_of(peer)
                .is_some_and(|grant| policy.check(grant, &Destination::Address(to), to).is_ok());
            if !is_granted || self.end_flow_here(now, peer, flow, ways, to).is_none() {
                return add(&self.counts.dropped, 1);
            }
        }
        self.say(peer, &Message::Known { flow });
        self.deliver(now, peer, flow, payload);
    }

    fn end_flow_here(
        &mut self,
        now: Now,
        far: PeerId,
        flow: u32,
        ways: Ways,
        to: SocketAddr,
    ) -> Option<()> {
        let any = match to {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let local = Local::bind(any).ok()?;
        let salt = self.next_salt();
        let inbound = Inbound { local, to, far, flow, ways, used: now.steady };
        let id = self.inbound.insert(salt, inbound)?;
        self.inbound_ids.insert((far, flow), id);
        self.fars.entry(far).or_insert(Far { label: None, overlay_heard: None });
        self.fresh.push(id);
        Some(())
    }

    pub(super) fn flow_known(&mut self, peer: PeerId, flow: u32) {
        if let Some(outbound) = self.outbound.get_mut(flow)
            && self.routes[outbound.route].far == peer
        {
            outbound.is_known = true;
        }
    }

    pub(super) fn answered(&mut self, now: Now, peer: PeerId, link: Link) {
        if let (Link::Overlay(_), Some(far)) = (link, self.fars.get_mut(&peer)) {
            far.overlay_heard = Some(now.steady);
        }
    }

    /// Opens overlay paths where there is none that answers.
    pub(super) fn tend_routes(&mut self, now: Now) {
        let mut up = 0;
        for at in 0..self.routes.len() {
            let route = &self.routes[at];
            let Some(first) = route.first.filter(|_| route.ways != Ways::Direct) else { continue };
            let far = self.fars.get(&route.far);
            if far.is_some_and(|far| far.is_overlay_alive(now)) {
                up += 1;
                continue;
            }
            if now.steady >= route.next_open && self.sessions.is_open(first) {
                self.open_route(now, at, first);
            }
        }
        self.counts.paths_up.store(up, std::sync::atomic::Ordering::Relaxed);
    }

    fn open_route(&mut self, now: Now, at: usize, first: PeerId) {
        let route = &mut self.routes[at];
        route.next_open = now.steady + OPEN_EVERY;
        let destination = Destination::Address(route.to);
        let Ok(hops) = tradewind_grant::Route::new(route.hops.clone()) else { return };
        let request = Request { flow: &route.flow, destination: &destination, route: &hops };
        let (Some(sealer), Ok(nonce)) = (&mut self.sealer, entropy::bytes()) else { return };
        let sealed = match sealer.seal(now.unix, Nonce::from_entropy(nonce), &request) {
            Ok(sealed) => sealed,
            Err(error) => return tracing::warn!(%error, "no overlay path"),
        };
        let far = route.far;
        let Some(label) = self.new_path(now, first) else { return };
        let old = self.fars.get_mut(&far).and_then(|far| far.label.replace(label));
        if let Some(old) = old {
            self.drop_label(old);
        }
        self.say(first, &Message::Open { theirs: label, header: &sealed.bytes });
    }

    pub(super) fn drop_inbound(&mut self, id: u32) {
        if let Some(inbound) = self.inbound.remove(id) {
            self.inbound_ids.remove(&(inbound.far, inbound.flow));
        }
    }

    pub(super) fn tend_flows(&mut self, now: Now) {
        let is_idle = |used: Timestamp| now.steady.since(used) >= IDLE;
        let outbound: Vec<u32> = self.outbound.ids().collect();
        for id in outbound {
            if self.outbound.get(id).is_some_and(|flow| is_idle(flow.used))
                && let Some(flow) = self.outbound.remove(id)
            {
                self.routes[flow.route].sources.remove(&flow.source);
            }
        }
        let inbound: Vec<u32> = self.inbound.ids().collect();
        for id in inbound {
            if self.inbound.get(id).is_some_and(|flow| is_idle(flow.used)) {
                self.drop_inbound(id);
            }
        }
    }

    pub(super) fn flush_local(&mut self) {
        for route in &mut self.routes {
            route.local.flush(&self.counts);
        }
        if self.inbound.is_empty() {
            return;
        }
        for id in self.inbound_ids.values() {
            if let Some(inbound) = self.inbound.get_mut(*id) {
                inbound.local.flush(&self.counts);
            }
        }
    }
}

impl Far {
    fn is_overlay_alive(&self, now: Now) -> bool {
        self.overlay_heard.is_some_and(|heard| now.steady.since(heard) < DEAD_AFTER)
    }
}
