//! The flows' paths, sorted by gain, computed once for a problem [CP VI, footnotes 1 and 4].

use std::cmp::Reverse;

use tradewind_units::{Duration, Money};

use super::Gain;
use super::rows::Rows;
use crate::candidates::Candidate;
use crate::problem::{MAX_RELAYS, Problem};

/// A path's index among the paths of all flows, in the order in which they are tried.
pub(crate) type Rank = u32;

/// One relayed path of a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// Nanoseconds of score that it saves against the direct path; without one, the negative score.
    pub(crate) gain: i64,
    /// Nano-dollars of egress and move, less the direct path's cost.
    pub(crate) more: i64,
    /// The capacity that it takes of each of its relays, in bit/s.
    pub(crate) rate: u64,
    /// Its flow.
    pub(crate) flow: u32,
    /// Its index among the flow's candidates.
    pub(crate) candidate: u32,
    relays: [u32; MAX_RELAYS],
    relay_count: u8,
}

impl Entry {
    /// Returns the offers that it passes.
    pub(crate) fn relays(&self) -> &[u32] {
        &self.relays[..usize::from(self.relay_count)]
    }
}

/// A flow's paths, the best first.
#[derive(Debug, Clone)]
pub(crate) struct List {
    /// The direct path's cost, where there is one: zero, or that of a move.
    pub(crate) direct: Option<Money>,
    /// The relayed paths.
    pub(crate) ranks: Vec<Rank>,
}

/// A bit set of the offers that a path needs: one bit for each of the first offers, none for the
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Needs(u128);

impl Needs {
    /// The empty set.
    pub(crate) const NONE: Self = Self(0);
    /// The number of offers with a bit of their own.
    pub(crate) const OFFERS: usize = 128;

    fn of(relays: &[u32]) -> Self {
        relays.iter().fold(Self::NONE, |all, offer| all.or(Self::offer(*offer as usize)))
    }

    /// Returns the set of this offer.
    pub(crate) const fn offer(offer: usize) -> Self {
        if offer < Self::OFFERS { Self(1 << offer) } else { Self::NONE }
    }

    /// Returns the offers that have relays.
    pub(crate) fn all_of(set: &[usize]) -> Self {
        let there = (0..set.len()).filter(|offer| set[*offer] > 0);
        there.fold(Self::NONE, |all, offer| all.or(Self::offer(offer)))
    }

    /// Returns the set difference: the offers that are not in `there`.
    pub(crate) const fn lacking(self, there: Self) -> Self {
        Self(self.0 & !there.0)
    }

    /// Returns the offers' indexes.
    pub(crate) fn offers(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let offer = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (offer < Self::OFFERS).then_some(offer)
        })
    }

    /// Returns the union.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The lists of all flows.
#[derive(Debug)]
pub(crate) struct Lists {
    /// By flow.
    pub(crate) flows: Vec<List>,
    /// All relayed paths, in the order in which they are tried: first those of flows without a
    /// direct path, then by decreasing gain, then by flow, then by index in the flow's list.
    pub(crate) entries: Vec<Entry>,
    /// The offers that each of them needs.
    pub(crate) needs: Vec<Needs>,
    pub(crate) rows: Rows,
    /// The least extra cost of any relayed path over the direct one, in nano-dollars.
    pub(crate) cheapest: i64,
    /// The same of paths over several relays.
    pub(crate) cheapest_several: i64,
    /// Set if every flow has a direct path.
    pub(crate) all_direct: bool,
}

impl Lists {
    pub(crate) fn new(problem: &Problem, gain: Gain) -> Self {
        let count = problem.flows().len();
        let direct = |flow: usize| {
            problem.candidates(flow).first().filter(|candidate| candidate.relays.is_empty())
        };
        let gives_nothing_back =
            (0..count).all(|flow| direct(flow).is_none_or(|direct| direct.cost == Money::ZERO));
        let mut useful = Useful::default();
        let mut all: Vec<(bool, i64, Entry)> = Vec::new();
        for flow in 0..count {
            let mut entries = helpful(problem, flow, direct(flow), gain);
            entries.sort_unstable_by_key(|(worth, entry)| {
                (Reverse((*worth, entry.gain)), entry.more, entry.candidate)
            });
            if gives_nothing_back {
                useful.keep(&mut entries, problem.offers().len());
            }
            all.extend(entries.into_iter().map(|(worth, e)| (direct(flow).is_none(), worth, e)));
        }
        // The sort is stable: equal ones stay in the flows' order, and each flow's paths in theirs.
        all.sort_by_key(|(urgent, worth, _)| Reverse((*urgent, *worth)));
        let entries: Vec<Entry> = all.into_iter().map(|(_, _, entry)| entry).collect();
        let list =
            |flow| List { direct: direct(flow).map(|direct| direct.cost), ranks: Vec::new() };
        let mut flows: Vec<List> = (0..count).map(list).collect();
        for (rank, entry) in entries.iter().enumerate() {
            let rank = Rank::try_from(rank).expect("candidates have been counted in memory");
            flows[entry.flow as usize].ranks.push(rank);
        }
        let cheapest = |relays| {
            let long_enough = entries.iter().filter(|entry| entry.relays().len() >= relays);
            long_enough.map(|entry| entry.more).min().unwrap_or_default()
        };
        let (cheapest, cheapest_several) = (cheapest(1), cheapest(2));
        let all_direct = flows.iter().all(|list| list.direct.is_some());
        let needs = entries.iter().map(|entry| Needs::of(entry.relays())).collect();
        let rows = Rows::new(&entries, count, problem.offers().len());
        Self { flows, entries, needs, rows, cheapest, cheapest_several, all_direct }
    }

