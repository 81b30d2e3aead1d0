//! The configuration of a node, from a program or from a relay's or a gateway's TOML.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;
use tradewind_grant::{
    Destination, DestinationRule, Grant, Hop, IdentityKey, OperatorPublicKey, Policy,
    PublicIdentity, Revocations, Route, SignedGrant,
};
use tradewind_net::interception::OWN_MARK;
use tradewind_packet::ingress::Sharing;
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_plan::packets::BlockCoding;
use tradewind_units::{Duration, Money, Ratio};

use crate::NodeError;
use crate::membership::Members;

mod bare;
mod clashes;
mod copying;
mod file;
mod group;
mod members;
mod place;
mod relay_services;
mod rendezvous;

pub use copying::{Chosen, Copying};
pub(crate) use file::{Addresses, Placed};
pub use group::{Group, GroupMember};
pub(crate) use place::in_section;
pub use place::{Section, Sections};
pub use relay_services::RelayServices;
pub use rendezvous::{Deposits, Recipient, Rendezvous};

/// Datagrams of unmodified applications, and their way to a far endpoint.
#[derive(Debug, Clone)]
pub struct Path {
    /// The source of the datagrams.
    pub source: TrafficSource,
    /// The way to the far endpoint.
    pub delivery: DeliveryPolicy,
}

/// The way by which datagrams of unmodified applications enter a node.
#[derive(Debug, Clone)]
pub enum TrafficSource {
    /// Datagrams written to a local port, which all go to one destination.
    Port {
        /// The address that applications write to; with port 0 the system chooses a port.
        listen: SocketAddr,
        /// The address to which the far endpoint delivers.
        to: SocketAddr,
    },
    /// Datagrams intercepted on their way (TPROXY), which go to their own destinations.
    Taken(Taken),
    /// Whole IP packets of any protocol, which the kernel routes into a TUN device.
    Tunnel(Tunnel),
}

/// A TUN device, and the ranges whose IP packets are routed into it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tunnel {
    /// The device's name, which no other device has.
    pub name: String,
    /// Ranges of addresses, with all ports: the destinations of packets that the far endpoint
    /// delivers, or the sources of packets that are delivered here.
    pub destinations: Vec<DestinationRule>,
    /// Most bytes of a packet; no more than the path takes in any case.
    pub mtu: Option<u16>,
}

/// The datagrams to intercept.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    /// Their destinations: ranges of addresses with ports.
    pub destinations: Vec<DestinationRule>,
    /// Set if datagrams that this host itself sends are intercepted as well as those it forwards.
    #[serde(default)]
    pub local_output: bool,
    /// The port on loopback to which they are redirected; the system chooses one when absent.
    #[serde(default)]
    pub port: u16,
}

/// The way to a far endpoint: relays and service.
#[derive(Debug, Clone)]
pub struct DeliveryPolicy {
    /// The far endpoint.
    pub far: Far,
    /// The relays before it; may be none when the service is direct.
    pub relays: Via,
    /// The service, paths and budget of its packets.
    pub carriage: Carriage,
    /// Share of packets that may be late or lost. With it, the service is chosen while the flow
    /// runs, by this share and the budget.
    pub max_loss: Option<Ratio>,
    /// The packets that are copied to the relays; `None`: all.
    pub copies: Option<Chosen>,
    /// The assumptions under which its service is chosen.
    pub assumed: Assumed,
}

impl DeliveryPolicy {
    /// Returns the relays and the far endpoint that are given by address.
    pub(crate) fn named(&self) -> impl Iterator<Item = &Hop> {
        let relays = match &self.relays {
            Via::Relays(relays) => relays.as_slice(),
            Via::Nearest => &[],
        };
        let far = match &self.far {
            Far::At(hop) => Some(hop),
            Far::Member(_) => None,
        };
        relays.iter().chain(far)
    }
}

