//! Each flow's paths, sorted by gain: made once for a problem [CP VI, footnotes 1 and 4].

use std::cmp::Reverse;

use tradewind_units::{Duration, Money};

use super::Gain;
use crate::candidates::Candidate;
use crate::problem::{MAX_RELAYS, Problem};

/// One path of a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// The higher, the earlier.
    pub(crate) worth: i64,
    /// Nanoseconds of score that it saves against the direct path; without one, the score below zero.
    pub(crate) gain: i64,
    /// Egress and move.
    pub(crate) cost: Money,
    /// What it takes of each of its relays, in bit/s.
    pub(crate) rate: u64,
    /// Its place among the flow's candidates.
    pub(crate) candidate: u32,
    relays: [u32; MAX_RELAYS],
    relay_count: u8,
}

impl Entry {
    /// The offers that it passes.
    pub(crate) fn relays(&self) -> &[u32] {
        &self.relays[..usize::from(self.relay_count)]
    }
}

/// A flow's paths, the best first.
#[derive(Debug, Clone)]
pub(crate) struct List {
    /// What the direct path costs, where there is one: nothing, or a move.
    pub(crate) direct: Option<Money>,
    /// The least that one of its paths takes of a relay.
    pub(crate) least_rate: u64,
    /// The relayed paths.
    pub(crate) entries: Vec<Entry>,
    /// What each of them needs.
    pub(crate) needs: Vec<Needs>,
}

/// What a path needs, so coarsely that it fits a machine word: the offers, one bit for each or for some of them
/// together, and whether there are several. Tells at a glance most paths that are not feasible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs(u64);

impl Needs {
    /// Whatever a path could need.
    pub(crate) const ALL: Self = Self(u64::MAX);
    /// Bits for offers; one more is for paths of several relays.
    const OFFER_BITS: usize = 63;
    /// Paths of several relays.
    pub(crate) const SEVERAL: Self = Self(1 << Self::OFFER_BITS);

    fn of(entry: &Entry) -> Self {
        let several = if entry.relays().len() > 1 { Self::SEVERAL.0 } else { 0 };
        Self(entry.relays().iter().fold(several, |bits, offer| bits | Self::bit(*offer as usize)))
    }

    const fn bit(offer: usize) -> u64 {
        1 << (offer % Self::OFFER_BITS)
    }

    /// All that can be needed except these offers, and those that share a bit with them; everything if there are none.
    pub(crate) fn all_but(offers: impl Iterator<Item = usize>) -> Self {
        match offers.fold(0, |bits, offer| bits | Self::bit(offer)) {
            0 => Self::ALL,
            usable => Self(!(usable | Self::SEVERAL.0)),
        }
    }

    /// What either needs.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether they have nothing in common.
    pub(crate) const fn without(self, other: Self) -> bool {
        self.0 & other.0 == 0
    }
}

/// The best path left of a flow; the greatest of all is the next to be tried.
///
/// From the highest bit: whether the flow has no direct path, the entry's worth, the flow (the first wins), the
/// entry's place in the flow's list (the first wins).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Head(u128);

impl Head {
    const FLOW_BITS: u32 = 31;
    const AT_BITS: u32 = 32;
    /// No head: less than any.
    pub(crate) const NONE: Self = Self(0);

    fn new(urgent: bool, worth: i64, flow: usize, at: usize) -> Self {
        let flow = (1 << Self::FLOW_BITS) - 1 - flow as u128;
        let at = u128::from(u32::MAX) - at as u128;
        // Shifts negative ones below the others.
        let worth = u128::from(worth.cast_unsigned() ^ (1 << 63));
        let high = (u128::from(urgent) << 64 | worth) << Self::FLOW_BITS | flow;
        Self(high << Self::AT_BITS | at)
    }

    /// The flow.
    pub(crate) const fn flow(self) -> usize {
        let mask = (1 << Self::FLOW_BITS) - 1;
        mask - ((self.0 >> Self::AT_BITS) as usize & mask)
    }

    /// The entry's place in the flow's list.
    pub(crate) const fn at(self) -> usize {
        (u32::MAX - self.0 as u32) as usize
    }

    /// Whether the flow has no direct path.
    pub(crate) const fn is_urgent(self) -> bool {
        self.0 >> (Self::AT_BITS + Self::FLOW_BITS + 64) != 0
    }
}

/// The lists of all flows.
#[derive(Debug, Clone)]
pub(crate) struct Lists {
    /// Flow by flow.
    pub(crate) flows: Vec<List>,
    /// What any relayed path costs at least more than the direct one.
    pub(crate) cheapest: Money,
    /// The same of paths over several relays.
    pub(crate) cheapest_several: Money,
    /// The least that any path takes of a relay.
    pub(crate) least_rate: u64,
    /// Whether every flow has a direct path.
    pub(crate) all_direct: bool,
}

