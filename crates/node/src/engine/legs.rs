//! Legs: the sessions that this node begins with next hops, one for each, for all that goes over
//! it.
//!
//! The side that begins a session keeps it alive: it pings five times a second and renews keys,
//! however long nobody answers. So a leg lasts only as long as something needs it: a route that
//! leads there or over it, a path through here, a flow that is served along it, a relay that may be
//! the nearest, the registry, a rendezvous. An unneeded leg ends at once where its route leads
//! elsewhere, and otherwise after a while: packets to a remote endpoint that are in flight would be
//! lost with it. Gateways name next hops in the paths that they open: each may have a limited
//! number of legs begun.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use tradewind_grant::{Hop, PublicIdentity};
use tradewind_packet::session::{Link, Now, PeerId};
use tradewind_telemetry::limited;
use tradewind_units::{Duration, Timestamp};

use super::Engine;
use super::paths::Label;
use super::serving::Served;

/// Interval of the checks for unneeded legs.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time after which a neighbour's silence is logged. Chosen: the interval of the checks.
const ANSWERS_WITHIN: Duration = LOOK_EVERY;
/// Time for which an unneeded leg is kept. Chosen: that of labels and flows, whose next one would
/// begin it again.
const IDLE: Duration = Duration::from_secs(30);
/// Most legs that one gateway's paths may have begun. Chosen: as many as members of a group; a
/// sixteenth of a relay's neighbours.
const MOST_FOR_ONE: usize = 256;

/// This node's identity on a leg, and the neighbour's identity and address.
type Key = (PublicIdentity, PublicIdentity, SocketAddr);

/// All legs, by this node's identity and the neighbour.
#[derive(Debug, Default)]
pub(super) struct Legs {
    by_hop: BTreeMap<Key, Leg>,
    next_look: Timestamp,
}

#[derive(Debug)]
struct Leg {
    peer: PeerId,
    begun: Timestamp,
    /// Set once the silence there was logged.
    is_logged: bool,
    /// The last check at which something needed it.
    needed: Timestamp,
    /// The gateway for whose path it was begun, if for one of others.
    begun_for: Option<PublicIdentity>,
}

impl Legs {
    pub(super) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.by_hop.values().map(|leg| leg.peer)
    }

    /// Returns the neighbour there, if `own` has a leg to it.
    pub(super) fn to(&self, own: PublicIdentity, hop: Hop) -> Option<PeerId> {
        self.by_hop.get(&(own, hop.identity, hop.address)).map(|leg| leg.peer)
    }

    fn begun_for(&self, gateway: PublicIdentity) -> usize {
        self.by_hop.values().filter(|leg| leg.begun_for == Some(gateway)).count()
    }
}

impl Engine {
    /// Returns the session with a next hop, which is begun when there is none; `None` when there
    /// are too many.
    pub(super) fn leg(
        &mut self,
        now: Now,
        identity: PublicIdentity,
        address: SocketAddr,
    ) -> Option<PeerId> {
        self.begin_leg(now, self.sessions.public(), Hop { identity, address }, None)
    }

    /// Does the same for the next hop of a gateway's path, which knows this node as `own`.
    pub(super) fn leg_for(
        &mut self,
        now: Now,
        own: PublicIdentity,
        next: Hop,
        gateway: PublicIdentity,
    ) -> Option<PeerId> {
        let is_there = self.legs.to(own, next).is_some();
        if !is_there && self.legs.begun_for(gateway) >= MOST_FOR_ONE {
            return None;
        }
        self.begin_leg(now, own, next, Some(gateway))
    }

    fn begin_leg(
        &mut self,
        now: Now,
        own: PublicIdentity,
        hop: Hop,
        begun_for: Option<PublicIdentity>,
    ) -> Option<PeerId> {
        if let Some(peer) = self.legs.to(own, hop) {
            return Some(peer);
        }
        let shown = self.config.grant.clone();
        let peer =
            self.sessions.connect_as(now, own, hop.identity, Link::to(hop.address), shown)?;
        let (begun, needed) = (now.steady, now.steady);
        let leg = Leg { peer, begun, is_logged: false, needed, begun_for };
        self.legs.by_hop.insert((own, hop.identity, hop.address), leg);
        Some(peer)
    }

