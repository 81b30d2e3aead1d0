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

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tradewind_config::packet::Tunnel;
use tradewind_grant::DestinationRule;
use tradewind_net::iproute::{Tool, ask};
use tradewind_net::tun::Tun;
use tradewind_net::virtio::{HEADER_BYTES, VirtioHeader};
use tradewind_packet::message::Service;
use tradewind_packet::session::OVERHEAD;

use super::mtu::{FIRST_BYTES, NUMBER_BYTES, SOURCE_BYTES, relay_bytes};
use super::remotes::RemoteEndpoint;
use crate::NodeError;
use crate::counts::{Counts, add};
use crate::handover::Handover;
use crate::interceptor::{Gate, MIN_IPV6_MTU, range_of};
use crate::ip;

/// The longest packet, with the header before it.
pub(crate) const MAX_PACKET: usize = HEADER_BYTES + (64 << 10);

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
    pub(super) fn new(handover: &mut Handover, tunnel: &Tunnel) -> Result<Self, NodeError> {
        let destinations = tunnel.destinations.clone();
        let gate = gate(tunnel, &destinations);
        Ok(Self { device: open_device(handover, tunnel)?, destinations, most: tunnel.mtu, gate })
    }

    pub(super) fn destinations(&self) -> &[DestinationRule] {
        &self.destinations
    }

    pub(super) fn most(&self) -> Option<u16> {
        self.most
    }

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

    /// Returns the ranges of sources, in the order of the gate's ranges.
    pub(super) fn sources(&self) -> &[DestinationRule] {
        &self.sources
    }

    pub(super) fn most(&self) -> Option<u16> {
        self.most
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
pub(super) fn hand_over(device: &Tun, packet: &[u8]) -> bool {
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
pub(super) fn whole(ip: IpAddr) -> SocketAddr {
    SocketAddr::new(ip, 0)
}

pub(super) fn takes_ipv6<'a>(rules: impl IntoIterator<Item = &'a DestinationRule>) -> bool {
    rules.into_iter().any(|rule| rule.range().is_some_and(|at| at.0.is_ipv6()))
}

impl RemoteEndpoint {
    /// Returns the longest packet that travels whole by a service, once the Internet path's MTU is
    /// known. With a service that copies and codes, it must fit into copies and repair packets as
    /// well, unless that leaves too little for IPv6.
    pub(super) fn packet_mtu(&self, service: Service, takes_ipv6: bool) -> Option<u16> {
        let takes = self.mtus.internet.longest()? - OVERHEAD - FIRST_BYTES - SOURCE_BYTES;
        let served = match service {
            Service::Direct => 0,
            _ => NUMBER_BYTES + relay_bytes(service),
        };
        let alone = takes - NUMBER_BYTES;
        let least = if takes_ipv6 { alone.min(MIN_IPV6_MTU.into()) } else { 0 };
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
