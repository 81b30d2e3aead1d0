//! What planning for guessed flows costs once the true ones come [CP VIII].
//!
//! The guessed flows are planned for, and the relays of that plan are set up. The true flows then take
//! the best paths over those relays and no others, or go direct, within what the set-up left of the
//! budget. The regret is how much worse that is than the best plan for the true flows, made with
//! hindsight: it counts relays in the wrong places, relays that are missing, and money spent on
//! relays that nothing needs.

use std::collections::BTreeMap;

use tradewind_units::{Duration, Money, RegionId, RelayTypeId};

use crate::plan::Plan;
use crate::problem::{Flow, Inputs, Problem, ProblemError};
use crate::solver::{Limits, SolveError, Solver};

/// The largest amount that inputs may name, in dollars; ten times of it is beyond any budget.
const LARGEST_USD: f64 = 1e9;

/// Plans with and without hindsight.
#[derive(Debug, Clone, PartialEq)]
pub struct Regret {
    /// The plan for the guessed flows; `None` when none were guessed.
    pub predicted: Option<Plan>,
    /// The true flows over the guessed plan's relays. Its cost leaves out what setting them up cost.
    pub applied: Plan,
    /// What was spent on setting up the guessed plan's relays.
    pub set_up: Money,
    /// The best plan found for the true flows.
    pub hindsight: Plan,
    /// The objective of [`Regret::applied`], weights included.
    pub applied_score: Duration,
    /// The least objective known for the true flows: that of [`Regret::hindsight`], or of
    /// [`Regret::applied`] where a solver that is not exact missed it.
    pub best_score: Duration,
}

impl Regret {
    /// How much worse the guess did; never below zero.
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

/// Plans for `predicted`, lets the flows of `truth` take what was set up, and compares with the plan
/// that hindsight makes; all by the same solver within the same limits.
///
/// # Errors
/// When a set of flows makes no problem or has no plan.
pub fn regret(
    truth: &Inputs,
    predicted: Vec<Flow>,
    solver: &dyn Solver,
    limits: &Limits<'_>,
) -> Result<Regret, RegretError> {
    let problem = new_problem(truth.clone(), "true flows")?;
    let hindsight = solve(solver, &problem, limits, "true flows")?;
    let (mut guess, mut set_up) = (None, Money::ZERO);
    if !predicted.is_empty() {
        let inputs = Inputs { flows: predicted, ..truth.clone() };
        let problem = new_problem(inputs, "predicted flows")?;
        let plan = solve(solver, &problem, limits, "predicted flows")?;
        set_up = set_up_of(&plan, &problem);
        guess = Some(plan);
    }
    let inputs = over_relays_of(guess.as_ref(), truth, set_up);
    let over = "true flows over the predicted plan's relays";
    let restricted = new_problem(inputs, over)?;
    let applied = solve(solver, &restricted, limits, over)?;
    let applied_score = applied.score(&problem).0;
    let best_score = hindsight.score(&problem).0.min(applied_score);
    Ok(Regret { predicted: guess, applied, set_up, hindsight, applied_score, best_score })
}

fn new_problem(inputs: Inputs, flows: &'static str) -> Result<Problem, RegretError> {
    Problem::new(inputs).map_err(|source| RegretError::Problem { flows, source })
}

/// The solver's plan, or the best that it had when its limits were reached.
fn solve(
    solver: &dyn Solver,
    problem: &Problem,
    limits: &Limits<'_>,
    flows: &'static str,
) -> Result<Plan, RegretError> {
    match solver.solve(problem, limits) {
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
    let set_up = problem.offers().iter().map(|offer| {
        let key = (offer.region.clone(), offer.relay_type.id.clone());
        offer.set_up(counts.get(&key).copied().unwrap_or(0))
    });
    set_up.sum()
}

/// The true problem in which the plan's relays run, all others cost more than any budget, and what was
/// spent on set-up is gone.
fn over_relays_of(plan: Option<&Plan>, truth: &Inputs, spent: Money) -> Inputs {
    let relays = plan.map(counts).unwrap_or_default();
    let mut inputs = truth.clone();
    inputs.regions.retain(|region| relays.keys().any(|(used, _)| used == region));
    let never = Money::from_usd(LARGEST_USD).expect("the largest amount there is").times(10);
    for relay_type in &mut inputs.relay_types {
        relay_type.set_up = never;
    }
    inputs.running.relays = relays;
    inputs.budget = truth.budget.checked_sub(spent).unwrap_or_default();
    inputs
}