    /// Ends a leg now, if nothing needs it any more.
    pub(super) fn leave_leg(&mut self, now: Now, peer: PeerId) {
        let is_needed = self.is_kept_near(peer) || self.needed().any(|needed| needed == peer);
        if !is_needed && self.legs.peers().any(|leg| leg == peer) {
            self.end_leg(now, peer);
        }
    }

    /// Ends legs that nothing has needed for a while, and logs those where nobody answers.
    pub(super) fn maintain_legs(&mut self, now: Now) {
        if now.steady < self.legs.next_look {
            return;
        }
        self.legs.next_look = now.steady + LOOK_EVERY;
        self.log_silence(now);
        let mut needed: BTreeSet<PeerId> = self.needed().collect();
        needed.extend(self.legs.peers().filter(|peer| self.is_kept_near(*peer)));
        let mut gone = Vec::new();
        for leg in self.legs.by_hop.values_mut() {
            if needed.contains(&leg.peer) {
                leg.needed = now.steady;
            } else if now.steady.since(leg.needed) >= IDLE {
                gone.push(leg.peer);
            }
        }
        gone.into_iter().for_each(|peer| self.end_leg(now, peer));
    }

    /// Logs silent neighbours: one that is absent, has another identity, or does not accept this
    /// node, answers nothing, and the operator has to find out which.
    fn log_silence(&mut self, now: Now) {
        for ((_, identity, address), leg) in &mut self.legs.by_hop {
            let is_open = self.sessions.is_open(leg.peer);
            if !is_open && !leg.is_logged && now.steady.since(leg.begun) >= ANSWERS_WITHIN {
                let address = match self.sessions.link_of(leg.peer) {
                    Some(Link::Internet(pair)) => pair.remote,
                    Some(Link::Overlay(_)) | None => *address,
                };
                // Tenants name next hops: one whose legs lead to nobody must not fill the log.
                limited!(
                    warn,
                    self.refusal_lines,
                    leg.begun_for,
                    %address, %identity,
                    "no answer: is it there, at an address of a family that both have, with that \
                     identity and the same wire version, does it trust who signed the grant, which \
                     must list it, and do the clocks agree within 30 s?"
                );
            }
            leg.is_logged = !is_open && now.steady.since(leg.begun) >= ANSWERS_WITHIN;
        }
    }

    /// Returns whether this node keeps a session with a relay for its own measurements, registry or
    /// rendezvous.
    fn is_kept_near(&self, peer: PeerId) -> bool {
        self.members.has(peer) || self.several.has(peer) || self.rendezvous_client.is_with(peer)
    }

    /// Returns the neighbours of routes, paths, flows and conversations.
    fn needed(&self) -> impl Iterator<Item = PeerId> {
        let routes = self.routes.values();
        let of_routes = routes.flat_map(|route| [Some(route.remote), route.first()]).flatten();
        let of_paths = self.labels.values().flat_map(Label::neighbours);
        let of_flows = self.services.served.values().flat_map(Served::neighbours);
        let of_conversations = self.inbound_ids.keys().map(|(remote, _)| *remote);
        of_routes.chain(of_paths).chain(of_flows).chain(of_conversations)
    }

    fn end_leg(&mut self, now: Now, peer: PeerId) {
        self.legs.by_hop.retain(|_, leg| leg.peer != peer);
        self.leg_round_trips.remove(&peer);
        // The path to it that this node has opened needs a leg, too.
        if let Some(label) = self.remotes.get(&peer).and_then(|remote| remote.label) {
            self.drop_label(label);
        }
        self.sessions.close(peer);
        self.forget(now, peer);
    }
}

#[cfg(test)]
mod tests;
