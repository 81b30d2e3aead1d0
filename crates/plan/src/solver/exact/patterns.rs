//! Pattern cuts: rows that limit the flows on one relay, where paths are fractional.
//!
//! The load of one relay is a pattern: paths of some flows, at most one of each, that fit into its
//! capacity together. Where weights `w` of the paths through an offer add up to at most one in
//! every pattern, every plan satisfies
//!
//! > sum over f, c of w(f, c) u(f, c) <= relays of the offer
//!
//! since each of its relays carries one pattern. Capacity rows are of that form. The weights of the
//! most violated row come from a linear program with a row for each pattern, by row generation:
//! each time the heaviest pattern under the weights so far is added [Gilmore, Gomory: A linear
//! programming approach to the cutting-stock problem]. Paths that are not selected get the weight
//! that the heaviest patterns leave (sequential lifting).

use super::formulation::{Formulation, Relays, Row};
use super::milp;
use crate::problem::Problem;

/// The units of a relay's capacity in the knapsack. Rates are rounded down to them, so that no
/// pattern is missed. Chosen: the loss is below a thousandth of a relay for each flow.
const UNITS: usize = 2048;

/// The most patterns of an offer. Chosen by trial: a dozen flows have fewer that matter.
const MAX_PATTERNS: usize = 40;

/// The value below which a column counts as zero.
const MIN_VALUE: f64 = 1e-6;

/// The least violation of a useful row, in relays. Chosen.
const MIN_VIOLATION: f64 = 1e-3;

/// The relative rounding error of weights, by which they are reduced.
const ROUNDING: f64 = 1e-7;

/// A path of a flow through an offer.
#[derive(Debug, Clone, PartialEq)]
struct Item {
    flow: usize,
    column: usize,
    rate: u64,
    /// The rate in units of a relay's capacity.
    units: usize,
    /// The fraction of the flow on this path, from 0 to 1.
    value: f64,
}

/// Returns rows that every plan satisfies and these values violate.
pub(super) fn rows(problem: &Problem, formulation: &Formulation, values: &[f64]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (offer, relays) in formulation.relays.iter().enumerate() {
        let Relays::Count(count) = relays else { continue };
        if !formulation.binds[offer] {
            continue;
        }
        let running = problem.offers()[offer].running;
        let items = items(problem, formulation, offer, values);
        let there = running as f64 + values[*count];
        let Some(mut terms) = weighted(&items, there) else { continue };
        terms.push((*count, -1.0));
        rows.push(Row::at_most(running as f64, terms));
    }
    rows
}

/// Returns the paths through an offer, flow by flow.
fn items(problem: &Problem, formulation: &Formulation, offer: usize, values: &[f64]) -> Vec<Item> {
    let capacity = u128::from(problem.offers()[offer].capacity_bps().max(1));
    let mut items = Vec::new();
    for (flow, picks) in formulation.picks.iter().enumerate() {
        for pick in picks {
            let candidate = &problem.candidates(flow)[pick.place];
            if candidate.relays.contains(&offer) {
                let rate = candidate.rate.as_bps();
                let units = u128::from(rate) * UNITS as u128 / capacity;
                let units = usize::try_from(units).unwrap_or(usize::MAX);
                let (column, value) = (pick.column, values[pick.column]);
                items.push(Item { flow, column, rate, units, value });
            }
        }
    }
    items
}

/// Returns weights of the paths, by their columns, that add up to at most one in every pattern and,
/// weighted by the values, to more than `there`; none where none were found.
fn weighted(items: &[Item], there: f64) -> Option<Vec<(usize, f64)>> {
    let selected: Vec<Item> = items.iter().filter(|item| item.value > MIN_VALUE).cloned().collect();
    let sum = |weights: &[f64]| -> f64 {
        selected.iter().zip(weights).map(|(item, weight)| item.value * weight).sum()
    };
    let too_little = |weights: &[f64]| sum(weights) < there + MIN_VIOLATION;
    let values: Vec<f64> = selected.iter().map(|item| item.value).collect();
    let mut weights = vec![1.0; selected.len()];
    let mut patterns = Vec::new();
    let most = loop {
        // Further patterns only lower the sum.
        if too_little(&weights) {
            return None;
        }
        let (most, pattern) = heaviest(&selected, &weights);
        if most <= 1.0 + ROUNDING || patterns.len() == MAX_PATTERNS {
            break most;
        }
        patterns.push(pattern);
        weights = milp::heaviest_weights(&values, &patterns)?;
    };
    let scale = most.max(1.0) * (1.0 + ROUNDING);
    weights.iter_mut().for_each(|weight| *weight = (*weight / scale).max(0.0));
    (!too_little(&weights)).then(|| lifted(items, &selected, &weights))
}

/// Returns the heaviest pattern of the items, by their indexes, and its weight.
fn heaviest(items: &[Item], weights: &[f64]) -> (f64, Vec<usize>) {
    let mut packing = Packing::new();
    let mut chosen = Vec::new();
    for group in groups(items) {
        let of_flow: Vec<(usize, f64)> =
            group.clone().map(|at| (items[at].units, weights[at])).collect();
        chosen.push((group, packing.add(&of_flow)));
    }
    let (mut left, mut pattern) = (UNITS, Vec::new());
    for (group, choice) in chosen.iter().rev() {
        if let Some(at) = choice[left].map(|within| group.start + within) {
            pattern.push(at);
            left -= items[at].units;
        }
    }
    (packing.best[UNITS], pattern)
}

/// Returns the range of each flow's items, which are adjacent.
fn groups(items: &[Item]) -> Vec<std::ops::Range<usize>> {
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        match groups.last_mut().filter(|group| items[group.start].flow == item.flow) {
            Some(group) => group.end = at + 1,
            None => groups.push(at..at + 1),
        }
    }
    groups
}