impl Lists {
    pub(crate) fn new(problem: &Problem, gain: Gain) -> Self {
        let flows: Vec<List> =
            (0..problem.flows().len()).map(|flow| list(problem, flow, gain)).collect();
        let more = |list: &List, relays: usize| {
            let direct = list.direct.unwrap_or_default();
            let long_enough = list.entries.iter().filter(|entry| entry.relays().len() >= relays);
            let cheapest = long_enough.map(|entry| entry.cost).min()?;
            Some(cheapest.checked_sub(direct).unwrap_or_default())
        };
        let cheapest =
            |relays| flows.iter().filter_map(|list| more(list, relays)).min().unwrap_or_default();
        let (cheapest, cheapest_several) = (cheapest(1), cheapest(2));
        let least_rate = flows.iter().map(|list| list.least_rate).min().unwrap_or(u64::MAX);
        let all_direct = flows.iter().all(|list| list.direct.is_some());
        Self { flows, cheapest, cheapest_several, least_rate, all_direct }
    }

    /// The head of each flow's whole list.
    pub(crate) fn heads(&self) -> impl Iterator<Item = Head> {
        (0..self.flows.len()).map(|flow| self.head(flow, 0)).filter(|head| *head != Head::NONE)
    }

    /// The flow's head if its list starts at this entry; none at its end.
    pub(crate) fn head(&self, flow: usize, at: usize) -> Head {
        let list = &self.flows[flow];
        let head = |entry: &Entry| Head::new(list.direct.is_none(), entry.worth, flow, at);
        list.entries.get(at).map_or(Head::NONE, head)
    }
}

fn list(problem: &Problem, flow: usize, gain: Gain) -> List {
    let candidates = problem.candidates(flow);
    let direct = candidates.first().filter(|candidate| candidate.relays.is_empty());
    let helps = |candidate: &&Candidate| {
        let saves =
            |direct: &Candidate| (candidate.score, candidate.cost) < (direct.score, direct.cost);
        !candidate.relays.is_empty() && direct.is_none_or(saves)
    };
    let relayed = candidates.iter().enumerate().filter(|(_, candidate)| helps(candidate));
    let mut entries: Vec<Entry> =
        relayed.map(|(at, candidate)| entry(problem, candidate, at, direct, gain)).collect();
    entries.sort_by_key(|entry| {
        Reverse((entry.worth, entry.gain, Reverse((entry.cost, entry.candidate))))
    });
    let needs = entries.iter().map(Needs::of).collect();
    let least_rate = entries.iter().map(|entry| entry.rate).min().unwrap_or(u64::MAX);
    List { direct: direct.map(|direct| direct.cost), least_rate, entries, needs }
}

fn entry(
    problem: &Problem,
    candidate: &Candidate,
    at: usize,
    direct: Option<&Candidate>,
    gain: Gain,
) -> Entry {
    let saved = match direct {
        Some(direct) => nanoseconds(direct.score.saturating_sub(candidate.score)),
        None => -nanoseconds(candidate.score),
    };
    let worth = match gain {
        Gain::Fct => saved,
        Gain::FctPerCost | Gain::RatioPerCost => per_cost(problem, candidate, direct, gain),
    };
    let mut relays = [0; MAX_RELAYS];
    for (place, relay) in relays.iter_mut().zip(&candidate.relays) {
        *place = u32::try_from(*relay).expect("offers have been counted in memory");
    }
    Entry {
        worth,
        gain: saved,
        cost: candidate.cost,
        rate: candidate.rate.as_bps().max(1),
        candidate: u32::try_from(at).expect("candidates have been counted in memory"),
        relays,
        relay_count: candidate.relays.len() as u8,
    }
}

/// Algorithm 2's gain: what is saved for each dollar of egress and of the share of the relays'
/// set-up that the flow's rate has in their capacity; without direct path, speed for each dollar.
///
/// As a whole number of the same order, because positive floating-point numbers have the order of their bits.
fn per_cost(
    problem: &Problem,
    candidate: &Candidate,
    direct: Option<&Candidate>,
    gain: Gain,
) -> i64 {
    let own = candidate.score.as_secs_f64();
    let saved = match direct {
        Some(direct) if gain == Gain::RatioPerCost => direct.score.as_secs_f64() / own,
        Some(direct) => direct.score.saturating_sub(candidate.score).as_secs_f64(),
        None => 1.0 / own,
    };
    let share = |relay: &usize| {
        let offer = &problem.offers()[*relay];
        let share = candidate.rate.as_bps() as f64 / offer.capacity_bps() as f64;
        offer.set_up(offer.running + 1).as_usd() * if offer.running > 0 { 0.0 } else { share }
    };
    let set_up: f64 = candidate.relays.iter().map(share).sum();
    let per_dollar = saved / (candidate.cost.as_usd() + set_up);
    if per_dollar.is_nan() { 0 } else { per_dollar.to_bits().cast_signed() }
}

/// A score in nanoseconds, 292 years at most.
fn nanoseconds(score: Duration) -> i64 {
    i64::try_from(score.as_nanos()).unwrap_or(i64::MAX)
}
