//! The gates of interceptions: traffic is intercepted only while its remote endpoint answers, and
//! only what fits its paths.

use std::sync::Arc;

use tradewind_packet::session::Now;

use super::conversations::{Conversations, Inbound};
use super::endpoints::FlowEndpoints;
use super::local::Local;
use super::mtu::NUMBER_BYTES;
use super::remotes::{DatagramPaths, Remotes};
use super::routes::{Route, Routes};
use super::tunnel::{TunnelEnd, TunnelLocal, takes_ipv6};
use crate::interceptor::{Gate, MIN_IPV6_MTU};

/// The parts that open and close gates, borrowed for one call.
pub(super) struct Gates<'a> {
    pub(super) routes: &'a Routes,
    pub(super) remotes: &'a Remotes,
    pub(super) ends: &'a FlowEndpoints,
    pub(super) conversations: &'a Conversations,
    /// The device to which others' whole packets are delivered.
    pub(super) tunnel: Option<&'a TunnelEnd>,
}

impl<'a> Gates<'a> {
    /// Returns the gates of all interceptions.
    pub(super) fn all(&self) -> impl Iterator<Item = &'a Arc<Gate>> {
        let of_routes = self.routes.values().filter_map(|route| match &route.local {
            Local::Intercepted(intercepted) => Some(intercepted.gate()),
            Local::Tunnel(tunnel) => Some(&tunnel.gate),
            Local::Port(_) | Local::Flow(_) | Local::Device(_) | Local::Nowhere => None,
        });
        of_routes.chain(self.tunnel.map(|tunnel| &tunnel.gate))
    }

    /// Returns the longest datagram to intercept: longer ones take the original path, unless they
    /// are fragmented. Until the paths' MTUs are known it is 0, which means all.
    fn longest_intercepted(&self, now: Now, route: &Route) -> u16 {
        if route.carriage().fragment {
            return 0;
        }
        let around = if route.end.is_some() { NUMBER_BYTES } else { 0 };
        let paths = DatagramPaths::of(route.remote, route.carriage(), route.end);
        let longest = self.remotes.longest_to(now, paths).and_then(|most| most.checked_sub(around));
        longest.map_or(0, |most| u16::try_from(most).unwrap_or(u16::MAX))
    }

    /// Has packets intercepted only while their remote endpoint answers.
    pub(super) fn update(&self, now: Now) {
        for route in self.routes.values() {
            let remote = self.remotes.get(&route.remote);
            match &route.local {
                Local::Intercepted(intercepted) => {
                    intercepted.gate().set_open(remote.is_some_and(|remote| remote.is_there(now)));
                    intercepted.gate().set_mtu(self.longest_intercepted(now, route));
                }
                Local::Tunnel(tunnel) => self.update_tunnel_gate(now, route, tunnel),
                Local::Port(_) | Local::Flow(_) | Local::Device(_) | Local::Nowhere => {}
            }
        }
        self.update_tunnel_end_gate(now);
    }

    /// Has packets to a remote endpoint intercepted while it answers and its path's MTU is known.
    fn update_tunnel_gate(&self, now: Now, route: &Route, tunnel: &TunnelLocal) {
        let remote = self.remotes.get(&route.remote);
        let service = self.ends.sizing_service(route.carriage().service, route.end);
        let mtu =
            remote.and_then(|remote| remote.packet_mtu(service, takes_ipv6(tunnel.destinations())));
        if let Some(mtu) = mtu {
            tunnel.gate.set_mtu(tunnel.most().map_or(mtu, |most| most.min(mtu)));
        }
        tunnel.gate.set_open(mtu.is_some() && remote.is_some_and(|remote| remote.is_alive(now)));
    }

    /// Does the same for the replies to each range of sources.
    fn update_tunnel_end_gate(&self, now: Now) {
        let Some(tunnel) = self.tunnel else { return };
        let remote_of = |inbound: &Inbound| self.remotes.get(&inbound.remote);
        let is_ipv6 = takes_ipv6(tunnel.sources());
        let longest = |inbound: &Inbound| {
            let service = self.ends.sizing_service(inbound.carriage.service, inbound.end);
            remote_of(inbound)?.packet_mtu(service, is_ipv6)
        };
        // Until the paths' MTUs are known, one that nearly all paths take.
        let mtu = self.conversations.tunnelled().filter_map(longest).min().unwrap_or(MIN_IPV6_MTU);
        tunnel.gate.set_mtu(tunnel.most().map_or(mtu, |most| most.min(mtu)));
        for (at, rule) in tunnel.sources().iter().enumerate() {
            let is_there = |inbound: &Inbound| {
                let is_of_rule =
                    inbound.preserved_source.is_some_and(|from| rule.covers_host(from.ip()));
                is_of_rule && remote_of(inbound).is_some_and(|remote| remote.is_alive(now))
            };
            tunnel.gate.set_range_open(at, self.conversations.tunnelled().any(is_there));
        }
    }
}