/// The assumptions for the choice of a service before relays have reported their prices and their
/// coding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assumed {
    /// The cost of each service; `None`: in proportion to the bytes that leave relays.
    pub costs: Option<ServiceCosts>,
    /// The relays' coding rates.
    pub coding: BlockCoding,
}

impl Default for Assumed {
    /// The coding of relays with default settings.
    fn default() -> Self {
        RelayServices::default().assumed()
    }
}

/// The cost of each service: dollars for each GB of the flow, or any other unit where relays report
/// no prices; the Internet alone costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceCosts {
    /// The cost of coding.
    pub coding: Money,
    /// The cost of caching.
    pub caching: Money,
    /// The cost of forwarding.
    pub forwarding: Money,
    /// The Internet's loss for which these costs hold.
    #[serde(default)]
    pub loss: Ratio,
}

/// The place of a far endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Far {
    /// This address and identity.
    At(Hop),
    /// The place that the members list for this id or identity.
    Member(String),
}

impl From<Hop> for Far {
    fn from(hop: Hop) -> Self {
        Self::At(hop)
    }
}

/// The relays that packets go over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Via {
    /// These, in order.
    Relays(Vec<Hop>),
    /// The relay nearest to this node, as it measures itself, and the one nearest to the far
    /// endpoint, as the members list it.
    Nearest,
}

impl From<Vec<Hop>> for Via {
    fn from(relays: Vec<Hop>) -> Self {
        Self::Relays(relays)
    }
}

impl Via {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Relays(relays) if relays.is_empty())
    }
}

/// A node's configuration.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The address at which neighbours reach it; with port 0 the system chooses a port.
    pub listen: SocketAddr,
    /// Its identity.
    pub identity: IdentityKey,
    /// Further identities that it accepts during a rotation.
    pub other_identities: Vec<IdentityKey>,
    /// The number of threads. An endpoint has one.
    pub workers: usize,
    /// The operators whose grants it trusts.
    pub operators: Vec<OperatorPublicKey>,
    /// The revocations of these operators.
    pub revocations: Revocations,
    /// Relays that open sessions here without a grant.
    pub neighbours: BTreeSet<PublicIdentity>,
    /// The destinations that it delivers to and the next hops that it sends to; none by default.
    pub policy: Policy,
    /// The grant that its own paths use.
    pub grant: Option<SignedGrant>,
    /// Its own paths.
    pub paths: Vec<Path>,
    /// Its own groups.
    pub groups: Vec<Group>,
    /// Further addresses of relays and far endpoints, by identity: the one that measures best is
    /// used.
    pub further_addresses: BTreeMap<PublicIdentity, Vec<SocketAddr>>,
    /// Delivery policies of flows that its program begins while it runs.
    pub courses: Vec<DeliveryPolicy>,
    /// Set if it retransmits copies that are lost on the path to their first relay.
    pub repeats_copies: bool,
    /// Sources whose datagrams are delivered under their own address and port. Others are delivered
    /// under an address of this host.
    pub preserve_source: Vec<DestinationRule>,
    /// The device to which it delivers whole IP packets, and from which it takes the replies.
    pub tunnel: Option<Tunnel>,
    /// The services that it offers as a relay.
    pub services: RelayServices,
    /// The file that lists relays and endpoints ([`Members`]); it is read again when it changes.
    pub members: Option<PathBuf>,
    /// The copying of packets to relays.
    pub copying: Copying,
    /// The deposits that it makes at relays for receivers that may be offline, and the relays where
    /// packets wait for it.
    pub rendezvous: Rendezvous,
    /// The part of a forwarded packet that it seals.
    pub leg_seal: LegSeal,
    /// The sections that it was read from, if it was read from a file.
    pub sections: Sections,
}

/// The part that is sealed, on a leg, of packets on overlay paths, whose ends have sealed them
/// already. Packets that arrive sealed either way are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LegSeal {
    /// The headers: nobody can have more packets forwarded than were sent, nor to another place.
    /// For a relay this takes a third of the time.
    Headers,
    /// The whole packet: in addition, nobody can put other bytes in a packet's place, or see that
    /// packets on two legs are the same.
    #[default]
    Whole,
}

