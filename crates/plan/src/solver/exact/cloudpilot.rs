//! CP's formulation [CP Fig. 4]: every relay that might be set up has a variable of its own.
//!
//! | column | meaning |
//! |---|---|
//! | u(f, c, n) | 1: flow f takes candidate c over the relays numbered n at its offers |
//! | x(o, n) | 1: relay n of offer o is set up |
//!
//! | row | |
//! |---|---|
//! | one allocation a flow | sum of u(f, ., .) = 1 |
//! | capacity | sum of rate u over those through (o, n) <= capacity(o) |
//! | 1 if needed | flows * x(o, n) >= sum of u through (o, n) |
//! | 0 if unneeded | x(o, n) <= sum of u through (o, n) |
//! | symmetry | x(o, n) >= x(o, n + 1) |
//! | budget | cost of paths and set-up <= budget |
//!
//! Four things in the figure need correction. "1 if needed" has the number of instances a region in
//! front of x, which keeps more flows than that off a relay; it must be the number of flows. Its
//! pairs of proxies include a proxy with itself, which would count its load twice; here a path
//! passes no region twice. Of the cases of T, two have one condition: the second is meant for one
//! proxy. And the size of the set of instances is not given: here it is as large as a plan may need
//! ([`most_relays`]), so nothing is lost.
//!
//! Dominated paths are retained, and there is no row by which a flow needs an offer at all before
//! one of its relays: [`super::aggregated`] has both improvements.

use tradewind_units::{Duration, Money};

use super::formulation::{Formulation, Pick, Relays, Row, demands, most_relays, possible};
use crate::candidates::Candidate;
use crate::problem::Problem;

/// The most columns. Chosen: beyond, HiGHS takes a minute to read the program and finds nothing.
const MAX_COLUMNS: usize = 400_000;

/// The reason why there is no formulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// A flow has no affordable path.
    Infeasible,
    /// It would have more than [`MAX_COLUMNS`].
    TooLarge,
}

/// Returns the formulation.
pub(super) fn cloudpilot(problem: &Problem) -> Result<Formulation, Refused> {
    let all: Vec<Vec<(usize, &Candidate)>> =
        (0..problem.flows().len()).map(|flow| possible(problem, flow)).collect();
    if all.iter().any(Vec::is_empty) {
        return Err(Refused::Infeasible);
    }
    let (rates, users) = demands(problem, &all);
    let instances: Vec<usize> = (0..problem.offers().len())
        .map(|offer| most_relays(problem, offer, rates[offer], users[offer]))
        .collect();
    let combinations = |candidate: &Candidate| {
        candidate
            .relays
            .iter()
            .fold(1_usize, |product, relay| product.saturating_mul(instances[*relay]))
    };
    let columns = all.iter().flatten().map(|(_, candidate)| combinations(candidate));
    if columns.fold(0_usize, usize::saturating_add) > MAX_COLUMNS {
        return Err(Refused::TooLarge);
    }
    let mut formulation = Formulation::default();
    let mut through: Vec<Vec<Vec<(usize, u64)>>> =
        instances.iter().map(|count| vec![Vec::new(); *count]).collect();
    for candidates in &all {
        formulation.allocate(candidates, &instances, &mut through);
    }
    for (at, offer) in problem.offers().iter().enumerate() {
        let columns: Vec<usize> = (0..instances[at])
            .map(|number| {
                let paid = number >= offer.running;
                let cost = if paid { offer.relay_type.set_up } else { Money::ZERO };
                formulation.add(Duration::ZERO, cost, 1)
            })
            .collect();
        for (x, users) in columns.iter().zip(&through[at]) {
            formulation.relay(*x, users, problem.flows().len(), offer.capacity_bps());
        }
        for pair in columns.windows(2) {
            formulation.rows.push(Row::at_least(0.0, vec![(pair[0], 1.0), (pair[1], -1.0)]));
        }
        formulation.relays.push(Relays::Each(columns));
    }
    Ok(formulation)
}

impl Formulation {
    /// Adds a flow's columns u, and records in `through` the relays that each passes and its rate.
    fn allocate(
        &mut self,
        candidates: &[(usize, &Candidate)],
        instances: &[usize],
        through: &mut [Vec<Vec<(usize, u64)>>],
    ) {
        let best = candidates.iter().map(|(_, candidate)| candidate.score).min();
        let best = best.unwrap_or_default();
        self.least_score = self.least_score.saturating_add(best);
        let mut picks = Vec::new();
        for (place, candidate) in candidates {
            for numbers in combinations(&candidate.relays, instances) {
                let column = self.add(candidate.score.saturating_sub(best), candidate.cost, 1);
                for (relay, number) in candidate.relays.iter().zip(&numbers) {
                    through[*relay][*number].push((column, candidate.rate.as_bps()));
                }
                picks.push(Pick { column, place: *place, numbers });
            }
        }
        self.rows.push(Row::exactly_one(picks.iter().map(|pick| (pick.column, 1.0)).collect()));
        self.picks.push(picks);
    }

    /// Adds the rows of one relay, used by these u at these rates in bit/s.
    fn relay(&mut self, x: usize, users: &[(usize, u64)], flows: usize, capacity: u64) {
        let share = |rate: &u64| *rate as f64 / capacity as f64;
        let load = users.iter().map(|(column, rate)| (*column, share(rate))).collect();
        self.rows.push(Row::at_most(1.0, load));
        let using = |factor: f64| users.iter().map(move |(column, _)| (*column, factor));
        let needed = using(-1.0).chain([(x, flows as f64)]).collect();
        self.rows.push(Row::at_least(0.0, needed));
        let unneeded = using(-1.0).chain([(x, 1.0)]).collect();
        self.rows.push(Row::at_most(0.0, unneeded));
    }
}

/// Returns all combinations of relay numbers on a path.
fn combinations(relays: &[usize], instances: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for relay in relays {
        let longer = |numbers: &Vec<usize>| {
            let numbers = numbers.clone();
            (0..instances[*relay]).map(move |number| [numbers.clone(), vec![number]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}