/// Returns weights of all paths, by their columns: a path of a flow in `selected` has the greatest
/// weight of the flow's selected paths of no greater rate; a path of another flow has what every
/// pattern leaves.
fn lifted(items: &[Item], selected: &[Item], weights: &[f64]) -> Vec<(usize, f64)> {
    let mut packing = Packing::new();
    let mut terms = Vec::new();
    let is_selected = |flow: usize| selected.iter().any(|item| item.flow == flow);
    let (own, mut others): (Vec<_>, Vec<_>) =
        groups(items).into_iter().partition(|group| is_selected(items[group.start].flow));
    for group in own {
        let of_flow: Vec<(usize, f64)> = (items[group.clone()].iter())
            .map(|item| {
                let lighter = selected
                    .iter()
                    .zip(weights)
                    .filter(|(other, _)| other.flow == item.flow && other.rate <= item.rate);
                (item.units, lighter.map(|(_, weight)| *weight).fold(0.0, f64::max))
            })
            .collect();
        packing.add(&of_flow);
        terms.extend(items[group].iter().zip(&of_flow).map(|(item, of)| (item.column, of.1)));
    }
    let largest = |group: &std::ops::Range<usize>| {
        items[group.clone()].iter().map(|item| item.units).max().unwrap_or_default()
    };
    others.sort_by_key(|group| (std::cmp::Reverse(largest(group)), group.start));
    for group in others {
        let left = |item: &Item| {
            let beside = UNITS.checked_sub(item.units).map_or(0.0, |left| packing.best[left]);
            (1.0 - ROUNDING - beside).max(0.0)
        };
        let of_flow: Vec<(usize, f64)> =
            items[group.clone()].iter().map(|item| (item.units, left(item))).collect();
        packing.add(&of_flow);
        terms.extend(items[group].iter().zip(&of_flow).map(|(item, of)| (item.column, of.1)));
    }
    terms.retain(|(_, weight)| *weight > MIN_VALUE);
    terms
}

/// The greatest weight of patterns of the flows so far, by units of capacity.
struct Packing {
    best: Vec<f64>,
}

impl Packing {
    fn new() -> Self {
        Self { best: vec![0.0; UNITS + 1] }
    }

    /// Adds a flow by the units and weights of its paths; returns, for each number of units, its
    /// path in the heaviest pattern, if any.
    fn add(&mut self, of_flow: &[(usize, f64)]) -> Vec<Option<usize>> {
        let mut choice = vec![None; UNITS + 1];
        // From above: the entries below do not have this flow yet.
        for within in (0..=UNITS).rev() {
            let before = self.best[within];
            for (at, (units, weight)) in of_flow.iter().enumerate() {
                let Some(left) = within.checked_sub(*units) else { continue };
                let beside = if *units == 0 { before } else { self.best[left] };
                if beside + weight > self.best[within] {
                    self.best[within] = beside + weight;
                    choice[within] = Some(at);
                }
            }
        }
        choice
    }
}

#[cfg(test)]
mod tests {
    use rand_core::RngCore;
    use rand_pcg::Pcg64Mcg;

    use super::*;

    fn item(flow: usize, column: usize, rate: u64, capacity: u64, value: f64) -> Item {
        let units = usize::try_from(rate * UNITS as u64 / capacity).unwrap();
        Item { flow, column, rate, units, value }
    }

    #[test]
    fn pattern_of_three_weighs_a_third_each() {
        let items: Vec<Item> = (0..4).map(|flow| item(flow, flow, 26, 100, 1.0)).collect();
        let weights = weighted(&items, 1.04).unwrap();
        let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
        assert!((sum - 4.0 / 3.0).abs() < 1e-5, "{weights:?}");
        assert_eq!(weighted(&items, 1.34), None);
    }

    /// Returns the greatest sum of weights in a pattern, by enumeration.
    fn most(items: &[Item], weights: &[(usize, f64)], capacity: u64) -> f64 {
        let weight = |item: &Item| {
            let own = weights.iter().find(|(column, _)| *column == item.column);
            own.map_or(0.0, |(_, weight)| *weight)
        };
        let mut most: f64 = 0.0;
        for mask in 0_u32..1 << items.len() {
            let pattern: Vec<&Item> = items
                .iter()
                .enumerate()
                .filter(|(at, _)| mask >> at & 1 == 1)
                .map(|(_, i)| i)
                .collect();
            let twice = pattern.windows(2).any(|pair| pair[0].flow == pair[1].flow);
            if !twice && pattern.iter().map(|item| item.rate).sum::<u64>() <= capacity {
                most = most.max(pattern.iter().map(|item| weight(item)).sum());
            }
        }
        most
    }

    #[test]
    fn weights_come_to_one_at_most_in_every_pattern() {
        let mut generator = Pcg64Mcg::new(1);
        let mut below = |count: u64| generator.next_u64() % count;
        let mut found = 0;
        for case in 0..100 {
            let capacity = 1_000;
            let mut items = Vec::new();
            for flow in 0..6 {
                for _ in 0..1 + below(2) {
                    let value = if below(3) == 0 { 0.0 } else { below(101) as f64 / 100.0 };
                    items.push(item(flow, items.len(), 150 + below(850), capacity, value));
                }
            }
            let load: f64 = items.iter().map(|item| item.rate as f64 * item.value).sum();
            let Some(weights) = weighted(&items, load / capacity as f64) else { continue };
            found += 1;
            let most = most(&items, &weights, capacity);
            assert!(most <= 1.0 + 1e-12, "case {case}: {most}");
        }
        assert!(found > 50, "{found} cases have a row");
    }
}
