//! Cuts: rows that exclude what a formulation allows and no plan can do.
//!
//! The aggregated formulation counts capacity and ignores how flows fit into relays. Where a set S
//! of flows does not fit into n relays of an offer, each flow left out saves at most one relay, so
//! every plan satisfies
//!
//! > relays of the offer >= n + 1 - (flows of S that do not pass it at the rate they have, or more)

use tradewind_units::Money;

use super::formulation::{Formulation, Relays, Row};
use crate::packing::too_few;
use crate::problem::Problem;

/// The cuts against one choice.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    pub(super) rows: Vec<Row>,
    /// Set if some set could not be proved too large: then there is no cut against it.
    pub(super) gave_up: bool,
}

/// A flow of an offer, by its index, and its rate in bit/s.
type User = (usize, u64);

/// Returns cuts against a choice whose flows do not fit into the relays that the program counted.
pub(super) fn packing_cuts(
    problem: &Problem,
    formulation: &Formulation,
    choice: &[usize],
    values: &[f64],
) -> Cuts {
    let mut cuts = Cuts::default();
    for (offer, relays) in formulation.relays.iter().enumerate() {
        let Relays::Count(count) = relays else { continue };
        let capacity = problem.offers()[offer].capacity_bps();
        let counted = problem.offers()[offer].running + values[*count].round() as usize;
        let set = users(problem, choice, offer);
        match too_few(counted, &rates(&set), capacity) {
            Some(false) => {}
            None => cuts.gave_up = true,
            Some(true) => {
                let set = smallest(set, counted, capacity);
                let row = cut(problem, formulation, offer, *count, counted, &set);
                cuts.rows.push(row);
            }
        }
    }
    cuts
}

/// Returns the row that cuts off exactly this choice.
pub(super) fn forbid(formulation: &Formulation, choice: &[usize]) -> Row {
    let mut terms = Vec::new();
    for (picks, place) in formulation.picks.iter().zip(choice) {
        let selected = picks.iter().filter(|pick| pick.place == *place);
        terms.extend(selected.map(|pick| (pick.column, 1.0)));
    }
    Row::at_most(choice.len() as f64 - 1.0, terms)
}

/// Returns the flows that pass an offer.
fn users(problem: &Problem, choice: &[usize], offer: usize) -> Vec<User> {
    let chosen = choice.iter().enumerate();
    let through = chosen.filter_map(|(flow, place)| {
        let candidate = &problem.candidates(flow)[*place];
        candidate.relays.contains(&offer).then_some((flow, candidate.rate.as_bps()))
    });
    through.collect()
}

fn rates(users: &[User]) -> Vec<u64> {
    users.iter().map(|(_, rate)| *rate).collect()
}

/// Returns a minimal subset that does not fit into so many relays.
fn smallest(mut set: Vec<User>, relays: usize, capacity: u64) -> Vec<User> {
    set.sort_by_key(|(flow, rate)| (*rate, *flow));
    let mut at = 0;
    while at < set.len() {
        let mut rest = set.clone();
        rest.remove(at);
        if too_few(relays, &rates(&rest), capacity) == Some(true) {
            set = rest;
        } else {
            at += 1;
        }
    }
    set
}

fn cut(
    problem: &Problem,
    formulation: &Formulation,
    offer: usize,
    count: usize,
    counted: usize,
    set: &[User],
) -> Row {
    let mut terms = vec![(count, 1.0)];
    for (flow, rate) in set {
        let as_much = |place: usize| {
            let candidate = &problem.candidates(*flow)[place];
            candidate.relays.contains(&offer) && candidate.rate.as_bps() >= *rate
        };
        let picks = formulation.picks[*flow].iter().filter(|pick| as_much(pick.place));
        terms.extend(picks.map(|pick| (pick.column, -1.0)));
    }
    let running = problem.offers()[offer].running;
    let least = counted as f64 + 1.0 - set.len() as f64 - running as f64;
    Row::at_least(least, terms)
}

/// Returns whether the choice needs more relays, and so more money, than the program counted.
pub(super) fn costs_more(formulation: &Formulation, values: &[f64], cost: Money) -> bool {
    cost > formulation.cost(values)
}
