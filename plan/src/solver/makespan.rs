//! The least makespan, by any solver that serves total completion time and cost.
//!
//! Within a limit on every flow's completion time the cheapest plan tells whether the budget affords the limit.
//! Such limits are the candidates' completion times; the least affordable one is found by bisection, and
//! then the least total within it.

use tradewind_units::Duration;

use super::{Limits, SolveError, Solver, unlimited_bound};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};

/// The plan of least makespan that `solver` finds, and of least total completion time within that.
///
/// Its `bound` holds for any plan of the problem, whatever its makespan.
///
/// # Errors
/// Those of `solver`, when it has no plan for the problem without a limit.
pub fn solve(
    solver: &dyn Solver,
    problem: &Problem,
    limits: &Limits<'_>,
) -> Result<Plan, SolveError> {
    let times = times(problem);
    // A bisection and the plan at its end, all with the same work.
    let steps = u64::from(usize::BITS - times.len().leading_zeros()) + 1;
    let share = limits.with_work(limits.work / (steps + 1));
    let affordable = |limit: Duration| {
        let within = problem.within(limit, Objective::Cost)?;
        let plan = found(solver.solve(&within, &share)).ok()?;
        (plan.cost <= problem.budget()).then_some(plan)
    };
    let (mut low, mut high) = (0, times.len().saturating_sub(1));
    let mut cheapest: Option<(usize, Plan)> = None;
    while low < high {
        let middle = low + (high - low) / 2;
        match affordable(times[middle]) {
            Some(plan) => {
                cheapest = Some((middle, plan));
                high = middle;
            }
            None => low = middle + 1,
        }
    }
    let limit = times.get(low).copied().unwrap_or(Duration::MAX);
    let within = problem.within(limit, Objective::TotalFct);
    let last = within.map(|within| found(solver.solve(&within, &share)));
    let fallback = cheapest.filter(|(at, _)| *at == low).map(|(_, plan)| plan);
    let plan = match (last, fallback) {
        (Some(Ok(plan)), Some(other)) if other.score(problem) < plan.score(problem) => other,
        (Some(Ok(plan)), _) | (_, Some(plan)) => plan,
        (Some(Err(error)), None) => return Err(error),
        (None, None) => {
            return Err(SolveError::WorkLimit { best: None, bound: unlimited_bound(problem) });
        }
    };
    let bound = unlimited_bound(problem).min(plan.score(problem).0);
    Ok(Plan { bound, bound_cost: Default::default(), ..plan })
}

/// The plan in hand, if there is one.
fn found(result: Result<Plan, SolveError>) -> Result<Plan, SolveError> {
    match result {
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => Ok(*plan),
        other => other,
    }
}

/// Completion times that may be the makespan, rising: those of candidates, from the slowest flow's best on.
fn times(problem: &Problem) -> Vec<Duration> {
    let of = |flow| problem.candidates(flow).iter().map(|candidate| candidate.fct);
    let flows = 0..problem.flows().len();
    let least = flows.clone().filter_map(|flow| of(flow).min()).max().unwrap_or_default();
    let mut times: Vec<Duration> = flows.flat_map(of).filter(|fct| *fct >= least).collect();
    times.sort_unstable();
    times.dedup();
    times
}
