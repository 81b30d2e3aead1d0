//! The configuration of a node, from a program, or from a relay's or a gateway's file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use tradewind_config::ConfigError;
use tradewind_config::packet::{
    ANY_PORT, Copying, DeliveryPolicy, Group, Intercepted, LegSeal, MemberReferences, Path,
    RelayServices, Rendezvous, SectionKeys, TrafficSource, Tunnel, check_devices,
};
use tradewind_grant::{
    Destination, DestinationRule, Grant, Hop, IdentityKey, OperatorPublicKey, Policy,
    PublicIdentity, Revocations, SignedGrant,
};
use tradewind_net::interception::OWN_MARK;
use tradewind_packet::ingress::Sharing;

use crate::NodeError;
use crate::membership::Members;

mod bare;
mod file;

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
    /// Further addresses of relays and remote endpoints, by identity: the one that measures best is
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
    /// The sections of the file that its paths, groups and deposits were read from.
    pub sections: SectionKeys,
}

/// An upper limit of threads, above the cores of any machine that this is meant for.
const MAX_WORKERS: usize = 1024;

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
            TrafficSource::Intercepted(_) | TrafficSource::Tunnel(_) => {
                (None, path.delivery.clone())
            }
        });
        let ranges = self.paths.iter().flat_map(|path| match &path.source {
            TrafficSource::Intercepted(Intercepted { destinations, .. })
            | TrafficSource::Tunnel(Tunnel { destinations, .. }) => destinations.as_slice(),
            TrafficSource::Port { .. } => &[],
        });
        let is_tunnel = |path: &Path| matches!(path.source, TrafficSource::Tunnel(_));
        if grant.extensions.sources.is_empty() && self.paths.iter().any(is_tunnel) {
            tracing::warn!(
                "grant: it names no `sources`, so remote gateways put none of these packets out"
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
                tracing::warn!(%address, %identity, "grant: it does not list this relay or remote \
                    gateway, which will refuse it");
            }
        }
    }

    /// Returns the policy together with the configuration's relays and remote endpoints, at which
    /// no packet may end.
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
        let refused = |key: &str, problem: &str| Err(ConfigError::new(key, problem).into());
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return refused("workers", "expected 1 to 1024 threads");
        }
        self.services.check()?;
        if self.preserve_source.iter().any(|rule| rule.range().is_none()) {
            return refused("preserve_source", "expected ranges of addresses");
        }
        if let Some(tunnel) = &self.tunnel {
            tunnel.check()?;
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
        let of_paths = self.paths.iter().filter_map(|path| match &path.source {
            TrafficSource::Tunnel(tunnel) => Some(tunnel),
            TrafficSource::Port { .. } | TrafficSource::Intercepted(_) => None,
        });
        check_devices(of_paths.chain(&self.tunnel).map(|tunnel| ("tun".to_owned(), tunnel)))?;
        Ok(self.paths.iter().try_for_each(Path::check)?)
    }

    /// Checks that the members file, if there is one, is valid and has all that sections name.
    fn check_members(&self) -> Result<(), NodeError> {
        let members = self.members.as_deref().map(Members::read).transpose()?;
        let may_know = members.as_ref().map(|members| |name: &str| members.may_know(name));
        let has = may_know.as_ref().map(|has| has as &dyn Fn(&str) -> bool);
        let references = MemberReferences {
            paths: &self.paths,
            groups: &self.groups,
            rendezvous: &self.rendezvous,
        };
        Ok(self.sections.check_members(references, has)?)
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
            TrafficSource::Intercepted(intercepted) => intercepted.local_output,
            TrafficSource::Tunnel(_) | TrafficSource::Port { .. } => false,
        };
        self.paths.iter().any(takes).then_some(OWN_MARK)
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
