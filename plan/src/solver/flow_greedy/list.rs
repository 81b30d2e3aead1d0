//! Each flow's paths, sorted by gain: made once for a problem [CP VI, footnotes 1 and 4].

use std::cmp::Reverse;

use tradewind_units::{Duration, Money};

use super::{Gain, Head};
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
    pub(crate) candidate: usize,
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
    /// The relayed paths.
    pub(crate) entries: Vec<Entry>,
}

/// The lists of all flows.
#[derive(Debug, Clone)]
pub(crate) struct Lists {
    /// Flow by flow.
    pub(crate) flows: Vec<List>,
    /// What any relayed path costs at least more than the direct one.
    pub(crate) cheapest: Money,
    /// Whether every flow has a direct path.
    pub(crate) all_direct: bool,
}

impl Lists {
    pub(crate) fn new(problem: &Problem, gain: Gain) -> Self {
        let flows: Vec<List> =
            (0..problem.flows().len()).map(|flow| list(problem, flow, gain)).collect();
        let more = |list: &List| {
            let direct = list.direct.unwrap_or_default();
            let cheapest = list.entries.iter().map(|entry| entry.cost).min()?;
            Some(cheapest.checked_sub(direct).unwrap_or_default())
        };
        let cheapest = flows.iter().filter_map(more).min().unwrap_or_default();
        let all_direct = flows.iter().all(|list| list.direct.is_some());
        Self { flows, cheapest, all_direct }
    }

    /// The head of each flow's list, where `first` says at which entry it starts.
    pub(crate) fn heads(
        &self,
        first: impl Fn(usize) -> Option<usize>,
    ) -> impl Iterator<Item = Head> {
        let head = move |flow: usize| self.head(flow, first(flow)?);
        (0..self.flows.len()).filter_map(head)
    }

    /// The flow's head if its list starts at this entry; `None` when it is at its end.
    pub(crate) fn head(&self, flow: usize, at: usize) -> Option<Head> {
        let list = &self.flows[flow];
        let entry = list.entries.get(at)?;
        let urgent = list.direct.is_none();
        Some(Head { urgent, worth: entry.worth, flow: Reverse(flow), at })
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
    List { direct: direct.map(|direct| direct.cost), entries }
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
        Gain::FctPerCost => per_cost(problem, candidate, direct),
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
        candidate: at,
        relays,
        relay_count: candidate.relays.len() as u8,
    }
}

/// Algorithm 2's gain: what is saved for each dollar of egress and of the share of the relays'
/// set-up that the flow's rate has in their capacity; without direct path, speed for each dollar.
///
/// As a whole number of the same order, because positive floating-point numbers have the order of their bits.
fn per_cost(problem: &Problem, candidate: &Candidate, direct: Option<&Candidate>) -> i64 {
    let saved = match direct {
        Some(direct) => direct.score.saturating_sub(candidate.score).as_secs_f64(),
        None => 1.0 / candidate.score.as_secs_f64(),
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
