//! What users get as `auto`: [`Auto`] from the plans of the paper's heuristics, then the exact solver from there.

use super::{
    Auto, FlowGreedyCost, FlowGreedyFct, Limits, OneProxy, SolveError, Solver, TwoProxy,
    TwoProxyRollback,
};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};

const BY_FLOW: &[&dyn Solver] = &[&FlowGreedyFct, &FlowGreedyCost];
const ALL_FIVE: &[&dyn Solver] =
    &[&FlowGreedyFct, &FlowGreedyCost, &OneProxy, &TwoProxy, &TwoProxyRollback];

/// Flows times offers up to which the heuristics that take relay by relay are quick. Chosen: half a second
/// in all.
const MOST_FOR_ALL_FIVE: usize = 2_000;

/// Paths of all flows together up to which the exact solver is worth half of the limits, and those up to which a quarter.
/// Chosen: its program has a column for each of them, and closes few programs of more than some thousand.
const MOST_PATHS_FOR_HALF: usize = 2_000;
const MOST_PATHS_FOR_EXACT: usize = 20_000;

/// The solver. Starts from all of the paper's heuristics where they are quick, else from those that take flow by
/// flow; what it could not prove to be the best is handed on to the exact solver.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Portfolio;

impl Solver for Portfolio {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn shares_legs(&self) -> bool {
        true
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        if problem.objective() == Objective::Makespan {
            return super::makespan::solve(self, problem, limits);
        }
        let size = problem.flows().len() * problem.offers().len();
        let starters = if size <= MOST_FOR_ALL_FIVE { ALL_FIVE } else { BY_FLOW };
        if problem.has_trees() {
            return super::shared_legs::searched(self, starters, problem, limits);
        }
        let auto = Auto { starters, ..Auto::default() };
        if !is_for_exact(problem) {
            return auto.solve(problem, limits);
        }
        let part = if paths(problem) <= MOST_PATHS_FOR_HALF { 2 } else { 4 };
        let kept = limits.time_left.map(|left| left() / part);
        let is_late = || limits.time_left.zip(kept).is_some_and(|(left, kept)| left() < kept);
        let should_stop = || (limits.should_stop)() || is_late();
        let kept_work = limits.work / u64::from(part);
        let work = limits.work - kept_work;
        let share = Limits { work, should_stop: &should_stop, time_left: None, ..*limits };
        go_on(problem, auto.solve(problem, &share), &limits.with_work(kept_work))
    }
}

fn paths(problem: &Problem) -> usize {
    (0..problem.flows().len()).map(|flow| problem.candidates(flow).len()).sum()
}

fn is_for_exact(problem: &Problem) -> bool {
    cfg!(feature = "highs") && paths(problem) <= MOST_PATHS_FOR_EXACT && !problem.leaves_out()
}

/// The exact solver's plan or bound, where they are better than those at hand.
#[cfg(feature = "highs")]
fn go_on(
    problem: &Problem,
    found: Result<Plan, SolveError>,
    limits: &Limits<'_>,
) -> Result<Plan, SolveError> {
    let is_best = |plan: &Plan| match problem.objective() {
        Objective::Cost => plan.bound_cost >= plan.cost,
        Objective::TotalFct | Objective::Makespan => plan.bound >= plan.score(problem).0,
    };
    let start = match &found {
        Ok(plan) if !is_best(plan) => Some(plan.clone()),
        Err(SolveError::WorkLimit { best, .. }) => best.as_deref().cloned(),
        _ => return found,
    };
    let exact = match (super::Exact { start: start.as_ref() }).solve(problem, limits) {
        Ok(plan) => plan,
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => *plan,
        Err(error @ SolveError::Infeasible { .. }) => return Err(error),
        Err(_) => return found,
    };
    let start = start.unwrap_or_else(|| exact.clone());
    let (least, least_cost) =
        (start.bound.max(exact.bound), start.bound_cost.max(exact.bound_cost));
    let best = if exact.score(problem) < start.score(problem) { exact } else { start };
    let (score, cost) = best.score(problem);
    let (bound, bound_cost) = (least.min(score), least_cost.min(cost));
    Ok(Plan { solver: "auto".to_owned(), bound, bound_cost, ..best })
}

#[cfg(not(feature = "highs"))]
fn go_on(_: &Problem, found: Result<Plan, SolveError>, _: &Limits<'_>) -> Result<Plan, SolveError> {
    found
}
