//! A problem as a mixed-integer linear program, independent of the solver library.
//!
//! Times and money are whole nanoseconds and nano-dollars here; [`super::milp`] scales them.

use tradewind_units::{Duration, Money};

use crate::candidates::Candidate;
use crate::plan::Plan;
use crate::problem::Problem;
use crate::solver::obstacle::fits;

/// The size of a formulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// The number of integer variables.
    pub columns: usize,
    /// The number of constraints, the budget included.
    pub rows: usize,
    /// The number of non-zero coefficients.
    pub entries: usize,
}

/// An integer variable from 0 to `most`.
#[derive(Debug, Clone)]
pub(super) struct Column {
    /// The score of each unit, above [`Formulation::least_score`].
    pub(super) score: Duration,
    /// The cost of each unit.
    pub(super) cost: Money,
    pub(super) most: usize,
}

/// A weighted sum of columns that lies between two limits, either of which may be infinite.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) terms: Vec<(usize, f64)>,
}

impl Row {
    pub(super) fn at_least(least: f64, terms: Vec<(usize, f64)>) -> Self {
        Self { least, most: f64::INFINITY, terms }
    }

    pub(super) fn at_most(most: f64, terms: Vec<(usize, f64)>) -> Self {
        Self { least: f64::NEG_INFINITY, most, terms }
    }

    pub(super) fn exactly_one(terms: Vec<(usize, f64)>) -> Self {
        Self { least: 1.0, most: 1.0, terms }
    }
}

/// The column that is 1 when a flow takes a candidate.
#[derive(Debug, Clone)]
pub(super) struct Pick {
    pub(super) column: usize,
    /// The candidate's index in [`Problem::candidates`].
    pub(super) place: usize,
    /// The relay's number of each offer on the path, where the formulation has a column for each
    /// relay; else empty.
    pub(super) numbers: Vec<usize>,
}

/// The columns for an offer's relays.
#[derive(Debug, Clone)]
pub(super) enum Relays {
    /// No column: they cost nothing, or the running ones are enough.
    Uncounted,
    /// The column of the number that are set up beyond the running ones.
    Count(usize),
    /// One column of 0 or 1 for each.
    Each(Vec<usize>),
}

/// The program: columns, rows, and their meaning.
#[derive(Debug, Clone, Default)]
pub(super) struct Formulation {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
    /// The picks of each flow.
    pub(super) picks: Vec<Vec<Pick>>,
    /// By offer.
    pub(super) relays: Vec<Relays>,
    /// Set where more than one relay of an offer may be needed, by offer.
    pub(super) binds: Vec<bool>,
    /// The sum of the flows' best scores, which the columns' scores leave out.
    pub(super) least_score: Duration,
}

impl Formulation {
    pub(super) fn add(&mut self, score: Duration, cost: Money, most: usize) -> usize {
        self.columns.push(Column { score, cost, most });
        self.columns.len() - 1
    }

    pub(super) fn size(&self) -> Size {
        let budget = self.columns.iter().filter(|column| column.cost > Money::ZERO).count();
        let entries = self.rows.iter().map(|row| row.terms.len()).sum::<usize>() + budget;
        Size { columns: self.columns.len(), rows: self.rows.len() + 1, entries }
    }

    /// Returns each flow's candidate by these values of the columns.
    pub(super) fn choice(&self, values: &[f64]) -> Vec<usize> {
        let value = |pick: &&Pick| values[pick.column];
        let selected = |picks: &Vec<Pick>| {
            let pick = picks.iter().max_by(|a, b| value(a).total_cmp(&value(b)));
            pick.map_or(0, |pick| pick.place)
        };
        self.picks.iter().map(selected).collect()
    }

    /// Returns the cost of these values of the columns by the program's own count of relays.
    pub(super) fn cost(&self, values: &[f64]) -> Money {
        let paid = |(column, value): (&Column, &f64)| column.cost.times(value.round() as u64);
        self.columns.iter().zip(values).map(paid).sum()
    }

    /// Returns the values of the columns for this plan; `None` when the program left out one of its
    /// paths.
    pub(super) fn values(&self, problem: &Problem, plan: &Plan) -> Option<Vec<f64>> {
        let mut values = vec![0.0; self.columns.len()];
        for (flow, planned) in plan.flows.iter().enumerate() {
            let offers = plan.offers_of(problem, planned)?;
            let numbers: Option<Vec<usize>> =
                planned.path.iter().map(|id| number_of(problem, plan, id)).collect();
            let numbers = numbers?;
            let meant = |pick: &&Pick| {
                problem.candidates(flow)[pick.place].relays == offers
                    && (pick.numbers.is_empty() || pick.numbers == numbers)
            };
            values[self.picks[flow].iter().find(meant)?.column] = 1.0;
        }
        for (offer, relays) in self.relays.iter().enumerate() {
            let count = planned_relays(problem, plan, offer);
            match relays {
                Relays::Uncounted => {}
                Relays::Count(column) => {
                    let paid = count.saturating_sub(problem.offers()[offer].running);
                    values[*column] = paid as f64;
                }
                Relays::Each(columns) => {
                    columns.iter().take(count).for_each(|column| values[*column] = 1.0);
                }
            }
        }
        Some(values)
    }

