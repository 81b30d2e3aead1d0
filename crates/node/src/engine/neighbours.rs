//! The neighbours that this node chooses itself: the sessions that it begins with them, at the best
//! of their addresses, and the members among them.

mod legs;
mod members;
mod registration;
mod several;

use std::net::SocketAddr;

use tradewind_grant::Hop;
use tradewind_packet::session::{Link, Now, PeerId};
use tradewind_units::Duration;

use super::context::Context;
use crate::membership::Members;
pub(super) use legs::Legs;
pub(super) use members::{MemberTable, RouteTarget};
use several::Several;

/// Them all.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    pub(super) legs: Legs,
    pub(super) several: Several,
    pub(super) members: MemberTable,
}

/// Legs that may be needed no more, since members have changed.
pub(super) struct Former {
    /// The one to the registry.
    pub(super) registry: Option<PeerId>,
    /// Those to relays.
    pub(super) relays: Vec<PeerId>,
}

impl Neighbours {
    /// Returns the session with a neighbour, at the best of its addresses; `None` when there are
    /// too many.
    pub(super) fn leg_to(&mut self, context: &mut Context, now: Now, hop: Hop) -> Option<PeerId> {
        let peer = self.legs.leg(context, now, hop);
        self.begin_several(context, now, hop);
        peer
    }

    /// Begins a leg to each address of a neighbour, if it has several.
    fn begin_several(&mut self, context: &mut Context, now: Now, hop: Hop) {
        let of_members = || self.members.further(hop.identity);
        let others = context.config.further_addresses.get(&hop.identity).or_else(of_members);
        let Some(others) = others.filter(|_| !self.several.knows(hop.identity)) else { return };
        let all: Vec<SocketAddr> = std::iter::once(hop.address).chain(others.clone()).collect();
        let leg = |address: SocketAddr| {
            let hop = Hop { address, ..hop };
            Some((address, self.legs.leg(context, now, hop)?))
        };
        self.several.add(hop.identity, all.into_iter().filter_map(leg).collect());
    }

    /// Replaces the members; the caller updates the routes, which follow the nearest relay.
    pub(super) fn set_members(
        &mut self,
        context: &mut Context,
        now: Now,
        members: Members,
    ) -> Former {
        let registry = self.members.registry().filter(|hop| members.registry != Some(*hop));
        let old = self.members.replace(members.clone());
        self.several.leave(context, now, &old, &members);
        let relays = members.relays.into_iter();
        let legs: Vec<_> =
            relays.filter_map(|hop| Some((hop, self.leg_to(context, now, hop)?))).collect();
        let relays = self.members.set_candidates(now, legs);
        context.access.add_relays(self.members.addresses());
        let hop = self.members.registry();
        let peer = hop.and_then(|hop| self.legs.leg(context, now, hop));
        self.members.register_with(peer);
        self.members.choose_again();
        let own = context.sessions.public();
        Former { registry: registry.and_then(|hop| self.legs.to(own, hop)), relays }
    }

    /// Returns whether this node keeps a session with a neighbour for its own measurements or the
    /// registry.
    pub(super) fn has(&self, peer: PeerId) -> bool {
        self.members.has(peer) || self.several.has(peer)
    }

    /// Returns whether a neighbour need not be pinged: a relay that carries nothing for this node
    /// and has been measured, or one of a rendezvous.
    pub(super) fn is_idle(
        &self,
        peer: PeerId,
        is_of_rendezvous: bool,
        carries: impl FnOnce(PeerId) -> bool,
    ) -> bool {
        let in_use = self.several.in_use(peer);
        // The addresses of a rendezvous are compared by their pongs.
        let is_rendezvous = is_of_rendezvous && !self.several.has(peer);
        (self.members.is_measured(in_use) || is_rendezvous) && !carries(in_use)
    }

    /// Records a pong over the Internet; returns whether it counts for the neighbour.
    pub(super) fn note_answer(
        &mut self,
        context: &Context,
        now: Now,
        (peer, link): (PeerId, Link),
        round_trip: Duration,
    ) -> bool {
        if !self.several.counts_pong(context, peer, link) {
            return false;
        }
        self.several.note_answer(now.steady, peer, round_trip);
        self.members.note_answer(now.steady, peer, round_trip);
        true
    }
}