    /// Returns the path of this rank.
    pub(crate) fn entry(&self, rank: Rank) -> &Entry {
        &self.entries[rank as usize]
    }
}

/// Returns a flow's paths that are better than the direct one, each with its sort key.
fn helpful(
    problem: &Problem,
    flow: usize,
    direct: Option<&Candidate>,
    gain: Gain,
) -> Vec<(i64, Entry)> {
    let candidates = problem.candidates(flow);
    let helps = |candidate: &&Candidate| {
        let saves =
            |direct: &Candidate| (candidate.score, candidate.cost) < (direct.score, direct.cost);
        !candidate.relays.is_empty() && direct.is_none_or(saves)
    };
    (candidates.iter().enumerate())
        .filter(|(_, candidate)| helps(candidate))
        .map(|(at, candidate)| entry(problem, (flow, at), candidate, direct, gain))
        .collect()
}

/// A filter of paths that no run takes: another path of the flow is tried sooner, passes a subset
/// of its offers, and takes no more of their capacity and no more money. Whenever the path could be
/// selected, the other one could have been. That does not hold where flows get money back, which
/// can make a path affordable after its turn.
#[derive(Debug, Default)]
struct Useful {
    /// Paths retained so far, by the first offer of each: all its offers, its cost, its rate.
    retained: Vec<Vec<(Needs, i64, u64)>>,
}

impl Useful {
    /// Keeps the useful ones of one flow's paths, which are in the order in which they are tried.
    fn keep(&mut self, entries: &mut Vec<(i64, Entry)>, offers: usize) {
        if offers > Needs::OFFERS {
            return;
        }
        self.retained.iter_mut().for_each(Vec::clear);
        self.retained.resize_with(offers, Vec::new);
        entries.retain(|(_, entry)| {
            let needs = Needs::of(entry.relays());
            let is_as_good = |(others, more, rate): &(Needs, i64, u64)| {
                others.lacking(needs) == Needs::NONE && *more <= entry.more && *rate <= entry.rate
            };
            let mut sharing =
                entry.relays().iter().flat_map(|offer| &self.retained[*offer as usize]);
            if sharing.any(is_as_good) {
                return false;
            }
            self.retained[entry.relays()[0] as usize].push((needs, entry.more, entry.rate));
            true
        });
    }
}

fn entry(
    problem: &Problem,
    (flow, at): (usize, usize),
    candidate: &Candidate,
    direct: Option<&Candidate>,
    gain: Gain,
) -> (i64, Entry) {
    let saved = match direct {
        Some(direct) => nanoseconds(direct.score.saturating_sub(candidate.score)),
        None => -nanoseconds(candidate.score),
    };
    let worth = match gain {
        Gain::Fct => saved,
        Gain::FctPerCost | Gain::RatioPerCost => per_cost(problem, candidate, direct, gain),
    };
    let mut relays = [0; MAX_RELAYS];
    for (to, relay) in relays.iter_mut().zip(&candidate.relays) {
        *to = u32::try_from(*relay).expect("offers have been counted in memory");
    }
    let direct = direct.map_or(Money::ZERO, |direct| direct.cost);
    let entry = Entry {
        gain: saved,
        more: i64::try_from(nano_dollars(candidate.cost) - nano_dollars(direct))
            .expect("a problem's costs can be added up"),
        rate: candidate.rate.as_bps().max(1),
        flow: u32::try_from(flow).expect("flows have been counted in memory"),
        candidate: u32::try_from(at).expect("candidates have been counted in memory"),
        relays,
        relay_count: candidate.relays.len() as u8,
    };
    (worth, entry)
}

/// Returns Algorithm 2's gain: the saving for each dollar of egress and of the share of the relays'
/// set-up by the flow's rate over their capacity; without a direct path, speed for each dollar.
///
/// As an integer of the same order: positive floating-point numbers are ordered as their bits are.
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

/// Converts a score to nanoseconds, 292 years at most.
fn nanoseconds(score: Duration) -> i64 {
    i64::try_from(score.as_nanos()).unwrap_or(i64::MAX)
}

/// Converts an amount to nano-dollars that may be subtracted from.
pub(super) fn nano_dollars(amount: Money) -> i128 {
    i128::from(amount.as_nano_usd())
}
