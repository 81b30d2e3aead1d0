//! A problem as a mixed-integer linear program, before any library sees it.
//!
//! Times and money stay whole nanoseconds and nano-dollars here; [`super::milp`] scales them.

use tradewind_units::{Duration, Money};

use crate::candidates::Candidate;
use crate::plan::Plan;
use crate::problem::Problem;
use crate::solver::obstacle::fits;

/// What a formulation weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Whole numbers to be found.
    pub columns: usize,
    /// Constraints, the budget included.
    pub rows: usize,
    /// Coefficients in them that are not zero.
    pub entries: usize,
}

/// A whole number from 0 to `most`.
#[derive(Debug, Clone)]
pub(super) struct Column {
    /// What each unit adds to the score, above [`Formulation::least_score`].
    pub(super) score: Duration,
    /// What each unit costs.
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
    /// The candidate's place in [`Problem::candidates`].
    pub(super) place: usize,
    /// Which relay of each offer on the path, where the formulation tells them apart; else empty.
    pub(super) numbers: Vec<usize>,
}

/// How the formulation counts an offer's relays.
#[derive(Debug, Clone)]
pub(super) enum Relays {
    /// Not at all: they cost nothing, or those that run are enough.
    Uncounted,
    /// The column is how many are set up beyond those that run.
    Count(usize),
    /// One column of 0 or 1 for each.
    Each(Vec<usize>),
}

/// The program: columns, rows, and what they mean.
#[derive(Debug, Clone, Default)]
pub(super) struct Formulation {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
    /// The picks of each flow.
    pub(super) picks: Vec<Vec<Pick>>,
    /// Offer by offer.
    pub(super) relays: Vec<Relays>,
    /// Whether more than one relay of an offer may be needed, offer by offer.
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

    /// The candidate of each flow that these values of the columns mean.
    pub(super) fn choice(&self, values: &[f64]) -> Vec<usize> {
        let value = |pick: &&Pick| values[pick.column];
        let taken = |picks: &Vec<Pick>| {
            let pick = picks.iter().max_by(|a, b| value(a).total_cmp(&value(b)));
            pick.map_or(0, |pick| pick.place)
        };
        self.picks.iter().map(taken).collect()
    }

    /// What these values of the columns cost by the program's own count of relays.
    pub(super) fn cost(&self, values: &[f64]) -> Money {
        let paid = |(column, value): (&Column, &f64)| column.cost.times(value.round() as u64);
        self.columns.iter().zip(values).map(paid).sum()
    }

    /// The values of the columns that mean this plan; `None` when the program left out one of its
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

    /// The values of the columns that mean this plan, or one that is no worse: a path that the
    /// program left out has another of the flow beside it that beats it.
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

/// How many relays of an offer the plan runs.
pub(super) fn planned_relays(problem: &Problem, plan: &Plan, offer: usize) -> usize {
    plan.relays.iter().filter(|relay| is_of(problem, relay, offer)).count()
}

fn is_of(problem: &Problem, relay: &crate::PlannedRelay, offer: usize) -> bool {
    let offer = &problem.offers()[offer];
    relay.region == offer.region && relay.relay_type == offer.relay_type.id
}

/// Which of its offer's relays this one is, counted from 0.
fn number_of(problem: &Problem, plan: &Plan, id: &tradewind_units::RelayId) -> Option<usize> {
    let at = plan.relays.iter().position(|relay| relay.id == *id)?;
    let same = |offer: &usize| is_of(problem, &plan.relays[at], *offer);
    let offer = (0..problem.offers().len()).find(same)?;
    Some(plan.relays[..at].iter().filter(|relay| is_of(problem, relay, offer)).count())
}

/// The candidates of a flow that some plan could have: no relay is too small for it, and the budget
/// affords it if nothing else is carried. Each with its place.
pub(super) fn possible(problem: &Problem, flow: usize) -> Vec<(usize, &Candidate)> {
    let offer = |relay: &usize| &problem.offers()[*relay];
    let affordable = |candidate: &Candidate| {
        let set_up: Money = candidate.relays.iter().map(|relay| offer(relay).set_up(1)).sum();
        candidate.cost + set_up <= problem.budget()
    };
    let all = problem.candidates(flow).iter().enumerate();
    all.filter(|(_, candidate)| fits(problem, candidate) && affordable(candidate)).collect()
}

/// The most that flows may take of each offer, in bit/s, and how many flows may take some of it.
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

/// How many relays of an offer a plan may need at most: one a user, as many as the budget sets up,
/// and fewer than twice what the rates fill, since two relays that could be merged are one too
/// many.
pub(super) fn most_relays(problem: &Problem, offer: usize, rate: u64, users: usize) -> usize {
    let (budget, offer) = (problem.budget(), &problem.offers()[offer]);
    let filled = rate / offer.capacity_bps().max(1);
    let roomy = if rate <= offer.capacity_bps() { 1 } else { 2 * filled as usize + 1 };
    let affordable = |count: &usize| offer.set_up(*count) <= budget;
    let roomy = roomy.min(offer.most.unwrap_or(usize::MAX));
    (0..=users.min(roomy)).rev().find(affordable).unwrap_or(0)
}