    /// Returns the values of the columns for this plan, or for one that is no worse: for a path
    /// that the program left out it has another of the flow that dominates it.
    pub(super) fn values_of_any(&self, problem: &Problem, plan: &Plan) -> Option<Vec<f64>> {
        if let Some(values) = self.values(problem, plan) {
            return Some(values);
        }
        let choice = plan.choice_in(problem)?;
        let mut places = Vec::with_capacity(choice.len());
        for (flow, place) in choice.into_iter().enumerate() {
            let all = problem.candidates(flow);
            let old = &all[place];
            let no_worse = |pick: &&Pick| {
                let new = &all[pick.place];
                let within = new.relays.iter().all(|relay| old.relays.contains(relay));
                within && new.score <= old.score && new.cost <= old.cost
            };
            let picks = &self.picks[flow];
            let same = picks.iter().find(|pick| pick.place == place);
            places.push(same.or_else(|| picks.iter().find(no_worse))?.place);
        }
        let plan = Plan::from_choice(problem, &places, &plan.solver, plan.bound)?;
        self.values(problem, &plan)
    }
}

/// Returns the number of an offer's relays in the plan.
pub(super) fn planned_relays(problem: &Problem, plan: &Plan, offer: usize) -> usize {
    plan.relays.iter().filter(|relay| is_of(problem, relay, offer)).count()
}

fn is_of(problem: &Problem, relay: &crate::PlannedRelay, offer: usize) -> bool {
    let offer = &problem.offers()[offer];
    relay.region == offer.region && relay.relay_type == offer.relay_type.id
}

/// Returns the relay's number among its offer's relays, counted from 0.
fn number_of(problem: &Problem, plan: &Plan, id: &tradewind_units::RelayId) -> Option<usize> {
    let at = plan.relays.iter().position(|relay| relay.id == *id)?;
    let same = |offer: &usize| is_of(problem, &plan.relays[at], *offer);
    let offer = (0..problem.offers().len()).find(same)?;
    Some(plan.relays[..at].iter().filter(|relay| is_of(problem, relay, offer)).count())
}

/// Returns the candidates of a flow that some plan could use, each with its index: every relay has
/// the capacity, and the budget affords it if nothing else is carried.
pub(super) fn possible(problem: &Problem, flow: usize) -> Vec<(usize, &Candidate)> {
    let offer = |relay: &usize| &problem.offers()[*relay];
    let affordable = |candidate: &Candidate| {
        let set_up: Money = candidate.relays.iter().map(|relay| offer(relay).set_up(1)).sum();
        candidate.cost + set_up <= problem.budget()
    };
    let all = problem.candidates(flow).iter().enumerate();
    all.filter(|(_, candidate)| fits(problem, candidate) && affordable(candidate)).collect()
}

/// Returns the greatest load on each offer, in bit/s, and how many flows may take some of it.
pub(super) fn demands(
    problem: &Problem,
    flows: &[Vec<(usize, &Candidate)>],
) -> (Vec<u64>, Vec<usize>) {
    let mut rates = vec![0_u64; problem.offers().len()];
    let mut users = vec![0; problem.offers().len()];
    for candidates in flows {
        let mut most = vec![0; problem.offers().len()];
        for (_, candidate) in candidates {
            for relay in &candidate.relays {
                most[*relay] = most[*relay].max(candidate.rate.as_bps());
            }
        }
        for (offer, most) in most.into_iter().enumerate().filter(|(_, most)| *most > 0) {
            rates[offer] = rates[offer].saturating_add(most);
            users[offer] += 1;
        }
    }
    (rates, users)
}

/// Returns an upper bound on the relays of an offer in a plan: one a user, as many as the budget
/// sets up, and fewer than twice what the rates fill, since two relays that could be merged are one
/// too many.
pub(super) fn most_relays(problem: &Problem, offer: usize, rate: u64, users: usize) -> usize {
    let (budget, offer) = (problem.budget(), &problem.offers()[offer]);
    let filled = rate / offer.capacity_bps().max(1);
    let most = if rate <= offer.capacity_bps() { 1 } else { 2 * filled as usize + 1 };
    let affordable = |count: &usize| offer.set_up(*count) <= budget;
    let most = most.min(offer.most.unwrap_or(usize::MAX));
    (0..=users.min(most)).rev().find(affordable).unwrap_or(0)
}
