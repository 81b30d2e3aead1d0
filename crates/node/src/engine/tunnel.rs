//! Whole IP packets of any protocol: read from a TUN device near the applications, and written to
//! one near their destinations `[JQ 4]`.
//!
//! A conversation here consists of all packets from one address to another, and both are written
//! with port 0. Each packet of a conversation must go between its two addresses, so that a remote
//! endpoint cannot use others' addresses.
//!
//! The kernel routes packets into the device only while the remote endpoint answers, and at the
//! remote side only while the gateway of their sources answers (`interceptor`). A device disappears
//! with its process, and its routes with it. The device's MTU is set before it is used; hosts
//! derive from it, for one, TCP's segment size, which keeps packets whole.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tradewind_config::packet::{DeliveryPolicy, Tunnel};
use tradewind_grant::{DestinationRule, Target};
use tradewind_net::iproute::{Tool, ask};
use tradewind_net::tun::Tun;
use tradewind_net::virtio::{HEADER_BYTES, VirtioHeader};
use tradewind_packet::id::PacketId;
use tradewind_packet::message::{Message, Refusal, Service};
use tradewind_packet::session::{Now, OVERHEAD, PeerId};

use super::Engine;
use super::conversations::{DatagramMeta, Inbound};
use super::local::Local;
use super::mtu::{FIRST_BYTES, NUMBER_BYTES, SOURCE_BYTES, relay_bytes};
use super::remotes::DatagramPaths;
use super::remotes::RemoteEndpoint;
use super::routes::Route;
use crate::NodeError;
use crate::counts::{Counts, add};
use crate::handover::Handover;
use crate::interceptor::{Gate, LEAST_IPV6_MTU, range_of};
use crate::ip;

/// The longest packet, with the header before it.
pub(crate) const MOST_PACKET: usize = HEADER_BYTES + (64 << 10);

/// A device whose packets go to some ranges.
pub(crate) struct TunnelLocal {
    pub(super) device: Arc<Tun>,
    destinations: Vec<DestinationRule>,
    most: Option<u16>,
    pub(super) gate: Arc<Gate>,
}

/// The device to which packets of others are delivered, and the routes that lead the replies to
/// each of their ranges into it.
pub(crate) struct TunnelEnd {
    pub(crate) device: Arc<Tun>,
    most: Option<u16>,
    /// In the order of the gate's ranges.
    sources: Vec<DestinationRule>,
    pub(super) gate: Arc<Gate>,
}

fn open_device(handover: &mut Handover, tunnel: &Tunnel) -> Result<Arc<Tun>, NodeError> {
    let device = handover.device(&tunnel.name)?;
    // Nobody else is on it, so a link-local address would be useless.
    ask(Tool::Ip, &["link", "set", &tunnel.name, "addrgenmode", "none", "up"])?;
    Ok(Arc::new(device))
}

/// Returns the gate of the routes that lead packets to the ranges of `rules` into the device.
fn gate(tunnel: &Tunnel, rules: &[DestinationRule]) -> Arc<Gate> {
    Arc::new(Gate::of_packets(&tunnel.name, rules.iter().filter_map(range_of).collect()))
}

impl TunnelLocal {
    pub(super) fn takes(&self, to: IpAddr) -> bool {
        self.destinations.iter().any(|rule| rule.covers_host(to))
    }
}

impl TunnelEnd {
    pub(super) fn new(handover: &mut Handover, tunnel: &Tunnel) -> Result<Self, NodeError> {
        let of_range = |rule: &&DestinationRule| range_of(rule).is_some();
        let sources: Vec<_> = tunnel.destinations.iter().filter(of_range).cloned().collect();
        let gate = gate(tunnel, &sources);
        Ok(Self { device: open_device(handover, tunnel)?, most: tunnel.mtu, sources, gate })
    }

