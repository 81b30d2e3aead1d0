//! Any solver on problems with common content, whose flows share legs ([`crate::trees`]).
//!
//! Solvers know flows that are carried each by itself. So a solver is asked twice: about the
//! problem in which nothing is shared, whose plans hold here too and cost no more, and about the
//! relaxed one, in which each leg but the last counts by its share ([`Problem::relaxed`]). What it
//! proves there holds here, and its paths there are often good ones here. Either plan is priced
//! with what it truly shares, and the better one counts.
//!
//! `auto` goes on from both by a local search that counts each leg of a tree once ([`climb`]).

use std::collections::BTreeMap;

use tradewind_units::{Duration, Money};

use super::{Limits, SolveError, Solver, Work, part, registry, unlimited_bound};
use crate::plan::Plan;
use crate::problem::Problem;
use climb::Climb;

mod climb;
mod grove;

/// The better of a solver's plans for the problem without sharing and for the relaxed one.
pub(super) fn priced(
    solver: &dyn Solver,
    problem: &Problem,
    limits: &Limits<'_>,
) -> Result<Plan, SolveError> {
    let found = part(limits, 0.5, |limits| Found::apart(solver, problem, limits));
    let found = part(limits, 1.0, |limits| found.relaxed(solver, problem, limits))?;
    let plans =
        found.choices.iter().filter_map(|choice| plan_of(problem, choice, &found)).collect();
    found.best(problem, plans, solver.name())
}

/// The same, the starters' plans, and what a search from all of them finds.
pub(super) fn searched(
    solver: &dyn Solver,
    starters: &[&dyn Solver],
    problem: &Problem,
    limits: &Limits<'_>,
) -> Result<Plan, SolveError> {
    let found = part(limits, 0.3, |limits| Found::apart(solver, problem, limits));
    let found = part(limits, 0.5, |limits| found.relaxed(solver, problem, limits))?;
    let mut plans: Vec<Plan> =
        found.choices.iter().filter_map(|choice| plan_of(problem, choice, &found)).collect();
    for starter in starters {
        match part(limits, 0.1, |limits| priced(*starter, problem, limits)) {
            Ok(plan) => plans.push(plan),
            Err(SolveError::WorkLimit { best, .. }) => plans.extend(best.map(|plan| *plan)),
            Err(_) => {}
        }
    }
    let is_best = |plan: &Plan| found.proved(problem, plan.clone()).is_proved_best(problem);
    let proven = plans.iter().any(|plan| plan.cost <= problem.budget() && is_best(plan));
    if !proven {
        let mut work = Work::new(limits);
        let mut climb = Climb::new(problem);
        for choice in plans.iter().filter_map(|plan| plan.choice_in(problem)) {
            climb.keep(&choice);
        }
        climb.run(&mut work);
        plans.extend(climb.best.map(|(_, plan)| plan));
    }
    found.best(problem, plans, solver.name())
}

/// What a solver made of the problem's two simpler forms.
struct Found {
    /// Each flow's candidate, by plan; the one in which nothing is shared first.
    choices: Vec<Vec<usize>>,
    /// The plan in which nothing is shared, whose relays hold here as they are.
    apart: Option<Plan>,
    /// Why there is none.
    error: Option<SolveError>,
    bound: Duration,
    bound_cost: Money,
}

impl Found {
    fn apart(solver: &dyn Solver, problem: &Problem, limits: &Limits<'_>) -> Self {
        let (apart, error) = match registry::solve(solver, &problem.apart(), limits) {
            Ok(plan) => (Some(plan), None),
            Err(SolveError::WorkLimit { best: Some(plan), .. }) => (Some(*plan), None),
            Err(error) => (None, Some(error)),
        };
        let choices = apart.iter().filter_map(|plan| plan.choice_in(problem)).collect();
        Self { choices, apart, error, bound: unlimited_bound(problem), bound_cost: Money::ZERO }
    }

    /// Adds the plan and the bounds of the relaxed problem.
    fn relaxed(
        mut self,
        solver: &dyn Solver,
        problem: &Problem,
        limits: &Limits<'_>,
    ) -> Result<Self, SolveError> {
        if let Some(error @ (SolveError::Objective { .. } | SolveError::Backend(_))) = &self.error {
            return Err(error.clone());
        }
        let Some(relaxed) = problem.relaxed() else { return Ok(self) };
        let plan = match registry::solve(solver, &relaxed, limits) {
            Ok(plan) => Some(plan),
            Err(SolveError::WorkLimit { best, bound }) => {
                self.bound = self.bound.max(bound);
                best.map(|plan| *plan)
            }
            Err(error @ SolveError::Infeasible { .. }) if self.apart.is_none() => {
                return Err(error);
            }
            Err(_) => None,
        };
        if let Some(plan) = plan {
            self.bound = self.bound.max(plan.bound);
            self.bound_cost = self.bound_cost.max(plan.bound_cost);
            self.choices.extend(plan.choice_in(problem));
        }
        Ok(self)
    }

    /// The plan with what was proved.
    fn proved(&self, problem: &Problem, plan: Plan) -> Plan {
        let bound = self.bound.min(plan.bounded(problem));
        let bound_cost = self.bound_cost.min(plan.cost);
        Plan { bound, bound_cost, ..plan }
    }

    /// The best of the plans within the budget, with what was proved.
    fn best(self, problem: &Problem, plans: Vec<Plan>, solver: &str) -> Result<Plan, SolveError> {
        let affordable = plans.into_iter().filter(|plan| plan.cost <= problem.budget());
        let Some(plan) = affordable.min_by_key(|plan| plan.rank(problem)) else {
            return Err(SolveError::WorkLimit { best: None, bound: self.bound });
        };
        Ok(Plan { solver: solver.to_owned(), ..self.proved(problem, plan) })
    }
}

/// The plan of these candidates; where that is the plan in which nothing is shared, over the same
/// relays if no others cost less.
fn plan_of(problem: &Problem, choice: &[usize], found: &Found) -> Option<Plan> {
    let same = found.choices.first().is_some_and(|first| first == choice);
    let own = found.apart.as_ref().filter(|_| same).and_then(numbers_of);
    match own {
        Some(numbers) => Plan::from_numbers(problem, choice, numbers, "", Duration::ZERO),
        None => Plan::from_choice(problem, choice, "", Duration::ZERO),
    }
}

/// The number of each relay of each flow within its offer.
fn numbers_of(plan: &Plan) -> Option<Vec<Vec<usize>>> {
    let mut counts = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    for relay in &plan.relays {
        let count: &mut usize = counts.entry((&relay.region, &relay.relay_type)).or_default();
        numbers.insert(&relay.id, *count);
        *count += 1;
    }
    let path = |flow: &crate::PlannedFlow| -> Option<Vec<usize>> {
        flow.path.iter().map(|relay| numbers.get(relay).copied()).collect()
    };
    plan.flows.iter().map(path).collect()
}
