//! Neighbours with several addresses: all are pinged, and the best that answers is used.
//!
//! Each address has a session of its own, by which it is measured. Packets go over one session,
//! which moves from address to address: it trades places with the session that was there before. So
//! a neighbour keeps its session and state, at whichever address it is reached.
//!
//! An address is replaced when another is better by more than noise for a while, or at once when it
//! is silent for longer than its own losses explain.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tradewind_grant::PublicIdentity;
use tradewind_packet::session::{Link, Now, PeerId};
use tradewind_units::{Duration, Timestamp};

use crate::engine::context::Context;
use crate::membership::Members;

/// Unanswered pings after which an address without losses counts as down. Chosen: as for a remote
/// endpoint.
const MIN_SILENT: u32 = 4;
/// The same for any address. Chosen: five seconds.
const MAX_SILENT: u32 = 25;
/// Number of pings among which losses alone look like an outage once. Chosen: once in half an hour.
const SELDOM: f64 = 10_000.0;
/// Pings over which the loss is averaged. Chosen: those of the last 13 s.
const AVERAGED: u32 = 64;
/// The difference by which another address must be better to be used instead: this, and a fifth.
/// Chosen: as for relays.
const BETTER_BY: Duration = Duration::from_millis(1);
/// The additional loss that a nearer address may have, and the margin by which twice the loss of
/// another address must be below the current one's for it to be better by that alone. Chosen.
const MORE_LOST: f64 = 0.02;
const LESS_LOST: f64 = 0.05;
/// Time for which another address must be better. Chosen: longer than a burst of queueing.
const BETTER_FOR: Duration = Duration::from_secs(5);

/// The addresses of one neighbour.
#[derive(Debug)]
struct Addresses {
    all: Vec<Address>,
    /// The address in use.
    chosen: usize,
    /// Another address that is better, and since when.
    better: Option<(usize, Timestamp)>,
}

#[derive(Debug)]
struct Address {
    at: SocketAddr,
    /// The session that leads there now.
    peer: PeerId,
    round_trip: Option<Duration>,
    last_pong: Option<Timestamp>,
    /// The time of the last ping.
    last_ping: Timestamp,
    /// Pings since the last pong.
    silent: u32,
    /// The mean loss of pings, up to the last pong; below: the number of pings in it.
    lost: f64,
    counted: u32,
}

impl Address {
    fn new(at: SocketAddr, peer: PeerId) -> Self {
        let (round_trip, last_pong, last_ping) = (None, None, Timestamp::ZERO);
        Self { at, peer, round_trip, last_pong, last_ping, silent: 0, lost: 0.0, counted: 0 }
    }

    fn answers(&self) -> bool {
        // So many losses in a row are rare enough by chance.
        let by_chance = (-SELDOM.ln() / self.lost.ln()).ceil();
        let threshold = by_chance.clamp(MIN_SILENT.into(), MAX_SILENT.into());
        self.last_pong.is_some() && f64::from(self.silent) < threshold
    }

    fn note_answer(&mut self, now: Timestamp, round_trip: Duration) {
        self.last_pong = Some(now);
        self.round_trip = Some(match self.round_trip {
            Some(before) => (before * 7 + round_trip) / 8,
            None => round_trip,
        });
    }

    /// Counts whether the last ping was answered; the caller sends another one now.
    fn note_ping(&mut self, now: Timestamp) {
        let Some(last_pong) = self.last_pong else { return };
        let last_ping = std::mem::replace(&mut self.last_ping, now);
        if last_pong <= last_ping {
            self.silent = self.silent.saturating_add(1);
            return;
        }
        for _ in 0..std::mem::take(&mut self.silent).min(MAX_SILENT) {
            self.count(1.0);
        }
        self.count(0.0);
    }

    fn count(&mut self, lost: f64) {
        self.counted = (self.counted + 1).min(AVERAGED);
        self.lost += (lost - self.lost) / f64::from(self.counted);
    }

    fn is_better_than(&self, other: &Self) -> bool {
        let (Some(round_trip), Some(others)) = (self.round_trip, other.round_trip) else {
            return false;
        };
        let is_nearer = round_trip + round_trip / 5 + BETTER_BY < others;
        (is_nearer && self.lost <= other.lost + MORE_LOST)
            || self.lost * 2.0 + LESS_LOST < other.lost
    }
}

impl Addresses {
    fn new(all: Vec<Address>) -> Self {
        Self { all, chosen: 0, better: None }
    }

