//! Branch and bound for problems of middle size: branches on the number of relays of an offer, and
//! on the cost of a flow's path.
//!
//! The relaxation allows an offer a fraction of a relay, and a flow several paths in fractions.
//! If it uses that, either there are at most as many relays as the whole part, or at least one
//! more; or the flow's egress costs no more than in the mean, or more. Both children are bounded
//! from the parent's prices. The least bound of the open nodes holds for all plans [Land and Doig
//! 1960].

use std::collections::BTreeMap;

use super::dual::{Ascent, Bound, CostRange, Prices, Range, Used};
use super::table::Table;
use crate::solver::Work;

/// Rounds of the ascent for each node. Chosen by trial.
const ROUNDS: u64 = 60;

/// The most options evaluated by all nodes. Chosen: two or three seconds.
const MAX_OPTIONS: u64 = 250_000_000;

/// The least difference worth a branch, as a part of the most expensive set-up, so that it is
/// independent of the unit of money. Chosen.
const MIN_PART: f64 = 2e-4;

/// The number of nodes below which branching is not started.
const MIN_NODES: u64 = 50;

/// Raises the bound as far as the work allows, at most to the least value returned by `enough`,
/// which is called with the choices of some nodes and returns an upper bound on the optimum.
pub(super) fn raise(
    table: &Table,
    ascent: &mut Ascent<'_>,
    bound: &mut Bound,
    enough: &mut dyn FnMut(&[usize], &mut Work<'_>) -> f64,
    work: &mut Work<'_>,
) {
    let nodes = MAX_OPTIONS / ROUNDS / table.len().max(1) as u64;
    let affordable = work.left / 2 / ROUNDS / (table.flows() as u64 / 8 + 1);
    let nodes = nodes.min(affordable);
    if nodes < MIN_NODES {
        return;
    }
    let mut target = enough(&bound.choices, work);
    let mut open: BTreeMap<(u64, u64), Prices> = BTreeMap::new();
    open.insert((bound.least.max(0.0).to_bits(), 0), bound.prices.clone());
    // The least bound of nodes that have nothing to branch on.
    let mut closed = f64::INFINITY;
    for number in 1..=nodes {
        let Some(((least, _), prices)) = open.pop_first() else {
            // Every node was pruned: nothing is better than the incumbent.
            bound.least = bound.least.max(target.min(closed));
            return;
        };
        let least = f64::from_bits(least);
        bound.least = bound.least.max(least.min(target).min(closed));
        if least >= target.min(closed) || work.stopped {
            return;
        }
        ascent.resume(prices, least);
        ascent.run(ROUNDS, target, work);
        let mut found = ascent.best.clone();
        if found.least < target && branch(table, &found.prices, &ascent.used).is_none() {
            ascent.run(20 * ROUNDS, target, work);
            found = ascent.best.clone();
        }
        if number.is_multiple_of(16) {
            target = target.min(enough(&found.choices, work));
        }
        if found.least >= target {
            continue;
        }
        let Some(sides) = branch(table, &found.prices, &ascent.used) else {
            closed = closed.min(found.least);
            continue;
        };
        for (side, part) in (0..).zip(sides) {
            let mut prices = found.prices.clone();
            match part {
                Part::Relays(offer, range) => prices.confine(table, offer, range),
                Part::Costs(flow, span) => prices.spans[flow] = span,
            }
            open.insert((found.least.max(0.0).to_bits(), 2 * number + side), prices);
        }
    }
    bound.least = bound.least.max(least_of(&open, target).min(closed));
}

fn least_of(open: &BTreeMap<(u64, u64), Prices>, target: f64) -> f64 {
    open.first_key_value().map_or(target, |((least, _), _)| f64::from_bits(*least).min(target))
}

/// One child of a branch.
enum Part {
    /// An offer and its allowed number of relays.
    Relays(usize, Range),
    /// A flow and the allowed cost of its path, in nano-dollars.
    Costs(usize, (i64, i64)),
}

/// Branches on the fraction that is most expensive to round.
fn branch(table: &Table, prices: &Prices, used: &Used) -> Option<[Part; 2]> {
    // Tiny fractions may be oscillations of the ascent.
    let dearest = table.supplies.iter().map(|supply| supply.set_up_usd).fold(0.0, f64::max);
    let mut best: (f64, Option<[Part; 2]>) = (MIN_PART * dearest, None);
    for (offer, relays) in used.relays(table, &prices.ranges).into_iter().enumerate() {
        let range = prices.ranges[offer];
        if range.most.is_some_and(|most| most <= range.least) {
            continue;
        }
        let last = range.most.map_or(usize::MAX, |most| most - 1);
        let whole = (relays.floor() as usize).clamp(range.least, last);
        let part = (relays - whole as f64).clamp(0.0, 1.0);
        let usd = table.supplies[offer].set_up_usd * part.min(1.0 - part);
        if usd > best.0 {
            let low = Range { most: Some(whole), ..range };
            let high = Range { least: whole + 1, ..range };
            best = (usd, Some([Part::Relays(offer, low), Part::Relays(offer, high)]));
        }
    }
    for (flow, CostRange { least, mean, most }) in used.costs().enumerate() {
        let usd = (mean - least as f64).min(most as f64 - mean) / 1e9;
        if usd > best.0 {
            let (low, high) = prices.spans[flow];
            let split = mean.floor() as i64;
            best =
                (usd, Some([(low, split), (split + 1, high)].map(|span| Part::Costs(flow, span))));
        }
    }
    best.1
}