    /// Returns whether packets of `from` may be delivered.
    pub(super) fn covers(&self, from: IpAddr) -> bool {
        self.sources.iter().any(|rule| rule.covers_host(from))
    }
}

/// Delivers a packet to the kernel, if it goes from one address to the other.
pub(super) fn put_out(
    device: &Tun,
    counts: &Counts,
    (from, to): (Option<SocketAddr>, SocketAddr),
    packet: &[u8],
) {
    let is_theirs = from.map(|from| (from.ip(), to.ip())) == ip::ends(packet);
    if is_theirs && hand_over(device, packet) {
        add(&counts.delivered, 1);
    } else {
        add(&counts.dropped, 1);
    }
}

/// Writes a packet to the device; `false` when the kernel refuses it.
fn hand_over(device: &Tun, packet: &[u8]) -> bool {
    const HEADER: VirtioHeader = VirtioHeader {
        needs_checksum: false,
        segmentation: None,
        congestion_window_reduced: false,
        header_bytes: 0,
        segment_bytes: 0,
        checksum_start: 0,
        checksum_offset: 0,
    };
    let header = HEADER.encode();
    device.send(&[IoSlice::new(&header), IoSlice::new(packet)]).is_ok()
}

/// Returns an address as the end of a conversation of whole packets.
fn whole(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, 0)
}

impl Engine {
    pub(super) fn add_tunnel(
        &mut self,
        now: Now,
        handover: &mut Handover,
        (tunnel, delivery): (&Tunnel, &DeliveryPolicy),
    ) -> Result<(), NodeError> {
        let destinations = tunnel.destinations.clone();
        let gate = gate(tunnel, &destinations);
        let first =
            destinations.first().and_then(|rule| Some((rule.range()?.0, *rule.ports().start())));
        let Some(example) = first.map(SocketAddr::from) else { return Ok(()) };
        let (device, most) = (open_device(handover, tunnel)?, tunnel.mtu);
        let local = TunnelLocal { device, destinations, most, gate };
        self.add_route(now, Local::Tunnel(Box::new(local)), example, delivery).map(drop)
    }

    /// Sends a packet that an application sent into the device of route `at`, or that replies to
    /// one delivered here.
    pub(crate) fn take_packet_of_tunnel(&mut self, now: Now, at: Option<u32>, packet: &[u8]) {
        let Some((from, to)) = ip::ends(packet).map(|(from, to)| (whole(from), whole(to))) else {
            return add(&self.context.counts.refused, 1);
        };
        if let Some(at) = at {
            let meta = DatagramMeta { went_to: Some(to), ..DatagramMeta::by(from) };
            return self.take_application(now, at, meta, packet);
        }
        match self.by_preserved_source.get(&(to, from)).copied() {
            Some(id) => self.take_reply(now, id, DatagramMeta::by(from), packet),
            None => add(&self.context.counts.refused, 1),
        }
    }

    /// Sends the sender of a packet that is longer than every path takes, from a TUN device, the
    /// error with the MTU: the kernel's own MTU follows soon, and this packet is lost.
    pub(super) fn report_too_long(&mut self, now: Now, at: Option<u32>, packet: &[u8]) {
        let device = match at {
            Some(at) => self.routes.get(at).and_then(|route| route.local.tunnel()),
            None => self.tunnel.as_ref().map(|tunnel| &tunnel.device),
        };
        let device = device.map(Arc::clone);
        let (from, to) = match ip::ends(packet) {
            Some((from, to)) => (whole(from), whole(to)),
            None => return,
        };
        let of_route = |route: &Route| DatagramPaths::of(route.remote, route.carriage(), route.end);
        let of_inbound = |it: &Inbound| DatagramPaths::of(it.remote, it.carriage, it.end);
        let paths = match at {
            Some(at) => self.routes.get(at).map(of_route),
            None => self
                .by_preserved_source
                .get(&(to, from))
                .and_then(|id| self.inbound.get(*id))
                .map(of_inbound),
        };
        let (Some(device), Some(paths)) = (device, paths) else { return };
        let most =
            self.remotes.longest_to(now, paths).map(|most| most.saturating_sub(NUMBER_BYTES));
        let most = most.and_then(|most| u16::try_from(most).ok());
        if let Some(error) = most.and_then(|most| self.too_long(now, packet, most)) {
            let _lost = hand_over(&device, &error);
        }
    }