/// The default listening address: every address of both families, at a port that the system
/// chooses.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
/// An upper limit of threads, above the cores of any machine that this is meant for.
const MOST_WORKERS: usize = 1024;

impl NodeConfig {
    /// Warns of settings that are possible but most likely not meant.
    pub(crate) fn warn(&self) {
        if self.workers > 1 && self.services.sharing == Sharing::Any {
            tracing::warn!(
                workers = self.workers,
                "coding.across_gateways: gateways are coded together only where they share a \
                 worker; with one all do"
            );
        }
        if !self.policy.destinations.is_empty() && self.operators.is_empty() {
            tracing::warn!(
                "operators: none, so that nobody's packets are delivered to `destinations`"
            );
        }
        if let Some(grant) = &self.grant {
            self.warn_of_grant(grant.unverified());
        }
    }

    /// Warns of destinations that the grant does not cover. The node that checks the grant refuses
    /// them without an answer, so they are reported here.
    fn warn_of_grant(&self, grant: &Grant) {
        let of_groups = self.groups.iter().flat_map(Group::courses);
        let of_groups = of_groups.map(|(to, delivery)| (Some(to), delivery));
        let of_paths = self.paths.iter().map(|path| match &path.source {
            TrafficSource::Port { to, .. } => (Some(*to), path.delivery.clone()),
            TrafficSource::Taken(_) | TrafficSource::Tunnel(_) => (None, path.delivery.clone()),
        });
        let ranges = self.paths.iter().flat_map(|path| match &path.source {
            TrafficSource::Taken(Taken { destinations, .. })
            | TrafficSource::Tunnel(Tunnel { destinations, .. }) => destinations.as_slice(),
            TrafficSource::Port { .. } => &[],
        });
        let is_tunnel = |path: &Path| matches!(path.source, TrafficSource::Tunnel(_));
        if grant.extensions.sources.is_empty() && self.paths.iter().any(is_tunnel) {
            tracing::warn!(
                "grant: it names no `sources`, so that far gateways put none of these packets out"
            );
        }
        for rule in ranges.filter(|rule| !covers_ends(grant, rule)) {
            tracing::warn!(%rule, "grant: it does not cover all of where these packets go, and \
                what is taken for the rest will be lost");
        }
        for (to, delivery) in of_paths.chain(of_groups) {
            if let Some(to) = to.filter(|to| !grant.may_cover(&Destination::Address(*to))) {
                tracing::warn!(%to, "grant: it does not cover where these packets go, and they \
                    will be refused");
            }
            for hop in delivery.named().filter(|hop| !grant.relays.contain(&hop.identity)) {
                let Hop { address, identity } = hop;
                tracing::warn!(%address, %identity, "grant: it does not list this relay or far \
                    gateway, which will refuse it");
            }
        }
    }

    /// Returns the policy together with the configuration's relays and far endpoints, at which no
    /// packet may end.
    pub(crate) fn known_policy(&self) -> Policy {
        let of_groups = self.groups.iter().flat_map(Group::courses).map(|(_, delivery)| delivery);
        let courses = self.paths.iter().map(|path| path.delivery.clone()).chain(of_groups);
        let named: Vec<DeliveryPolicy> = courses.chain(self.courses.iter().cloned()).collect();
        let named = named.iter().flat_map(DeliveryPolicy::named);
        let deposits = self.rendezvous.deposits.iter().map(|deposits| &deposits.relay);
        let hops = named.chain(deposits).chain(&self.rendezvous.relays);
        let further = self.further_addresses.values().flatten().copied();
        let known: BTreeSet<SocketAddr> = hops.map(|hop| hop.address).chain(further).collect();
        let mut policy = self.policy.clone();
        policy.relays.extend(known);
        policy
    }

