//! Neighbours with several addresses: all are asked, and the best that has answered is taken.
//!
//! Each address has a leg of its own, so that a change takes no handshake. The one in use stays
//! while
//! it answers, unless another is better by more than noise for a while.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tradewind_grant::{Hop, PublicIdentity};
use tradewind_packet::session::{Now, PeerId};
use tradewind_units::{Duration, Timestamp};

use super::Engine;

/// Silence after which an address counts as dead. Chosen: four questions, as for a far endpoint.
const DEAD_AFTER: Duration = Duration::from_millis(800);
/// By how much another address must be better to be taken instead: this, and a fifth. Chosen: as
/// for
/// relays.
const BETTER_BY: Duration = Duration::from_millis(1);
/// For how long it must be better. Chosen: longer than a burst of queueing.
const BETTER_FOR: Duration = Duration::from_secs(5);

/// The addresses of one neighbour.
#[derive(Debug)]
struct Addresses {
    all: Vec<Address>,
    /// Which is in use.
    chosen: usize,
    /// Another that is better, and since when.
    better: Option<(usize, Timestamp)>,
}

#[derive(Debug)]
struct Address {
    at: SocketAddr,
    peer: PeerId,
    round_trip: Option<Duration>,
    heard: Option<Timestamp>,
}

impl Address {
    fn answers(&self, now: Timestamp) -> bool {
        self.heard.is_some_and(|heard| now.since(heard) < DEAD_AFTER)
    }
}

impl Addresses {
    /// Chooses by what has been measured; `true` when another is to be taken.
    fn choose(&mut self, now: Timestamp) -> bool {
        let answering = self.all.iter().enumerate().filter(|(_, address)| address.answers(now));
        let timed = answering.filter_map(|(at, address)| Some((address.round_trip?, at)));
        let Some((best, at)) = timed.min() else { return false };
        let current = &self.all[self.chosen];
        let before = current.round_trip.filter(|_| current.answers(now));
        let is_better = before.is_none_or(|before| best + best / 5 + BETTER_BY < before);
        if at == self.chosen || !is_better {
            self.better = None;
            return false;
        }
        let since = match self.better {
            Some((known, since)) if known == at => since,
            _ => now,
        };
        self.better = Some((at, since));
        let is_proven = before.is_none() || now.since(since) >= BETTER_FOR;
        if is_proven {
            (self.chosen, self.better) = (at, None);
        }
        is_proven
    }
}

/// Neighbours with several addresses, by who they are.
#[derive(Debug, Default)]
pub(super) struct Several(BTreeMap<PublicIdentity, Addresses>);

impl Several {
    /// Returns whether a leg leads to one of several addresses.
    pub(super) fn has(&self, peer: PeerId) -> bool {
        self.0.values().flat_map(|known| &known.all).any(|address| address.peer == peer)
    }

    /// Takes an answer over the Internet.
    pub(super) fn note_answer(&mut self, now: Timestamp, peer: PeerId, round_trip: Duration) {
        let all = self.0.values_mut().flat_map(|known| &mut known.all);
        for address in all.filter(|address| address.peer == peer) {
            address.heard = Some(now);
            address.round_trip = Some(match address.round_trip {
                Some(before) => (before * 7 + round_trip) / 8,
                None => round_trip,
            });
        }
    }

    /// Returns where a neighbour is asked for now.
    fn address_of(&self, hop: Hop) -> SocketAddr {
        self.0.get(&hop.identity).map_or(hop.address, |known| known.all[known.chosen].at)
    }
}

impl Engine {
    /// Returns the session with a neighbour at the best of its addresses; `None` when there are too
    /// many.
    pub(super) fn leg_to(&mut self, now: Now, hop: Hop) -> Option<PeerId> {
        self.begin_several(now, hop);
        let address = self.several.address_of(hop);
        self.leg(now, hop.identity, address)
    }

    /// Begins a leg to each address of a neighbour, if it has several.
    fn begin_several(&mut self, now: Now, hop: Hop) {
        let others = self.config.further_addresses.get(&hop.identity);
        let Some(others) = others.filter(|_| !self.several.0.contains_key(&hop.identity)) else {
            return;
        };
        let mut all = Vec::new();
        for at in std::iter::once(hop.address).chain(others.clone()) {
            if let Some(peer) = self.leg(now, hop.identity, at) {
                all.push(Address { at, peer, round_trip: None, heard: None });
            }
        }
        if all.len() > 1 {
            self.several.0.insert(hop.identity, Addresses { all, chosen: 0, better: None });
        }
    }

    /// Has routes lead to better addresses.
    pub(super) fn tend_several(&mut self, now: Now) {
        let mut is_changed = false;
        for (identity, known) in &mut self.several.0 {
            if known.choose(now.steady) {
                let address = known.all[known.chosen].at;
                tracing::info!(%identity, %address, "another address of a neighbour is taken");
                is_changed = true;
            }
        }
        if is_changed {
            self.aim_all(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(number: usize) -> Addresses {
        let address = |at: usize| Address {
            at: ([192, 0, 2, at as u8], 7001).into(),
            peer: super::super::routes::nobody(),
            round_trip: None,
            heard: None,
        };
        Addresses { all: (0..number).map(address).collect(), chosen: 0, better: None }
    }

    fn at_ms(ms: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(ms)
    }

    /// Lets addresses answer each 200 ms from `from` on, each after so long or never; which is in
    /// use
    /// at the end.
    fn pass(known: &mut Addresses, from: u64, span: u64, round_trips: &[Option<u64>]) -> usize {
        for ms in (from..from + span).step_by(200) {
            for (address, round_trip) in known.all.iter_mut().zip(round_trips) {
                if let Some(round_trip) = round_trip {
                    address.heard = Some(at_ms(ms));
                    address.round_trip = Some(Duration::from_millis(*round_trip));
                }
            }
            known.choose(at_ms(ms));
        }
        known.chosen
    }

    #[test]
    fn the_first_that_answers_is_taken_and_the_best_once_it_has_proved_itself() {
        let mut known = addresses(3);
        assert_eq!(pass(&mut known, 0, 1000, &[None, None, None]), 0);
        assert_eq!(pass(&mut known, 1000, 1000, &[None, None, Some(50)]), 2);
        assert_eq!(pass(&mut known, 2000, 4000, &[None, Some(20), Some(50)]), 2, "too soon");
        assert_eq!(pass(&mut known, 6000, 2000, &[None, Some(20), Some(50)]), 1);
    }

    #[test]
    fn noise_moves_nothing() {
        let mut known = addresses(2);
        assert_eq!(pass(&mut known, 0, 1000, &[Some(50), Some(50)]), 0);
        assert_eq!(pass(&mut known, 1000, 60_000, &[Some(50), Some(42)]), 0);
        // It is better for moments alone.
        for round in 0..20 {
            let from = 100_000 + round * 5000;
            pass(&mut known, from, 4000, &[Some(50), Some(20)]);
            assert_eq!(pass(&mut known, from + 4000, 1000, &[Some(50), Some(50)]), 0);
        }
    }

    #[test]
    fn an_address_that_falls_silent_is_left_at_once() {
        let mut known = addresses(2);
        assert_eq!(pass(&mut known, 0, 1000, &[Some(20), Some(90)]), 0);
        assert_eq!(pass(&mut known, 1000, 1200, &[None, Some(90)]), 1);
        assert_eq!(pass(&mut known, 3000, 4000, &[Some(20), Some(90)]), 1);
        assert_eq!(pass(&mut known, 7000, 3000, &[Some(20), Some(90)]), 0);
    }
}
