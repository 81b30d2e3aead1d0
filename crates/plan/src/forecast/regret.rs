//! Regret: the cost of planning for predicted flows, once the true ones are known [CP VIII].
//!
//! The predicted flows are planned for, and the relays of that plan are set up. Then the true flows
//! either take the paths that were planned between their sites, and the rest go direct
//! ([`AsPlanned`]); or they are planned for again over those relays and no others, within the
//! budget that the set-up left. The regret is how much worse either is than the clairvoyant plan,
//! the best one for the true flows: it accounts for relays in the wrong places, missing relays, and
//! money spent on unnecessary ones.

use std::collections::BTreeMap;

use tradewind_units::{Duration, FlowId, Money, RegionId, RelayTypeId};

use super::as_planned::{AsPlanned, as_planned};
use crate::plan::Plan;
use crate::problem::{Flow, Inputs, Offer, Problem, ProblemError};
use crate::solver::{self, Limits, SolveError, Solver};

/// Plans made from the prediction, and the clairvoyant plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Regret {
    /// The plan for the predicted flows; `None` if there are none.
    pub predicted: Option<Plan>,
    /// The true flows by the predicted plan without planning again; `None` if one of them can
    /// neither take its planned path nor go direct.
    pub as_planned: Option<AsPlanned>,
    /// The plan for the true flows over the predicted plan's relays. Its cost excludes their
    /// set-up.
    pub applied: Plan,
    /// The cost of setting up the predicted plan's relays.
    pub set_up: Money,
    /// The clairvoyant plan: the best one found for the true flows.
    pub clairvoyant: Plan,
    /// The score of [`Regret::applied`], weights included.
    pub applied_score: Duration,
    /// The best known score for the true flows: that of [`Regret::clairvoyant`], or of
    /// [`Regret::applied`] if an inexact solver missed it.
    pub best_score: Duration,
    /// The values of the problem's objective.
    pub values: Values,
}

/// The values of the problem's objective by each way of carrying the true flows: seconds, or
/// dollars if the objective is the cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Values {
    /// By the predicted plan without planning again.
    pub as_planned: Option<f64>,
    /// Planned for again over the predicted plan's relays, their set-up cost included.
    pub applied: f64,
    /// By the clairvoyant plan.
    pub clairvoyant: f64,
    /// The lowest of those that meet all deadlines.
    pub best: f64,
}

impl Regret {
    /// Returns the regret with paths planned again; never below zero.
    #[must_use]
    pub fn regret(&self) -> Duration {
        self.applied_score.saturating_sub(self.best_score)
    }

    /// Returns the regret as a ratio to the best score; `None` if that is zero (the objective is
    /// cost).
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let best = self.best_score.as_secs_f64();
        (best > 0.0).then(|| self.regret().as_secs_f64() / best)
    }

    /// Returns the cost of the applied plan, the set-up of its relays included.
    #[must_use]
    pub fn applied_cost(&self) -> Money {
        self.applied.cost + self.set_up
    }
}

/// The reason why there is no regret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegretError {
    /// A set of flows is no valid problem.
    #[error("{flows}: {source}")]
    Problem {
        /// The name of the set.
        flows: &'static str,
        /// The error of the problem.
        source: ProblemError,
    },
    /// There is no plan.
    #[error("{flows}: {source}")]
    Solve {
        /// The name of the set of flows.
        flows: &'static str,
        /// The solver's error.
        source: SolveError,
    },
}

/// Plans for `predicted`, carries the flows of `truth` over the relays of that plan, and compares
/// the result with the clairvoyant plan; all by the same solver within the same limits.
///
/// # Errors
/// When a set of flows is no valid problem or has no plan.
pub fn regret(
    truth: &Inputs,
    predicted: Vec<Flow>,
    solver: &dyn Solver,
    limits: &Limits<'_>,
) -> Result<Regret, RegretError> {
    regret_by(truth, predicted, &mut |problem| solver::solve(solver, problem, limits))
}

