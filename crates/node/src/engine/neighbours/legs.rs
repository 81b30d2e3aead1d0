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

use crate::engine::context::Context;
use crate::engine::smooth;

/// Interval of the checks for unneeded legs.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time after which a neighbour's silence is logged. Chosen: the interval of the checks.
const ANSWERS_WITHIN: Duration = LOOK_EVERY;
/// Time for which an unneeded leg is kept. Chosen: that of labels and flows, whose next one would
/// begin it again.
const IDLE: Duration = Duration::from_secs(30);
/// Most legs that one gateway's paths may have begun. Chosen: as many as members of a group; a
/// sixteenth of a relay's neighbours.
const MAX_FOR_ONE: usize = 256;

/// This node's identity on a leg, and the neighbour's identity and address.
type Key = (PublicIdentity, PublicIdentity, SocketAddr);

/// All legs, by this node's identity and the neighbour.
#[derive(Debug, Default)]
pub(in crate::engine) struct Legs {
    by_hop: BTreeMap<Key, Leg>,
    /// Round trips to the neighbours that this node connects to, smoothed.
    round_trips: BTreeMap<PeerId, Duration>,
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
    pub(in crate::engine) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.by_hop.values().map(|leg| leg.peer)
    }

    /// Returns the neighbour there, if `own` has a leg to it.
    pub(super) fn to(&self, own: PublicIdentity, hop: Hop) -> Option<PeerId> {
        self.by_hop.get(&(own, hop.identity, hop.address)).map(|leg| leg.peer)
    }

    pub(in crate::engine) fn has(&self, peer: PeerId) -> bool {
        self.peers().any(|leg| leg == peer)
    }

    fn begun_for(&self, gateway: PublicIdentity) -> usize {
        self.by_hop.values().filter(|leg| leg.begun_for == Some(gateway)).count()
    }
}

impl Legs {
    /// Returns the session with a next hop, which is begun when there is none; `None` when there
    /// are too many.
    pub(super) fn leg(&mut self, context: &mut Context, now: Now, hop: Hop) -> Option<PeerId> {
        let own = context.sessions.public();
        self.begin(context, now, (own, hop), None)
    }

    /// Does the same for the next hop of a gateway's path, which knows this node as `own`.
    pub(in crate::engine) fn leg_for(
        &mut self,
        context: &mut Context,
        now: Now,
        (own, next): (PublicIdentity, Hop),
        gateway: PublicIdentity,
    ) -> Option<PeerId> {
        let is_there = self.to(own, next).is_some();
        if !is_there && self.begun_for(gateway) >= MAX_FOR_ONE {
            return None;
        }
        self.begin(context, now, (own, next), Some(gateway))
    }

    fn begin(
        &mut self,
        context: &mut Context,
        now: Now,
        (own, hop): (PublicIdentity, Hop),
        begun_for: Option<PublicIdentity>,
    ) -> Option<PeerId> {
        if let Some(peer) = self.to(own, hop) {
            return Some(peer);
        }
        let shown = context.config.grant.clone();
        let link = Link::to(hop.address);
        let peer = context.sessions.connect_as(now, own, hop.identity, link, shown)?;
        let (begun, needed) = (now.steady, now.steady);
        let leg = Leg { peer, begun, is_logged: false, needed, begun_for };
        self.by_hop.insert((own, hop.identity, hop.address), leg);
        Some(peer)
    }

    /// Returns the smoothed round trip to a neighbour that this node connects to.
    pub(in crate::engine) fn round_trip(&self, peer: PeerId) -> Option<Duration> {
        self.round_trips.get(&peer).copied()
    }

    /// Records a round trip to a neighbour that this node connects to.
    pub(in crate::engine) fn note_round_trip(&mut self, peer: PeerId, round_trip: Duration) {
        let smoothed = smooth(self.round_trip(peer), round_trip);
        self.round_trips.insert(peer, smoothed);
    }

    /// Replaces the round trip to a neighbour, of which another address was measured.
    pub(in crate::engine) fn set_round_trip(&mut self, peer: PeerId, measured: Option<Duration>) {
        self.round_trips.extend(measured.map(|round_trip| (peer, round_trip)));
    }

    /// Returns whether the check for unneeded legs is due, and puts off the next.
    pub(in crate::engine) fn is_check_due(&mut self, now: Now) -> bool {
        let is_due = now.steady >= self.next_look;
        if is_due {
            self.next_look = now.steady + LOOK_EVERY;
        }
        is_due
    }

    /// Returns the legs that nothing has needed for a while, and logs those where nobody answers.
    pub(in crate::engine) fn check(
        &mut self,
        context: &Context,
        now: Now,
        needed: &BTreeSet<PeerId>,
    ) -> Vec<PeerId> {
        self.log_silence(context, now);
        let mut gone = Vec::new();
        for leg in self.by_hop.values_mut() {
            if needed.contains(&leg.peer) {
                leg.needed = now.steady;
            } else if now.steady.since(leg.needed) >= IDLE {
                gone.push(leg.peer);
            }
        }
        gone
    }

    /// Logs silent neighbours: one that is absent, has another identity, or does not accept this
    /// node, answers nothing, and the operator has to find out which.
    fn log_silence(&mut self, context: &Context, now: Now) {
        for ((_, identity, address), leg) in &mut self.by_hop {
            let is_open = context.sessions.is_open(leg.peer);
            if !is_open && !leg.is_logged && now.steady.since(leg.begun) >= ANSWERS_WITHIN {
                let address = context.address_of(leg.peer).unwrap_or(*address);
                // Tenants name next hops: one whose legs lead to nobody must not fill the log.
                limited!(
                    warn,
                    context.refusal_lines,
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

    /// Ends a leg and its session.
    pub(in crate::engine) fn end(&mut self, context: &mut Context, peer: PeerId) {
        self.by_hop.retain(|_, leg| leg.peer != peer);
        self.round_trips.remove(&peer);
        context.sessions.close(peer);
    }
}

#[cfg(test)]
mod tests;
