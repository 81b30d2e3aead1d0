//! Closes the gap where a problem is of middle size: branches on how many relays of an offer there are.
//!
//! The relaxation lets an offer have part of a relay. Where it does, either there are as many as the whole part
//! says at most, or one more at least; both are bounded again from the prices at hand. The least bound of what is still open
//! holds for all plans [Land and Doig 1960].

use std::collections::BTreeMap;

use super::dual::{Ascent, Bound, Prices, Range};
use super::table::Table;
use crate::solver::Work;

/// Rounds of the ascent for each node. Chosen by trial.
const ROUNDS: u64 = 60;

/// Options looked at by all nodes. Chosen: a few seconds.
const MOST_OPTIONS: u64 = 500_000_000;

/// Nodes below which it is not worth while to begin.
const FEWEST_NODES: u64 = 50;

/// Raises the bound as far as the work allows, at most to `enough`; shows `visit` each node's choices.
pub(super) fn raise(
    table: &Table,
    ascent: &mut Ascent<'_>,
    bound: &mut Bound,
    enough: &mut dyn FnMut(&[usize], &mut Work<'_>) -> f64,
    work: &mut Work<'_>,
) {
    let nodes = MOST_OPTIONS / ROUNDS / table.len().max(1) as u64;
    let affordable = work.left / 2 / ROUNDS / (table.flows() as u64 / 8 + 1);
    let nodes = nodes.min(affordable);
    if nodes < FEWEST_NODES {
        return;
    }
    let mut target = enough(&bound.choices, work);
    let mut open: BTreeMap<(u64, u64), Prices> = BTreeMap::new();
    open.insert((bound.least.max(0.0).to_bits(), 0), bound.prices.clone());
    for number in 1..=nodes {
        let Some(((least, _), prices)) = open.pop_first() else {
            // Every node was cut off: nothing is better than what is at hand.
            bound.least = target;
            return;
        };
        let least = f64::from_bits(least);
        bound.least = bound.least.max(least.min(target));
        if least >= target || work.stopped {
            return;
        }
        ascent.resume(prices, least);
        ascent.run(ROUNDS, target, work);
        let found = ascent.best.clone();
        if number.is_multiple_of(16) {
            target = target.min(enough(&found.choices, work));
        }
        if found.least >= target {
            continue;
        }
        let relays = ascent.used.relays(&found.prices.ranges);
        let Some((offer, low, high)) = branch(table, &found.prices, &relays) else {
            // Nothing to branch on: this node keeps the bound where it is.
            bound.least = bound.least.max(found.least.min(least_of(&open, target)));
            return;
        };
        for (side, range) in [(0, low), (1, high)] {
            let mut prices = found.prices.clone();
            prices.confine(table, offer, range);
            open.insert((found.least.max(0.0).to_bits(), 2 * number + side), prices);
        }
    }
    bound.least = bound.least.max(least_of(&open, target));
}

fn least_of(open: &BTreeMap<(u64, u64), Prices>, target: f64) -> f64 {
    open.first_key_value().map_or(target, |((least, _), _)| f64::from_bits(*least).min(target))
}

/// The offer whose number of relays is dearest to round, and the ranges on both sides.
fn branch(table: &Table, prices: &Prices, relays: &[f64]) -> Option<(usize, Range, Range)> {
    let mut best: Option<(f64, usize, usize)> = None;
    for (offer, (range, relays)) in prices.ranges.iter().zip(relays).enumerate() {
        if range.most.is_some_and(|most| most <= range.least) {
            continue;
        }
        let last = range.most.map_or(usize::MAX, |most| most - 1);
        let whole = (relays.floor() as usize).clamp(range.least, last);
        let part = (relays - whole as f64).clamp(0.0, 1.0);
        let usd = table.supplies[offer].set_up_usd * part.min(1.0 - part);
        // Parts of nearly nothing may be the ascent's unrest.
        if part > 1e-3 && best.is_none_or(|(most, ..)| usd > most) {
            best = Some((usd, offer, whole));
        }
    }
    let (_, offer, whole) = best?;
    let range = prices.ranges[offer];
    Some((offer, Range { most: Some(whole), ..range }, Range { least: whole + 1, ..range }))
}