    pub(crate) fn check(&self) -> Result<(), NodeError> {
        self.check_all().map_err(|error| match (self.sections.own, error) {
            (Some(name), error @ NodeError::Config { key, .. }) if HERE.contains(&key) => {
                NodeError::Section { section: Section::of(name), error: error.into() }
            }
            (_, error) => error,
        })
    }

    fn check_all(&self) -> Result<(), NodeError> {
        let refused = |key, problem: &str| Err(NodeError::Config { key, problem: problem.into() });
        if !(1..=MOST_WORKERS).contains(&self.workers) {
            return refused("workers", "expected 1 to 1024 threads");
        }
        self.services.check()?;
        if self.preserve_source.iter().any(|rule| rule.range().is_none()) {
            return refused("preserve_source", "expected ranges of addresses");
        }
        if let Some(tunnel) = &self.tunnel {
            tunnel.check("packet_endpoint.tun")?;
            if self.workers != 1 {
                return refused("workers", "a node with a TUN device has one worker");
            }
        }
        if let Some(chosen) = &self.copying.replies {
            chosen.check(self.tunnel.is_some())?;
        }
        let sends =
            !(self.paths.is_empty() && self.groups.is_empty() && self.rendezvous.is_empty());
        if !sends && self.members.is_none() {
            return Ok(());
        }
        if self.workers != 1 {
            return refused("workers", "a node with paths or members of its own has one worker");
        }
        if self.grant.is_none() {
            let problem = "missing: expected one for packets to be sent (`tradewind grant issue`)";
            return refused("grant", problem);
        }
        self.groups.iter().try_for_each(Group::check)?;
        self.check_members()?;
        self.rendezvous.check()?;
        self.check_devices()?;
        self.paths.iter().try_for_each(Path::check)
    }

    /// Returns the socket mark for packets to neighbours where traffic of this host itself is
    /// intercepted: it tells the node's own packets from others.
    pub(crate) fn neighbours_mark(&self) -> Option<u32> {
        let has_device = |path: &Path| matches!(path.source, TrafficSource::Tunnel(_));
        let has_devices = self.tunnel.is_some() || self.paths.iter().any(has_device);
        self.delivery_mark().or(has_devices.then_some(OWN_MARK))
    }

    /// Returns the socket mark for delivered packets where datagrams of this host itself are
    /// intercepted: without it they would be intercepted again, without end.
    pub(crate) fn delivery_mark(&self) -> Option<u32> {
        let takes = |path: &Path| match &path.source {
            TrafficSource::Taken(taken) => taken.local_output,
            TrafficSource::Tunnel(_) | TrafficSource::Port { .. } => false,
        };
        self.paths.iter().any(takes).then_some(OWN_MARK)
    }
}

/// Keys of a node's own section; other keys stand in several sections, or apart.
const HERE: [&str; 7] = [
    "workers",
    "coding",
    "rendezvous",
    "preserve_source",
    "packet_endpoint.tun",
    "copies",
    "members",
];

/// Least and most bytes of a packet: what every host accepts (RFC 791), and what a UDP datagram
/// carries besides all headers.
const LEAST_MTU: u16 = 576;
const MOST_MTU: u16 = 65_280;

impl Path {
    /// Checks the path by itself.
    pub(crate) fn check(&self) -> Result<(), NodeError> {
        self.delivery.check()?;
        if let Some(chosen) = &self.delivery.copies {
            chosen.check(matches!(self.source, TrafficSource::Tunnel(_)))?;
        }
        let refused = |key, problem: &str| Err(NodeError::Config { key, problem: problem.into() });
        match &self.source {
            TrafficSource::Taken(Taken { destinations, .. })
                if destinations.is_empty()
                    || destinations.iter().any(|rule| rule.range().is_none()) =>
            {
                refused("tproxy.destinations", "expected ranges of addresses")
            }
            TrafficSource::Port { to, .. } if to.port() == 0 => {
                refused("to", "expected a port from 1 to 65535")
            }
            TrafficSource::Tunnel(tunnel) => tunnel.check("tun"),
            TrafficSource::Taken(_) | TrafficSource::Port { .. } => Ok(()),
        }
    }
}