/// Computes the same with any function that makes plans: `solve` is called up to three times.
///
/// # Errors
/// When a set of flows is no valid problem or has no plan.
pub fn regret_by(
    truth: &Inputs,
    predicted: Vec<Flow>,
    solve: &mut dyn FnMut(&Problem) -> Result<Plan, SolveError>,
) -> Result<Regret, RegretError> {
    let mut solved = |problem: &Problem, flows| plan_of(solve(problem), flows);
    let problem = new_problem(truth.clone(), "true flows")?;
    let clairvoyant = solved(&problem, "true flows")?;
    let (mut guess, mut set_up) = (None, Money::ZERO);
    let guessed = predicted.clone();
    if !predicted.is_empty() {
        let mut inputs = Inputs { flows: predicted, ..truth.clone() };
        let there = |flow: &FlowId| inputs.flows.iter().any(|expected| expected.id == *flow);
        inputs.running.paths.retain(|flow, _| there(flow));
        let problem = new_problem(inputs, "predicted flows")?;
        let plan = solved(&problem, "predicted flows")?;
        set_up = set_up_of(&plan, &problem);
        guess = Some(plan);
    }
    let inputs = over_relays_of(guess.as_ref(), truth, set_up);
    let over = "true flows over the predicted plan's relays";
    let restricted = new_problem(inputs, over)?
        .over_running_relays()
        .map_err(|source| RegretError::Problem { flows: over, source })?;
    let applied = solved(&restricted, over)?;
    let applied_score = applied.score(&problem).0;
    let best_score = clairvoyant.score(&problem).0.min(applied_score);
    let as_planned = as_planned(&problem, &guessed, guess.as_ref(), set_up);
    let values = values(&problem, as_planned.as_ref(), (&applied, set_up), &clairvoyant);
    let predicted = guess;
    Ok(Regret {
        predicted,
        as_planned,
        applied,
        set_up,
        clairvoyant,
        applied_score,
        best_score,
        values,
    })
}

fn values(
    problem: &Problem,
    as_planned: Option<&AsPlanned>,
    (applied, set_up): (&Plan, Money),
    clairvoyant: &Plan,
) -> Values {
    let of_plan = |plan: &Plan, cost| problem.value(plan.flows.iter().map(|flow| flow.fct), cost);
    let value_of = |planned: &AsPlanned| problem.value(planned.fcts.iter().copied(), planned.cost);
    let applied = of_plan(applied, applied.cost + set_up);
    // A plan that misses deadlines does not count, however cheap it is.
    let in_time = as_planned.filter(|planned| planned.late == 0).map_or(f64::INFINITY, value_of);
    let clairvoyant = of_plan(clairvoyant, clairvoyant.cost);
    let best = clairvoyant.min(applied).min(in_time);
    Values { as_planned: as_planned.map(value_of), applied, clairvoyant, best }
}

fn new_problem(inputs: Inputs, flows: &'static str) -> Result<Problem, RegretError> {
    Problem::new(inputs).map_err(|source| RegretError::Problem { flows, source })
}

/// Returns the solver's plan, or the best that it had when it reached its limits.
fn plan_of(outcome: Result<Plan, SolveError>, flows: &'static str) -> Result<Plan, RegretError> {
    match outcome {
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => Ok(*plan),
        answer => answer.map_err(|source| RegretError::Solve { flows, source }),
    }
}

/// Counts the relays of a plan by region and type.
fn counts(plan: &Plan) -> BTreeMap<(RegionId, RelayTypeId), usize> {
    let mut counts = BTreeMap::new();
    for relay in &plan.relays {
        *counts.entry((relay.region.clone(), relay.relay_type.clone())).or_default() += 1;
    }
    counts
}

/// Returns the set-up cost of a plan's relays, except those that run already.
fn set_up_of(plan: &Plan, problem: &Problem) -> Money {
    let counts = counts(plan);
    let count = |offer: &Offer| {
        let key = (offer.region.clone(), offer.relay_type.id.clone());
        counts.get(&key).copied().unwrap_or(0)
    };
    let counts: Vec<usize> = problem.offers().iter().map(count).collect();
    problem.set_up(&counts, || plan.makespan())
}

/// Returns the inputs of the true problem with the plan's relays running and the budget reduced by
/// what was spent on set-up.
fn over_relays_of(plan: Option<&Plan>, truth: &Inputs, spent: Money) -> Inputs {
    let relays = plan.map(counts).unwrap_or_default();
    let mut inputs = truth.clone();
    inputs.regions.retain(|region| relays.keys().any(|(used, _)| used == region));
    inputs.running.relays = relays;
    inputs.budget = truth.budget.checked_sub(spent).unwrap_or_default();
    inputs
}
