//! Our own formulation: relays of one offer are counted, not individual columns.
//!
//! | column | meaning |
//! |---|---|
//! | u(f, c) | 1: flow f takes candidate c |
//! | p(o) | relays of offer o set up beyond the r(o) that run |
//!
//! | row | |
//! |---|---|
//! | one candidate a flow | sum over c of u(f, c) = 1 |
//! | a flow needs a relay | sum over c through o of u(f, c) <= p(o), where r(o) = 0 |
//! | capacity | sum over f, c through o of share(rate / capacity) u(f, c) <= r(o) + p(o) |
//! | budget | cost of paths and of p <= budget |
//!
//! The capacity row is there three times: with the plain share, and with two dual feasible
//! functions of it, which no packing exceeds either ([Fekete, Schepers: New classes of fast lower
//! bounds for bin packing]): more than half a relay counts as one, more than a third as a half.
//! Packings that they still allow are cut off by [`super::cuts`] when they occur. Rows that cannot
//! bind are left out.

use std::collections::BTreeMap;

use tradewind_units::{Duration, Money};

use super::formulation::{Formulation, Pick, Relays, Row, demands, most_relays, possible};
use crate::candidates::Candidate;
use crate::problem::Problem;

/// Returns the formulation; none where a flow has no affordable path.
pub(super) fn aggregated(problem: &Problem) -> Option<Formulation> {
    aggregated_over(problem, |_, _| true)
}

/// Returns the formulation over the candidates, by flow and index, for which `is_retained` is true.
pub(super) fn aggregated_over(
    problem: &Problem,
    is_retained: impl Fn(usize, usize) -> bool,
) -> Option<Formulation> {
    let of = |flow: usize| {
        let mut all = possible(problem, flow);
        all.retain(|(place, _)| is_retained(flow, *place));
        all
    };
    let all: Vec<Vec<(usize, &Candidate)>> = (0..problem.flows().len()).map(of).collect();
    if all.iter().any(Vec::is_empty) {
        return None;
    }
    let (rates, users) = demands(problem, &all);
    let offers = problem.offers().iter().zip(&rates);
    let binds: Vec<bool> = offers.map(|(offer, rate)| *rate > offer.capacity_bps()).collect();
    let mut formulation = Formulation { binds, ..Formulation::default() };
    for (flow, candidates) in all.iter().enumerate() {
        let retained = undominated(candidates, &formulation.binds);
        formulation.add_flow(flow, &retained);
    }
    let mut through = Through::new(problem, &formulation);
    for offer in 0..problem.offers().len() {
        let most = most_relays(problem, offer, rates[offer], users[offer]);
        formulation.add_offer(problem, offer, most, &through.take(offer));
    }
    Some(formulation)
}

impl Formulation {
    fn add_flow(&mut self, flow: usize, retained: &[(usize, &Candidate)]) {
        let best = retained.iter().map(|(_, candidate)| candidate.score).min().unwrap_or_default();
        self.least_score = self.least_score.saturating_add(best);
        let mut picks = Vec::with_capacity(retained.len());
        for (place, candidate) in retained {
            let column = self.add(candidate.score.saturating_sub(best), candidate.cost, 1);
            picks.push(Pick { column, place: *place, numbers: Vec::new() });
        }
        self.rows.push(Row::exactly_one(picks.iter().map(|pick| (pick.column, 1.0)).collect()));
        debug_assert_eq!(self.picks.len(), flow, "flows are added in order");
        self.picks.push(picks);
    }

    fn add_offer(&mut self, problem: &Problem, at: usize, most: usize, users: &[User]) {
        let offer = &problem.offers()[at];
        let running = offer.running;
        let is_limited = offer.most.is_some() && self.binds[at];
        let free = offer.relay_type.set_up == Money::ZERO && !is_limited;
        let enough = running > 0 && !self.binds[at];
        if free || enough || users.is_empty() {
            self.relays.push(Relays::Uncounted);
            return;
        }
        let set_up = offer.relay_type.set_up;
        let count = self.add(Duration::ZERO, set_up, most.saturating_sub(running));
        self.relays.push(Relays::Count(count));
        if running == 0 {
            for user in users {
                let mut terms: Vec<(usize, f64)> =
                    user.columns.iter().map(|(column, _)| (*column, 1.0)).collect();
                terms.push((count, -1.0));
                self.rows.push(Row::at_most(0.0, terms));
            }
        }
        if !self.binds[at] {
            return;
        }
        for step in [None, Some(1), Some(2)] {
            let using = users.iter().flat_map(|user| &user.columns);
            let share = |rate| share(rate, offer.capacity_bps(), step);
            let mut terms: Vec<(usize, f64)> =
                using.map(|(column, rate)| (*column, share(*rate))).collect();
            terms.retain(|(_, share)| *share > 0.0);
            terms.push((count, -1.0));
            self.rows.push(Row::at_most(running as f64, terms));
        }
    }
}