/// Returns whether a grant covers the first and the last address and port of a range.
fn covers_ends(grant: &Grant, rule: &DestinationRule) -> bool {
    let Some(net) = rule.range().and_then(|(base, bits)| IpNet::new(base, bits).ok()) else {
        return true;
    };
    let ends = [(net.network(), *rule.ports().start()), (net.broadcast(), *rule.ports().end())];
    ends.into_iter().all(|end| grant.may_cover(&Destination::Address(end.into())))
}

impl Tunnel {
    fn check(&self, key: &'static str) -> Result<(), NodeError> {
        let refused = |problem: &str| Err(NodeError::Config { key, problem: problem.into() });
        let is_everything =
            |rule: &DestinationRule| rule.range().is_some_and(|(_, bits)| bits == 0);
        if let Some(rule) = self.destinations.iter().find(|rule| is_everything(rule)) {
            return refused(&format!(
                "`{rule}` would take all that this host sends, to its neighbours and name servers, \
                 too; expected the networks behind the other gateway, as `10.2.0.0/16:*`"
            ));
        }
        let is_whole =
            |rule: &DestinationRule| rule.range().is_some() && rule.ports() == (1..=u16::MAX);
        if self.destinations.is_empty() || !self.destinations.iter().all(is_whole) {
            return refused("expected ranges of addresses with all ports, as `10.2.0.0/16:*`");
        }
        if self.mtu.is_some_and(|mtu| !(LEAST_MTU..=MOST_MTU).contains(&mtu)) {
            return refused("expected an `mtu` of 576 to 65280");
        }
        // The kernel's rules for names.
        let is_of_name = |c: char| c.is_ascii_graphic() && !"/:%".contains(c);
        if !(1..=15).contains(&self.name.len()) || !self.name.chars().all(is_of_name) {
            let problem = "expected a `name` of 1 to 15 letters, digits, `-` or `_`, not ";
            return refused(&format!("{problem}`{}`", self.name));
        }
        Ok(())
    }
}

impl DeliveryPolicy {
    pub(crate) fn check(&self) -> Result<(), NodeError> {
        let refused = |key, problem: &str| Err(NodeError::Config { key, problem: problem.into() });
        let Self { relays, carriage, max_loss, copies, .. } = self;
        let is_auto = max_loss.is_some();
        let is_over_relays = carriage.paths == Paths::Overlay;
        let has_copies = is_auto || (carriage.service != Service::Direct && !is_over_relays);
        if copies.is_some() && (relays.is_empty() || !has_copies) {
            return refused("copies", "expected only with relays beside the Internet");
        }
        if relays.is_empty() && (is_auto || carriage.service != Service::Direct) {
            return refused("relays", "missing; expected at least one, or `service = \"direct\"`");
        }
        if is_auto && carriage.budget_ms == 0 {
            return refused("budget", "missing; `service = \"auto\"` chooses by it");
        }
        let recovers = is_auto || matches!(carriage.service, Service::Caching | Service::Coding);
        if recovers && matches!(relays, Via::Relays(relays) if relays.len() > 2) {
            return refused("relays", "caching, coding and auto take one relay or two");
        }
        let hops: Vec<Hop> = self.named().cloned().collect();
        if hops.is_empty() {
            return Ok(());
        }
        Route::new(hops).map(drop).or_else(|error| refused("relays", &error.to_string()))
    }
}

/// Returns a latency budget as it is sent to the far endpoint.
pub(crate) fn budget_ms(budget: Duration) -> Result<u16, NodeError> {
    u16::try_from(budget.as_millis()).map_err(|_| {
        let problem = "expected at most 65 s".to_owned();
        NodeError::Config { key: "budget", problem }
    })
}

/// Returns the default share of packets that may be late or lost: 0.1 %, above which paths count as
/// lossy [JQ 5.2].
pub(crate) fn max_loss() -> Ratio {
    Ratio::new(0.001).expect("a share")
}
