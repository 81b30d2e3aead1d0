//! What planning for guessed flows costs once the true ones come [CP VIII].
//!
//! The guessed flows are planned for, and the relays of that plan are set up. Then the true flows
//! come, and either take the paths that were planned between their sites, the rest direct
//! ([`AsPlanned`]); or are planned for again over those relays and no others, within what the
//! set-up left of the budget. The regret is how much worse either is than the best plan for the
//! true flows: it counts relays in the wrong places, relays that are
//! missing, and money spent on relays that nothing needs.

use std::collections::BTreeMap;

use tradewind_units::{Duration, FlowId, Money, RegionId, RelayTypeId};

use super::as_planned::{AsPlanned, as_planned};
use crate::plan::Plan;
use crate::problem::{Flow, Inputs, Offer, Problem, ProblemError};
use crate::solver::{self, Limits, SolveError, Solver};

/// Plans for a forecast and for the true flows.
#[derive(Debug, Clone, PartialEq)]
pub struct Regret {
    /// The plan for the guessed flows; `None` when none were guessed.
    pub predicted: Option<Plan>,
    /// The true flows by the guessed plan as it stands; `None` where one of them can neither take
    /// its planned path nor go direct.
    pub as_planned: Option<AsPlanned>,
    /// The true flows over the guessed plan's relays. Its cost leaves out what setting them up
    /// cost.
    pub applied: Plan,
    /// What was spent on setting up the guessed plan's relays.
    pub set_up: Money,
    /// The best plan found for the true flows.
    pub clairvoyant: Plan,
    /// The objective of [`Regret::applied`], weights included.
    pub applied_score: Duration,
    /// The least objective known for the true flows: that of [`Regret::clairvoyant`], or of
    /// [`Regret::applied`] where a solver that is not exact missed it.
    pub best_score: Duration,
    /// All of them by the problem's objective.
    pub values: Values,
}

/// What each way of carrying the true flows makes of the problem's objective: seconds, or dollars
/// where it is the cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Values {
    /// By the guessed plan as it stands.
    pub as_planned: Option<f64>,
    /// Planned for again over the guessed plan's relays, what setting them up cost included.
    pub applied: f64,
    /// By the plan for the true flows.
    pub clairvoyant: f64,
    /// The least of those that meet all deadlines.
    pub best: f64,
}

impl Regret {
    /// How much worse the guess did, paths chosen anew; never below zero.
    #[must_use]
    pub fn regret(&self) -> Duration {
        self.applied_score.saturating_sub(self.best_score)
    }

    /// The regret as a share of the best; `None` where that takes no time (the objective is cost).
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let best = self.best_score.as_secs_f64();
        (best > 0.0).then(|| self.regret().as_secs_f64() / best)
    }

    /// What the guessed plan cost in the end.
    #[must_use]
    pub fn applied_cost(&self) -> Money {
        self.applied.cost + self.set_up
    }
}

/// Why there is no regret to tell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegretError {
    /// A set of flows makes no problem.
    #[error("{flows}: {source}")]
    Problem {
        /// Which of them.
        flows: &'static str,
        /// What is wrong with them.
        source: ProblemError,
    },
    /// There is no plan.
    #[error("{flows}: {source}")]
    Solve {
        /// Of which of them.
        flows: &'static str,
        /// Why.
        source: SolveError,
    },
}

/// Plans for `predicted`, lets the flows of `truth` take what was set up, and compares with the
/// plan for the true flows; all by the same solver within the same limits.
///
/// # Errors
/// When a set of flows makes no problem or has no plan.
pub fn regret(
    truth: &Inputs,
    predicted: Vec<Flow>,
    solver: &dyn Solver,
    limits: &Limits<'_>,
) -> Result<Regret, RegretError> {
    regret_by(truth, predicted, &mut |problem| solver::solve(solver, problem, limits))
}

/// The same by whatever makes plans: `solve` is asked up to three times, and each answer counts
/// alike.
///
/// # Errors
/// When a set of flows makes no problem or has no plan.
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
    let of_told = |told: &AsPlanned| problem.value(told.fcts.iter().copied(), told.cost);
    let applied = of_plan(applied, applied.cost + set_up);
    // A plan that misses deadlines is none, however little it costs.
    let in_time = as_planned.filter(|told| told.late == 0).map_or(f64::INFINITY, of_told);
    let clairvoyant = of_plan(clairvoyant, clairvoyant.cost);
    let best = clairvoyant.min(applied).min(in_time);
    Values { as_planned: as_planned.map(of_told), applied, clairvoyant, best }
}

fn new_problem(inputs: Inputs, flows: &'static str) -> Result<Problem, RegretError> {
    Problem::new(inputs).map_err(|source| RegretError::Problem { flows, source })
}

/// The solver's plan, or the best that it had when its limits were reached.
fn plan_of(outcome: Result<Plan, SolveError>, flows: &'static str) -> Result<Plan, RegretError> {
    match outcome {
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => Ok(*plan),
        answer => answer.map_err(|source| RegretError::Solve { flows, source }),
    }
}

/// The relays of a plan by region and type.
fn counts(plan: &Plan) -> BTreeMap<(RegionId, RelayTypeId), usize> {
    let mut counts = BTreeMap::new();
    for relay in &plan.relays {
        *counts.entry((relay.region.clone(), relay.relay_type.clone())).or_default() += 1;
    }
    counts
}

/// What setting up a plan's relays costs, those left out that run already.
fn set_up_of(plan: &Plan, problem: &Problem) -> Money {
    let counts = counts(plan);
    let count = |offer: &Offer| {
        let key = (offer.region.clone(), offer.relay_type.id.clone());
        counts.get(&key).copied().unwrap_or(0)
    };
    let counts: Vec<usize> = problem.offers().iter().map(count).collect();
    problem.set_up(&counts, || plan.makespan())
}

/// The true problem in which the plan's relays run, and what was spent on set-up is gone.
fn over_relays_of(plan: Option<&Plan>, truth: &Inputs, spent: Money) -> Inputs {
    let relays = plan.map(counts).unwrap_or_default();
    let mut inputs = truth.clone();
    inputs.regions.retain(|region| relays.keys().any(|(used, _)| used == region));
    inputs.running.relays = relays;
    inputs.budget = truth.budget.checked_sub(spent).unwrap_or_default();
    inputs
}