    /// Counts a ping to all; returns the address to change to, if another is better by the
    /// measurements.
    fn note_pings(&mut self, now: Timestamp) -> Option<usize> {
        self.all.iter_mut().for_each(|address| address.note_ping(now));
        let current = &self.all[self.chosen];
        let is_alive = current.answers();
        let others = self.all.iter().enumerate().filter(|(at, address)| {
            let is_wanted = !is_alive || address.is_better_than(current);
            *at != self.chosen && address.answers() && is_wanted
        });
        let Some((at, _)) = others.min_by_key(|(_, address)| address.round_trip) else {
            self.better = None;
            return None;
        };
        let since = match self.better {
            Some((known, since)) if known == at => since,
            _ => now,
        };
        self.better = Some((at, since));
        (!is_alive || now.since(since) >= BETTER_FOR).then_some(at)
    }

    /// Changes to another address. Returns both sessions with their addresses, the one for packets
    /// first.
    fn take(&mut self, at: usize) -> [(PeerId, SocketAddr); 2] {
        let (before, peer) = (self.chosen, self.all[self.chosen].peer);
        self.all[before].peer = std::mem::replace(&mut self.all[at].peer, peer);
        (self.chosen, self.better) = (at, None);
        [at, before].map(|at| (self.all[at].peer, self.all[at].at))
    }
}

/// Neighbours with several addresses, by identity.
#[derive(Debug, Default)]
pub(in crate::engine) struct Several(BTreeMap<PublicIdentity, Addresses>);

impl Several {
    /// Returns whether a leg leads to one of several addresses.
    pub(super) fn has(&self, peer: PeerId) -> bool {
        self.0.values().flat_map(|known| &known.all).any(|address| address.peer == peer)
    }

    /// Returns the session for packets to a neighbour, given one to any of its addresses.
    pub(super) fn in_use(&self, peer: PeerId) -> PeerId {
        let is_of_it = |known: &&Addresses| known.all.iter().any(|address| address.peer == peer);
        self.0.values().find(is_of_it).map_or(peer, |known| known.all[known.chosen].peer)
    }

    /// Records a pong over the Internet.
    pub(super) fn note_answer(&mut self, now: Timestamp, peer: PeerId, round_trip: Duration) {
        let mut all = self.0.values_mut().flat_map(|known| &mut known.all);
        if let Some(address) = all.find(|address| address.peer == peer) {
            address.note_answer(now, round_trip);
        }
    }
}

impl Several {
    /// Returns whether the addresses of a neighbour are known.
    pub(super) fn knows(&self, identity: PublicIdentity) -> bool {
        self.0.contains_key(&identity)
    }

    /// Adds a neighbour with sessions at more than one address.
    pub(super) fn add(&mut self, identity: PublicIdentity, legs: Vec<(SocketAddr, PeerId)>) {
        if legs.len() > 1 {
            let all = legs.into_iter().map(|(at, peer)| Address::new(at, peer));
            self.0.insert(identity, Addresses::new(all.collect()));
        }
    }

    /// Forgets the addresses of neighbours whose addresses have changed.
    pub(super) fn leave(
        &mut self,
        context: &mut Context,
        now: Now,
        before: &Members,
        after: &Members,
    ) {
        let in_members = |members: &Members, identity: PublicIdentity| {
            let relay = members.relays.iter().find(|hop| hop.identity == identity).copied();
            let member = members.endpoint_of(identity).map(|member| member.address);
            (relay, member, members.further.get(&identity).cloned())
        };
        let configured = &context.config.further_addresses;
        let changed = self.0.keys().copied().filter(|identity| {
            let is_same = in_members(before, *identity) == in_members(after, *identity);
            !is_same && !configured.contains_key(identity)
        });
        for identity in changed.collect::<Vec<_>>() {
            let Some(mut known) = self.0.remove(&identity) else { continue };
            // The session for packets leads to the first address again.
            for (peer, address) in known.take(0) {
                context.sessions.lead_to(now, peer, Link::to(address));
            }
        }
    }

    /// Counts a ping to all addresses of the neighbours that are not idle, and moves sessions to
    /// better addresses; returns these sessions and the round trips measured there.
    pub(in crate::engine) fn note_pings(
        &mut self,
        context: &mut Context,
        now: Now,
        idle: &[PeerId],
    ) -> Vec<(PeerId, Option<Duration>)> {
        let mut moved = Vec::new();
        for (identity, known) in &mut self.0 {
            // Idle neighbours are not pinged now.
            if idle.contains(&known.all[known.chosen].peer) {
                continue;
            }
            let Some(better) = known.note_pings(now.steady) else { continue };
            let sessions = known.take(better);
            let (peer, address) = sessions[0];
            tracing::info!(%identity, %address, "another address of a neighbour is taken");
            for (peer, address) in sessions {
                context.sessions.lead_to(now, peer, Link::to(address));
            }
            moved.push((peer, known.all[better].round_trip));
        }
        moved
    }