    /// Returns the error that reports the MTU to a packet's sender, unless the rate limit is
    /// reached.
    pub(super) fn too_long(&mut self, now: Now, packet: &[u8], most: u16) -> Option<Vec<u8>> {
        let (from, _) = ip::ends(packet)?;
        let error = ip::too_long(packet, most)?;
        self.errors.take(now.steady, from).then_some(error)
    }

    /// Records a recovered packet, for which another of its conversation has to carry a congestion
    /// mark, if the conversation is one of whole packets.
    pub(super) fn owe_mark(&mut self, now: Now, peer: PeerId, packet: PacketId, message: &[u8]) {
        let (conversation, is_whole) = match Message::parse(message) {
            Ok(Message::Datagram { conversation, .. }) => {
                (conversation, self.is_of_whole_packets(peer, conversation))
            }
            Ok(Message::First { conversation, to, from, .. }) => {
                (conversation, whole_packets(from, to).is_some())
            }
            _ => return,
        };
        if is_whole {
            self.marks.owe(now.steady, (peer, conversation), packet);
        }
    }

    /// Returns the packet with a congestion mark, if one is due for its conversation and its ends
    /// support them.
    pub(super) fn marked(
        &mut self,
        now: Now,
        (peer, conversation): (PeerId, u32),
        packet: &[u8],
    ) -> Option<Vec<u8>> {
        let key = (peer, conversation);
        if !self.marks.is_due(now.steady, key) || !self.is_of_whole_packets(peer, conversation) {
            return None;
        }
        let mut packet = packet.to_vec();
        if !ip::mark_congestion(&mut packet) {
            return None;
        }
        self.marks.settle(key);
        Some(packet)
    }

    /// Checks whether packets from one address to another may be delivered here for `peer`.
    pub(super) fn may_put_out(
        &self,
        peer: PeerId,
        from: IpAddr,
        to: IpAddr,
    ) -> Result<(), Refusal> {
        let grant = self.context.sessions.grant_of(peer).ok_or(Refusal::Grant)?;
        let checked = self.context.access.allows(Some(grant), Target::Host(to));
        checked.map_err(|error| Refusal::from(&error))?;
        let is_theirs = self.tunnel.as_ref().is_some_and(|tunnel| tunnel.covers(from));
        if is_theirs && from.is_ipv4() == to.is_ipv4() {
            return Ok(());
        }
        Err(Refusal::NotAllowed)
    }

    /// Returns the endpoints whose packets are delivered here; these are pinged.
    pub(super) fn tunnelled_fars(&self) -> BTreeSet<PeerId> {
        self.tunnelled().map(|inbound| inbound.remote).collect()
    }

    fn tunnelled(&self) -> impl Iterator<Item = &Inbound> {
        let all = self.by_preserved_source.values().filter_map(|id| self.inbound.get(*id));
        all.filter(|inbound| matches!(inbound.local, Local::Device(_)))
    }

    /// Has packets to a remote endpoint intercepted while it answers and its path's MTU is known.
    pub(super) fn update_tunnel_gate(&self, now: Now, route: &Route, tunnel: &TunnelLocal) {
        let remote = self.remotes.get(&route.remote);
        let service = self.services.ends.sizing_service(route.carriage().service, route.end);
        let mtu =
            remote.and_then(|remote| remote.packet_mtu(service, takes_ipv6(&tunnel.destinations)));
        if let Some(mtu) = mtu {
            tunnel.gate.set_mtu(tunnel.most.map_or(mtu, |most| most.min(mtu)));
        }
        tunnel.gate.set_open(mtu.is_some() && remote.is_some_and(|remote| remote.is_alive(now)));
    }

