//! The minimum makespan, by any solver for total completion time.
//!
//! Under a limit on every flow's completion time the cheapest plan shows whether the budget affords
//! the limit; with a solver that does not support cost, it is whether there is any plan within the
//! budget. The limits tried are the candidates' completion times; the least affordable one is found
//! by bisection, then the cheapest plan within it, and then the least total for that money: nothing
//! is spent that the makespan does not need.

use tradewind_units::Duration;

use super::{Limits, SolveError, Solver, part};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};

/// Returns the plan of least makespan that `solver` finds, of those the cheapest, and of those one
/// of least total completion time.
///
/// Its `bound` is a lower bound on the makespan of every plan within the budget.
///
/// # Errors
/// Those of `solver`, when it has no plan for the problem without a limit.
pub fn solve(
    solver: &dyn Solver,
    problem: &Problem,
    limits: &Limits<'_>,
) -> Result<Plan, SolveError> {
    let times = times(problem);
    // A bisection and the two plans at its end, all with the same work, and the same share of the
    // remaining time.
    let steps = (usize::BITS - times.len().leading_zeros()) + 2;
    let share = 1.0 / f64::from(steps + 1);
    let mut bound = slowest_flows_best(problem);
    let (mut low, mut high) = (0, times.len().saturating_sub(1));
    let mut cheapest: Option<(usize, Plan)> = None;
    while low < high {
        let middle = low + (high - low) / 2;
        match part(limits, share, |share| within(solver, problem, times[middle], share))? {
            Within::Affordable(plan) => {
                cheapest = Some((middle, *plan));
                high = middle;
            }
            Within::NotFound => low = middle + 1,
            Within::None => {
                low = middle + 1;
                // Where all paths are candidates, no time between this and the next can be the
                // makespan.
                let next = if problem.leaves_out() { middle } else { middle + 1 };
                bound = bound.max(times[next]);
            }
        }
    }
    let limit = times.get(low).copied().unwrap_or(Duration::MAX);
    let ask = |objective, budget| {
        let within = problem.within(limit, objective)?.with_budget(budget);
        Some(found(part(limits, share, |share| solver.solve(&within, share))))
    };
    let fallback = cheapest.filter(|(at, _)| *at == low).map(|(_, plan)| plan);
    let is_affordable = |plan: &Plan| plan.cost <= problem.budget();
    let cheapest = ask(Objective::Cost, problem.budget()).and_then(Result::ok);
    let cheapest = cheapest.into_iter().chain(fallback).filter(is_affordable);
    let cheapest = cheapest.min_by_key(|plan| plan.cost);
    let budget = cheapest.as_ref().map_or(problem.budget(), |plan| plan.cost);
    let last = ask(Objective::TotalFct, budget);
    let plan = match (last, cheapest) {
        (Some(Ok(plan)), Some(other)) if other.rank(problem) < plan.rank(problem) => other,
        (Some(Ok(plan)), _) | (_, Some(plan)) => plan,
        (Some(Err(SolveError::WorkLimit { best: None, .. })) | None, None) => {
            return Err(SolveError::WorkLimit { best: None, bound });
        }
        (Some(Err(error)), None) => return Err(error),
    };
    Ok(Plan { bound: bound.min(plan.makespan()), bound_cost: Default::default(), ..plan })
}

/// The result for a limit on every flow's completion time.
enum Within {
    /// A plan within the budget.
    Affordable(Box<Plan>),
    /// A proof that there is none.
    None,
    NotFound,
}

/// Solves for the cheapest plan in which no flow takes longer than `limit`; with a solver that does
/// not support cost, for the one of least total, which is within the budget too.
///
/// # Errors
/// When the solver supports neither.
fn within(
    solver: &dyn Solver,
    problem: &Problem,
    limit: Duration,
    limits: &Limits<'_>,
) -> Result<Within, SolveError> {
    let ask = |objective| {
        let within = problem.within(limit, objective)?;
        Some(found(solver.solve(&within, limits)))
    };
    let answer = match ask(Objective::Cost) {
        Some(Err(SolveError::Objective { .. })) => ask(Objective::TotalFct),
        answer => answer,
    };
    // Paths that are no candidates may be within the limit too; only a bound on cost covers them.
    let nothing = if problem.leaves_out() { Within::NotFound } else { Within::None };
    Ok(match answer {
        Some(Ok(plan)) if plan.cost <= problem.budget() => Within::Affordable(Box::new(plan)),
        Some(Ok(plan)) if plan.bound_cost > problem.budget() => Within::None,
        None | Some(Err(SolveError::Infeasible(_))) => nothing,
        Some(Err(error @ SolveError::Objective { .. })) => return Err(error),
        Some(Ok(_) | Err(_)) => Within::NotFound,
    })
}

/// Returns the plan found, if there is one.
fn found(result: Result<Plan, SolveError>) -> Result<Plan, SolveError> {
    match result {
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => Ok(*plan),
        other => other,
    }
}

/// Returns the completion times that may be the makespan, increasing: those of candidates, from the
/// slowest flow's best on.
fn times(problem: &Problem) -> Vec<Duration> {
    let of = |flow| problem.candidates(flow).iter().map(|candidate| candidate.fct);
    let flows = 0..problem.flows().len();
    let least = flows.clone().filter_map(|flow| of(flow).min()).max().unwrap_or_default();
    let mut times: Vec<Duration> = flows.flat_map(of).filter(|fct| *fct >= least).collect();
    times.sort_unstable();
    times.dedup();
    times
}

/// Returns the longest of all flows' least completion times: a lower bound on every plan's
/// makespan.
pub(super) fn slowest_flows_best(problem: &Problem) -> Duration {
    let best = |flow| {
        let candidates = problem.candidates(flow).iter().map(|candidate| candidate.fct);
        candidates.chain(problem.left_out(flow)).min()
    };
    (0..problem.flows().len()).filter_map(best).max().unwrap_or_default()
}