    /// Returns whether a pong over the Internet counts for a neighbour: where that has several
    /// addresses, the pong must come from the one that was pinged.
    pub(super) fn counts_pong(&self, context: &Context, peer: PeerId, link: Link) -> bool {
        !self.has(peer) || context.sessions.link_of(peer) == Some(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(number: usize) -> Addresses {
        let peer = crate::engine::nobody();
        let address = |at: usize| Address::new(([192, 0, 2, at as u8], 7001).into(), peer);
        Addresses::new((0..number).map(address).collect())
    }

    fn at_ms(ms: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(ms)
    }

    /// Pings all once, 200 ms after the last time; each answers after so long, or not.
    fn step(known: &mut Addresses, ms: u64, round_trips: &[Option<u64>]) {
        if let Some(better) = known.note_pings(at_ms(ms)) {
            known.take(better);
        }
        for (address, round_trip) in known.all.iter_mut().zip(round_trips) {
            if let Some(round_trip) = round_trip {
                address.note_answer(at_ms(ms + 100), Duration::from_millis(*round_trip));
            }
        }
    }

    /// Lets time pass from `from` on; returns the address in use at the end.
    fn pass(known: &mut Addresses, from: u64, span: u64, round_trips: &[Option<u64>]) -> usize {
        (from..from + span).step_by(200).for_each(|ms| step(known, ms, round_trips));
        known.chosen
    }

    #[test]
    fn first_answering_address_then_best() {
        let mut known = addresses(3);
        assert_eq!(pass(&mut known, 200, 800, &[None, None, None]), 0);
        assert_eq!(pass(&mut known, 1000, 1000, &[None, None, Some(50)]), 2);
        assert_eq!(pass(&mut known, 2000, 4000, &[None, Some(20), Some(50)]), 2, "too soon");
        assert_eq!(pass(&mut known, 6000, 2000, &[None, Some(20), Some(50)]), 1);
    }

    #[test]
    fn noise_keeps_address() {
        let mut known = addresses(2);
        assert_eq!(pass(&mut known, 200, 800, &[Some(50), Some(50)]), 0);
        assert_eq!(pass(&mut known, 1000, 60_000, &[Some(50), Some(42)]), 0);
        // It is better for short times only.
        for round in 0..20 {
            let from = 100_000 + round * 6000;
            pass(&mut known, from, 3000, &[Some(50), Some(20)]);
            assert_eq!(pass(&mut known, from + 3000, 3000, &[Some(50), Some(50)]), 0);
        }
    }

    #[test]
    fn silent_address_is_left() {
        let mut known = addresses(2);
        assert_eq!(pass(&mut known, 200, 800, &[Some(20), Some(90)]), 0);
        assert_eq!(pass(&mut known, 1000, 800, &[None, Some(90)]), 0, "four questions");
        assert_eq!(pass(&mut known, 1800, 400, &[None, Some(90)]), 1);
        assert_eq!(pass(&mut known, 3000, 4000, &[Some(20), Some(90)]), 1);
        assert_eq!(
            pass(&mut known, 7000, 60_000, &[Some(20), Some(90)]),
            0,
            "it has proved itself"
        );
    }

    /// Runs two addresses of which each loses so many of a hundred pings. Returns the number of
    /// changes in ten minutes, and the address in use at the end.
    fn changes_at(percent: [u64; 2], round_trips: [u64; 2]) -> (usize, usize) {
        let (mut known, mut seed, mut changes) = (addresses(2), 7_u64, 0);
        for ms in (200..600_000).step_by(200) {
            let before = known.chosen;
            let answers = [0, 1].map(|at| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) % 100 >= percent[at]
            });
            let answers = [0, 1].map(|at| answers[at].then_some(round_trips[at]));
            step(&mut known, ms, &answers);
            changes += usize::from(known.chosen != before);
        }
        (changes, known.chosen)
    }

    #[test]
    fn loss_does_not_flap_addresses() {
        for percent in [5, 20, 35, 50] {
            let (changes, _) = changes_at([percent; 2], [50; 2]);
            assert!(changes <= 2, "{changes} changes where {percent} % are lost");
        }
        // One that is nearer and loses more is no better; one that loses less is.
        assert_eq!(changes_at([0, 20], [50, 20]), (0, 0));
        let (changes, chosen) = changes_at([30, 0], [20, 50]);
        assert!(changes <= 2 && chosen == 1, "{changes} changes, {chosen}");
    }
}