    /// Does the same for the replies to each range of sources.
    pub(super) fn update_tunnel_end_gate(&self, now: Now) {
        let Some(tunnel) = &self.tunnel else { return };
        let remote_of = |inbound: &Inbound| self.remotes.get(&inbound.remote);
        let takes_ipv6 = takes_ipv6(&tunnel.sources);
        let longest = |inbound: &Inbound| {
            let service = self.services.ends.sizing_service(inbound.carriage.service, inbound.end);
            remote_of(inbound)?.packet_mtu(service, takes_ipv6)
        };
        // Until the paths' MTUs are known, one that nearly all paths take.
        let mtu = self.tunnelled().filter_map(longest).min().unwrap_or(LEAST_IPV6_MTU);
        tunnel.gate.set_mtu(tunnel.most.map_or(mtu, |most| most.min(mtu)));
        for (at, rule) in tunnel.sources.iter().enumerate() {
            let is_there = |inbound: &Inbound| {
                let is_of_rule =
                    inbound.preserved_source.is_some_and(|from| rule.covers_host(from.ip()));
                is_of_rule && remote_of(inbound).is_some_and(|remote| remote.is_alive(now))
            };
            tunnel.gate.set_range_open(at, self.tunnelled().any(is_there));
        }
    }
}

fn takes_ipv6<'a>(rules: impl IntoIterator<Item = &'a DestinationRule>) -> bool {
    rules.into_iter().any(|rule| rule.range().is_some_and(|at| at.0.is_ipv6()))
}

impl RemoteEndpoint {
    /// Returns the longest packet that travels whole by a service, once the Internet path's MTU is
    /// known. With a service that copies and codes, it must fit into copies and repair packets as
    /// well, unless that leaves too little for IPv6.
    fn packet_mtu(&self, service: Service, takes_ipv6: bool) -> Option<u16> {
        let takes = self.mtus.internet.longest()? - OVERHEAD - FIRST_BYTES - SOURCE_BYTES;
        let served = match service {
            Service::Direct => 0,
            _ => NUMBER_BYTES + relay_bytes(service),
        };
        let alone = takes - NUMBER_BYTES;
        let least = if takes_ipv6 { alone.min(LEAST_IPV6_MTU.into()) } else { 0 };
        u16::try_from((takes - served).max(least)).ok()
    }
}

/// Returns the source of the whole packets of a conversation with `to`, if it is one of whole
/// packets.
pub(super) fn whole_packets(from: Option<SocketAddr>, to: SocketAddr) -> Option<IpAddr> {
    from.filter(|from| from.port() == 0 && to.port() == 0).map(|from| from.ip())
}

#[cfg(test)]
mod tests {
    use tradewind_units::Duration;

    use super::super::ERRORS_A_SECOND;
    use super::super::test_harness::{Hosts, anybody};

    /// Returns a packet that no router may fragment.
    fn packet(last: u8) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
        packet.extend([10, 0, 0, last, 10, 1, 0, 2]);
        packet.resize(1400, 7);
        packet
    }

    #[test]
    fn errors_per_sender_are_limited() {
        let mut hosts = Hosts::new([(1, anybody(1))]);
        let mut now = hosts.now;
        let mut errors = |now, last| {
            let engine = hosts.at(1);
            (0..2000).filter(|_| engine.too_long(now, &packet(last), 1300).is_some()).count()
        };
        let first = errors(now, 1);
        assert_eq!(first, ERRORS_A_SECOND / 2);
        assert!((1..first).contains(&errors(now, 2)), "the next one is told, too");
        now.steady = now.steady + Duration::from_secs(1);
        assert_eq!(errors(now, 1), first);
    }
}
