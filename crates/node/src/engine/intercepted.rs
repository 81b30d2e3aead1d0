//! Intercepted datagrams: the sockets to which they are redirected, and those from which replies
//! leave.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tradewind_config::packet::{Chosen, Intercepted, Path, TrafficSource};
use tradewind_grant::DestinationRule;
use tradewind_net::interception::{ANSWERED_HOPS, Capture};
use tradewind_net::udp::{UdpOptions, UdpPort};
use tradewind_packet::session::Now;

use super::Engine;
use super::local::{Local, Port};
use super::mtu::NUMBER_BYTES;
use super::remotes::DatagramPaths;
use super::routes::Route;
use crate::NodeError;
use crate::counts::Counts;
use crate::handover::Handover;
use crate::interceptor::{Gate, ranges};

/// A listener for intercepted datagrams of one family.
pub(crate) struct InterceptedLocal {
    pub(super) listener: UdpPort,
    destinations: Vec<DestinationRule>,
    /// Set if those of this host itself are intercepted, too.
    pub(super) local_output: bool,
    gate: Arc<Gate>,
    /// The socket mark of replies, which must not be intercepted themselves.
    mark: Option<u32>,
    /// Sockets on the addresses that applications write to, for replies.
    answers: BTreeMap<SocketAddr, Port>,
}

impl InterceptedLocal {
    /// Opens the listener for intercepted datagrams of the family of `destinations`.
    fn open(
        handover: &mut Handover,
        intercepted: &Intercepted,
        (destinations, is_ipv6): (Vec<DestinationRule>, bool),
        mark: Option<u32>,
    ) -> Result<Self, NodeError> {
        let here = if is_ipv6 {
            SocketAddr::from((Ipv6Addr::LOCALHOST, intercepted.port))
        } else {
            SocketAddr::from((Ipv4Addr::LOCALHOST, intercepted.port))
        };
        let (transparent, tells_dscp, tells_age) = (true, true, true);
        let options = UdpOptions { transparent, tells_dscp, tells_age, ..UdpOptions::default() };
        let first = destinations.first().map(ToString::to_string).unwrap_or_default();
        let listener = handover.applications((here, first), &options)?;
        let gate = Arc::new(Gate::of_datagrams(Capture {
            destinations: ranges(&destinations),
            listeners: vec![listener.address()],
            local_output: intercepted.local_output,
        }));
        let (local_output, answers) = (intercepted.local_output, BTreeMap::new());
        Ok(Self { listener, destinations, local_output, gate, mark, answers })
    }

    /// Returns whether datagrams to `to` are intercepted: others come only if an application writes
    /// to the listener itself.
    pub(super) fn takes(&self, to: SocketAddr) -> bool {
        self.destinations.iter().any(|rule| rule.covers_address(to))
    }

    /// Opens a socket that replies from `to`, unless there is one.
    pub(super) fn begin(&mut self, to: SocketAddr) -> Option<()> {
        if let Entry::Vacant(place) = self.answers.entry(to) {
            let (transparent, hops, mark) = (true, Some(ANSWERED_HOPS), self.mark);
            let options = UdpOptions { transparent, hops, mark, ..UdpOptions::default() };
            place.insert(Port::new(UdpPort::bind(to, &options).ok()?));
        }
        Some(())
    }

    pub(super) fn end(&mut self, to: SocketAddr) {
        self.answers.remove(&to);
    }

    pub(super) fn push(
        &mut self,
        counts: &Counts,
        from: Option<SocketAddr>,
        to: SocketAddr,
        payload: &[u8],
    ) {
        if let Some(answers) = from.and_then(|from| self.answers.get_mut(&from)) {
            answers.push(counts, to, payload);
        }
    }

    pub(super) fn flush(&mut self, counts: &Counts) {
        self.answers.values_mut().for_each(|answers| answers.flush(counts));
    }
}

impl Engine {
    /// Adds the routes of a path of the configuration: one, or one for each family that is
    /// intercepted.
    pub(super) fn add_path(
        &mut self,
        now: Now,
        handover: &mut Handover,
        path: &Path,
    ) -> Result<(), NodeError> {
        let intercepted = match &path.source {
            TrafficSource::Port { listen, to } => {
                let tells_dscp = Chosen::looks_at_dscp(path.delivery.copies.as_ref());
                let mark = self.context.config.delivery_mark();
                let local = Local::open(handover, (*listen, *to), tells_dscp, mark)?;
                self.add_route(now, local, *to, &path.delivery)?;
                return Ok(());
            }
            TrafficSource::Intercepted(intercepted) => {
                self.check_local_output(intercepted, &path.delivery)?;
                intercepted
            }
            TrafficSource::Tunnel(tunnel) => {
                return self.add_tunnel(now, handover, (tunnel, &path.delivery));
            }
        };
        for is_ipv6 in [false, true] {
            let of_family =
                |rule: &&DestinationRule| rule.range().is_some_and(|at| at.0.is_ipv6() == is_ipv6);
            let rules: Vec<_> =
                intercepted.destinations.iter().filter(of_family).cloned().collect();
            let first =
                rules.first().and_then(|rule| Some((rule.range()?.0, *rule.ports().start())));
            let Some(example) = first.map(SocketAddr::from) else { continue };
            let mark = self.context.config.delivery_mark();
            let local = InterceptedLocal::open(handover, intercepted, (rules, is_ipv6), mark)?;
            self.add_route(now, Local::Intercepted(Box::new(local)), example, &path.delivery)?;
        }
        Ok(())
    }

    /// Returns the gates of all interceptions.
    pub(crate) fn gates(&self) -> impl Iterator<Item = &Arc<Gate>> {
        let of_routes = self.routes.values().filter_map(|route| match &route.local {
            Local::Intercepted(intercepted) => Some(&intercepted.gate),
            Local::Tunnel(tunnel) => Some(&tunnel.gate),
            Local::Port(_) | Local::Flow(_) | Local::Device(_) | Local::Nowhere => None,
        });
        of_routes.chain(self.tunnel.as_ref().map(|tunnel| &tunnel.gate))
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
    pub(super) fn update_gates(&self, now: Now) {
        for route in self.routes.values() {
            let remote = self.remotes.get(&route.remote);
            match &route.local {
                Local::Intercepted(intercepted) => {
                    intercepted.gate.set_open(remote.is_some_and(|remote| remote.is_there(now)));
                    intercepted.gate.set_mtu(self.longest_intercepted(now, route));
                }
                Local::Tunnel(tunnel) => self.update_tunnel_gate(now, route, tunnel),
                Local::Port(_) | Local::Flow(_) | Local::Device(_) | Local::Nowhere => {}
            }
        }
        self.update_tunnel_end_gate(now);
    }
}