/// Returns the share of a relay that a rate counts as: plainly, or by the dual feasible function of
/// this step.
fn share(rate: u64, capacity: u64, step: Option<u64>) -> f64 {
    let plain = rate as f64 / capacity as f64;
    let Some(step) = step else { return plain };
    let (rate, capacity) = (u128::from(rate), u128::from(capacity));
    let times = (u128::from(step) + 1) * rate;
    if times.is_multiple_of(capacity) { plain } else { (times / capacity) as f64 / step as f64 }
}

/// The columns in which one flow passes an offer, each with its rate in bit/s.
#[derive(Debug, Clone)]
struct User {
    columns: Vec<(usize, u64)>,
}

/// The users of each offer.
struct Through(Vec<Vec<User>>);

impl Through {
    fn new(problem: &Problem, formulation: &Formulation) -> Self {
        let mut offers: Vec<Vec<User>> = vec![Vec::new(); problem.offers().len()];
        for (flow, picks) in formulation.picks.iter().enumerate() {
            let mut columns: BTreeMap<usize, Vec<(usize, u64)>> = BTreeMap::new();
            for pick in picks {
                let candidate = &problem.candidates(flow)[pick.place];
                for relay in &candidate.relays {
                    columns.entry(*relay).or_default().push((pick.column, candidate.rate.as_bps()));
                }
            }
            for (offer, columns) in columns {
                offers[offer].push(User { columns });
            }
        }
        Self(offers)
    }

    fn take(&mut self, offer: usize) -> Vec<User> {
        std::mem::take(&mut self.0[offer])
    }
}

/// Returns the candidates that no other candidate of the flow dominates.
///
/// One dominates another if it is no worse in score and cost, passes a subset of its offers, and
/// takes no more of those whose capacity may bind. It can replace the other in every plan, so
/// nothing is lost.
fn undominated<'a>(
    candidates: &[(usize, &'a Candidate)],
    binds: &[bool],
) -> Vec<(usize, &'a Candidate)> {
    let mut by_offers: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
    for (at, (_, candidate)) in candidates.iter().enumerate() {
        by_offers.entry(sorted(&candidate.relays)).or_default().push(at);
    }
    let dominates = |a: usize, b: usize| {
        let (x, y) = (candidates[a].1, candidates[b].1);
        let lighter = x.rate <= y.rate || x.relays.iter().all(|relay| !binds[*relay]);
        let no_worse = x.score <= y.score && x.cost <= y.cost && lighter;
        no_worse
            && (x.score, x.cost, x.relays.len(), x.rate, a)
                < (y.score, y.cost, y.relays.len(), y.rate, b)
    };
    let is_dominated = |b: usize| {
        let offers = sorted(&candidates[b].1.relays);
        let some = (0..1_usize << offers.len()).map(|mask| subset(&offers, mask));
        let mut others = some.filter_map(|offers| by_offers.get(&offers)).flatten();
        others.any(|a| dominates(*a, b))
    };
    (0..candidates.len()).filter(|at| !is_dominated(*at)).map(|at| candidates[at]).collect()
}

fn sorted(relays: &[usize]) -> Vec<usize> {
    let mut sorted = relays.to_vec();
    sorted.sort_unstable();
    sorted
}

/// Returns the members whose bit is set in `mask`.
fn subset(of: &[usize], mask: usize) -> Vec<usize> {
    (0..of.len()).filter(|bit| mask >> bit & 1 == 1).map(|bit| of[bit]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_step_up_where_fewer_fit_into_a_relay() {
        let at = |rate, step| share(rate, 12, step);
        assert_eq!((at(5, None), at(5, Some(1)), at(5, Some(2))), (5.0 / 12.0, 0.0, 0.5));
        assert_eq!((at(6, Some(1)), at(7, Some(1))), (0.5, 1.0));
        assert_eq!((at(3, Some(2)), at(4, Some(2)), at(9, Some(2))), (0.0, 4.0 / 12.0, 1.0));
    }
}
