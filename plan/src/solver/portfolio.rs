//! What users get as `auto`: [`Auto`] from the plans of the paper's heuristics, then the exact solver from there.

use super::{
    Auto, FlowGreedyCost, FlowGreedyFct, Limits, OneProxy, SolveError, Solver, TimeLeft, TwoProxy,
    TwoProxyRollback, part, unlimited_bound,
};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};

const ALL_FIVE: &[&dyn Solver] =
    &[&FlowGreedyFct, &FlowGreedyCost, &OneProxy, &TwoProxy, &TwoProxyRollback];

/// The heuristics that take relay by relay, and what of the limits each may take. Chosen: each takes ten times or more what the one before it
/// takes; where 1-P does not come to its end, nearly all is left for the rest of `auto`.
const BY_RELAY: &[(&dyn Solver, f64)] =
    &[(&OneProxy, 0.05), (&TwoProxy, 0.15), (&TwoProxyRollback, 0.4)];

/// Paths of all flows together up to which the exact solver is worth half of the limits, and those up to which a quarter.
/// Chosen: its program has a column for each of them, and closes few programs of more than some thousand.
const MOST_PATHS_FOR_HALF: usize = 2_000;
const MOST_PATHS_FOR_EXACT: usize = 20_000;

/// The solver. Starts from the paper's heuristics, of those that take relay by relay as far as a part of the limits
/// goes; what it could not prove to be the best is handed on to the exact solver.
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
        if problem.has_trees() {
            return super::shared_legs::searched(self, ALL_FIVE, problem, limits);
        }
        let by_relay = InTurn { solvers: BY_RELAY, time_left: limits.time_left };
        let starters: [&dyn Solver; 3] = [&FlowGreedyFct, &FlowGreedyCost, &by_relay];
        let auto = Auto { starters: &starters, ..Auto::default() };
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
        let limits = limits.with_work(kept_work);
        let found = go_on(problem, auto.solve(problem, &share), &limits);
        found.map(|plan| as_cheap_as_can_be(problem, plan, &limits))
    }
}

/// The plan, or a cheaper one of the same score: what is proved of one holds for the other.
#[cfg(feature = "highs")]
fn as_cheap_as_can_be(problem: &Problem, plan: Plan, limits: &Limits<'_>) -> Plan {
    if problem.objective() == Objective::Cost {
        return plan;
    }
    let cheaper = super::Exact::cheapest(problem, &plan, limits);
    let Plan { bound, bound_cost, .. } = plan;
    let cheaper = cheaper.map(|cheaper| {
        let bound_cost = bound_cost.min(cheaper.cost);
        Plan { solver: "auto".to_owned(), bound, bound_cost, ..cheaper }
    });
    cheaper.unwrap_or(plan)
}

#[cfg(not(feature = "highs"))]
fn as_cheap_as_can_be(_: &Problem, plan: Plan, _: &Limits<'_>) -> Plan {
    plan
}

/// Solvers by rising effort, each within its part of the limits, as long as the one before came to its end: the next would
/// come to its even less.
struct InTurn<'a> {
    solvers: &'a [(&'a dyn Solver, f64)],
    /// What counts as left; those who ask may say nothing of time.
    time_left: Option<TimeLeft<'a>>,
}

impl Solver for InTurn<'_> {
    fn name(&self) -> &'static str {
        "in-turn"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        let limits = Limits { time_left: self.time_left, ..*limits };
        let mut plans = Vec::new();
        for (solver, share) in self.solvers {
            match part(&limits, *share, |limits| solver.solve(problem, limits)) {
                Ok(plan) => plans.push(plan),
                Err(SolveError::WorkLimit { best, .. }) => {
                    plans.extend(best.map(|plan| *plan));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let none = SolveError::WorkLimit { best: None, bound: unlimited_bound(problem) };
        plans.into_iter().min_by_key(|plan| plan.score(problem)).ok_or(none)
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
    let start = match &found {
        Ok(plan) if !plan.is_proved_best(problem) => Some(plan.clone()),
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tradewind_model::StartUp;
    use tradewind_units::Duration;

    use super::*;
    use crate::candidates::example;
    use crate::solver::Greedy;

    /// Notes how much it may do; comes to its end if told so.
    struct Probe<'a> {
        ends: bool,
        asked: &'a Mutex<Vec<(u64, Option<Duration>)>>,
    }

    impl Solver for Probe<'_> {
        fn name(&self) -> &'static str {
            "probe"
        }

        fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
            let time = limits.time_left.map(|left| left());
            self.asked.lock().unwrap().push((limits.work, time));
            let plan = Greedy.solve(problem, &Limits::work(1_000_000))?;
            let bound = plan.bound;
            let cut = SolveError::WorkLimit { best: Some(Box::new(plan.clone())), bound };
            if self.ends { Ok(plan) } else { Err(cut) }
        }
    }

    #[test]
    fn each_gets_its_part_and_who_comes_to_no_end_is_the_last() {
        let problem = example::problem(3, StartUp::Ignored);
        let asked = Mutex::new(Vec::new());
        let (ends, cut) =
            (Probe { ends: true, asked: &asked }, Probe { ends: false, asked: &asked });
        let solvers: [(&dyn Solver, f64); 3] = [(&ends, 0.1), (&cut, 0.5), (&ends, 1.0)];
        let left = || Duration::from_secs(8);
        for (time_left, first, second) in
            [(None, None, None), (Some(&left as TimeLeft<'_>), Some(0.8), Some(4.0))]
        {
            let in_turn = InTurn { solvers: &solvers, time_left };
            assert!(in_turn.solve(&problem, &Limits::work(1_000)).is_ok());
            let asked = std::mem::take(&mut *asked.lock().unwrap());
            let seconds = |time: f64| Duration::from_secs_f64(time);
            assert_eq!(asked, [(100, first.map(seconds)), (500, second.map(seconds))]);
        }
    }

    #[test]
    fn work_without_limit_stays_so() {
        let problem = example::problem(3, StartUp::Ignored);
        let asked = Mutex::new(Vec::new());
        let probe = Probe { ends: true, asked: &asked };
        let in_turn = InTurn { solvers: &[(&probe, 0.1)], time_left: None };
        in_turn.solve(&problem, &Limits::work(u64::MAX)).unwrap();
        assert_eq!(*asked.lock().unwrap(), [(u64::MAX, None)]);
    }
}
