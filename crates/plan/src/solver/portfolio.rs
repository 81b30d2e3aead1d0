//! The solver behind `auto`: [`LagrangianSearch`] from the plans of the paper's heuristics, then
//! fix-and-optimise and the exact solver from there. It ends as soon as a plan is proved optimal.

#[cfg(feature = "highs")]
use super::exact::{self, Exact, Retained};
#[cfg(feature = "highs")]
use super::lagrangian::{Effort, Survey};
use super::{
    FlowGreedyCost, FlowGreedyFct, LagrangianSearch, Limits, OneProxy, SolveError, Solver,
    TwoProxy, TwoProxyRollback, part, unlimited_bound,
};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};

/// The heuristics that add relay by relay, and the share of the limits of each. Chosen: each takes
/// ten times or more of the time of the one before; where 1-P does not finish, nearly all is left
/// for the rest of `auto`.
const BY_RELAY: &[(&dyn Solver, f64)] =
    &[(&OneProxy, 0.05), (&TwoProxy, 0.15), (&TwoProxyRollback, 0.4)];

/// A stage after [`LagrangianSearch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Fix and optimise.
    Parts,
    /// A bound by integer counts of relays.
    Counts,
    /// The exact solver.
    Whole,
}

/// The shares of the limits for [`LagrangianSearch`] with its starts, and for each stage after it.
/// Later stages get the time that earlier ones leave.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Shares {
    lagrangian: f64,
    stages: [(Stage, f64); 4],
}

impl Shares {
    /// Returns the shares by the number of paths of all flows. Chosen by trial: the exact program
    /// has a column for each of them. Up to some thousand it can be solved to optimality, so that
    /// most of the time goes there. With more the best plan comes from the search and from parts,
    /// and beyond [`MAX_PATHS_FOR_EXACT`] the whole program does not finish even its first
    /// relaxation.
    fn of(paths: usize) -> Self {
        use Stage::{Counts, Parts, Whole};
        match paths {
            0..2_000 => {
                let stages = [(Whole, 0.1), (Counts, 0.1), (Parts, 0.1), (Whole, 0.55)];
                Self { lagrangian: 0.1, stages }
            }
            2_000..MAX_PATHS_FOR_EXACT => {
                let stages = [(Parts, 0.13), (Counts, 0.2), (Parts, 0.25), (Whole, 0.17)];
                Self { lagrangian: 0.2, stages }
            }
            _ => {
                let stages = [(Parts, 0.35), (Counts, 0.0), (Whole, 0.0), (Whole, 0.0)];
                Self { lagrangian: 0.6, stages }
            }
        }
    }
}

/// The share for making the proved plan cheaper. Chosen: ties are few.
const TIE_SHARE: f64 = 0.05;

const MAX_PATHS_FOR_EXACT: usize = 20_000;

/// The solver `auto`. Starts from the paper's heuristics, of those that add relay by relay as far
/// as their share of the limits goes; a plan that is not proved optimal goes on to the next stage.
/// Chosen: with these starts its worst plan of the sixty in `auto_holds` (10 s of processor time)
/// is 1.29 % above the best known, and one is more than 1 % above; without them 2.60 %, and four.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Portfolio;

impl Solver for Portfolio {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        if problem.objective() == Objective::Makespan {
            return super::makespan::solve(self, problem, limits);
        }
        let by_relay = InTurn { solvers: BY_RELAY };
        let starters: [&dyn Solver; 3] = [&FlowGreedyFct, &FlowGreedyCost, &by_relay];
        let lagrangian = LagrangianSearch { starters: &starters, ..LagrangianSearch::default() };
        let found = finish(problem, &lagrangian, limits);
        let rest = left_after(limits, 1.0 - TIE_SHARE);
        found.map(|plan| as_cheap_as_can_be(problem, plan, &rest))
    }
}

/// Returns the plan, or a cheaper one of the same score: the bound of one holds for the other.
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

/// Solvers by increasing effort, each within its share of the limits, until one of them reaches its
/// limits: the next would not finish either.
struct InTurn<'a> {
    solvers: &'a [(&'a dyn Solver, f64)],
}

impl Solver for InTurn<'_> {
    fn name(&self) -> &'static str {
        "in-turn"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        let mut plans = Vec::new();
        for (solver, share) in self.solvers {
            match part(limits, *share, |limits| solver.solve(problem, limits)) {
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

/// Runs [`LagrangianSearch`] within its share, then HiGHS on parts of the problem and on the whole.
#[cfg(feature = "highs")]
fn finish(
    problem: &Problem,
    lagrangian: &LagrangianSearch<'_>,
    limits: &Limits<'_>,
) -> Result<Plan, SolveError> {
    let paths = paths(problem);
    let is_for_exact = paths < MAX_PATHS_FOR_EXACT && !problem.leaves_out();
    let effort = if is_for_exact { Effort::Brief } else { Effort::Full };
    let shares = Shares::of(paths);
    let survey =
        part(limits, shares.lagrangian, |limits| lagrangian.survey(problem, limits, effort));
    let Survey { found, margins } = survey;
    let mut best = match found {
        Ok(plan) => plan,
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => *plan,
        Err(SolveError::WorkLimit { best: None, .. }) if is_for_exact => {
            let found = Exact::default().solve(problem, &left_after(limits, shares.lagrangian));
            return found.map(|plan| Plan { solver: "auto".to_owned(), ..plan });
        }
        Err(error) => return Err(error),
    };
    let mut spent = shares.lagrangian;
    for (stage, share) in shares.stages {
        if best.is_proved_best(problem) {
            break;
        }
        let retained = margins.as_ref().map(|margins| margins.retained(problem, &best));
        let retained = |flow: usize, place: usize| {
            retained.as_ref().is_none_or(|retained| retained[flow][place])
        };
        let rest = left_after(limits, spent);
        best = part(&rest, share / (1.0 - spent), |limits| match stage {
            Stage::Parts => exact::improve(problem, best, &retained, limits),
            Stage::Counts if is_for_exact => Exact::by_counts(problem, best, &retained, limits),
            Stage::Whole if is_for_exact => better_of(problem, best, &retained, limits),
            Stage::Counts | Stage::Whole => best,
        });
        spent += share;
    }
    Ok(best)
}

/// Returns the limits after this share of the work; `time_left` keeps its own account.
fn left_after<'a>(limits: &Limits<'a>, share: f64) -> Limits<'a> {
    let is_limited = limits.work < u64::MAX;
    let left = (limits.work as f64 * (1.0 - share)).max(0.0) as u64;
    limits.with_work(if is_limited { left } else { u64::MAX })
}

/// Returns the exact solver's plan and bound, where they are better than those given.
#[cfg(feature = "highs")]
fn better_of(problem: &Problem, start: Plan, retained: Retained<'_>, limits: &Limits<'_>) -> Plan {
    let exact = match Exact::over(problem, start.clone(), retained, limits) {
        Ok(plan) => plan,
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => *plan,
        Err(_) => return start,
    };
    let (least, least_cost) =
        (start.bound.max(exact.bound), start.bound_cost.max(exact.bound_cost));
    let best = if exact.score(problem) < start.score(problem) { exact } else { start };
    let (score, cost) = best.score(problem);
    let (bound, bound_cost) = (least.min(score), least_cost.min(cost));
    Plan { solver: "auto".to_owned(), bound, bound_cost, ..best }
}

/// Runs [`LagrangianSearch`] alone, where there is no HiGHS.
#[cfg(not(feature = "highs"))]
fn finish(
    problem: &Problem,
    lagrangian: &LagrangianSearch<'_>,
    limits: &Limits<'_>,
) -> Result<Plan, SolveError> {
    lagrangian.solve(problem, limits)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tradewind_model::StartUp;
    use tradewind_units::Duration;

    use super::*;
    use crate::candidates::example;
    use crate::solver::{Greedy, TimeLeft};

    /// A solver that records its limits, and finishes if `ends` is set.
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
    fn deadline_is_shared_and_endless_solver_is_last() {
        let problem = example::problem(3, StartUp::Ignored);
        let asked = Mutex::new(Vec::new());
        let (ends, cut) =
            (Probe { ends: true, asked: &asked }, Probe { ends: false, asked: &asked });
        let solvers: [(&dyn Solver, f64); 3] = [(&ends, 0.1), (&cut, 0.5), (&ends, 1.0)];
        let left = || Duration::from_secs(8);
        for (time_left, first, second) in
            [(None, None, None), (Some(&left as TimeLeft<'_>), Some(0.8), Some(4.0))]
        {
            let in_turn = InTurn { solvers: &solvers };
            let limits = Limits { time_left, ..Limits::work(1_000) };
            assert!(in_turn.solve(&problem, &limits).is_ok());
            let asked = std::mem::take(&mut *asked.lock().unwrap());
            let seconds = |time: f64| Duration::from_secs_f64(time);
            assert_eq!(asked, [(100, first.map(seconds)), (500, second.map(seconds))]);
        }
    }

    #[test]
    fn starters_share_time_of_caller() {
        let problem = example::problem(3, StartUp::Ignored);
        let asked = Mutex::new(Vec::new());
        let probe = Probe { ends: true, asked: &asked };
        let in_turn = InTurn { solvers: &[(&probe, 0.5)] };
        let starters: [&dyn Solver; 1] = [&in_turn];
        let lagrangian = LagrangianSearch { starters: &starters, end_games: &[] };
        let left = || Duration::from_secs(10);
        let limits = Limits { time_left: Some(&left), ..Limits::work(100_000) };
        part(&limits, 0.1, |limits| lagrangian.survey(&problem, limits, Effort::Brief).found)
            .unwrap();
        let times: Vec<_> = asked.lock().unwrap().iter().map(|(_, time)| *time).collect();
        assert_eq!(times, [Some(Duration::from_millis(500))]);
    }

    #[cfg(feature = "highs")]
    #[test]
    fn proof_ends_search() {
        use std::sync::atomic::{AtomicUsize, Ordering};

        let problem = example::problem(3, StartUp::Ignored);
        let asked = AtomicUsize::new(0);
        let should_stop = || {
            asked.fetch_add(1, Ordering::Relaxed);
            false
        };
        let limits = Limits { should_stop: &should_stop, ..Limits::work(u64::MAX) };
        let lagrangian = LagrangianSearch::default();
        let survey = lagrangian.survey(&problem, &limits, Effort::Brief).found.unwrap();
        assert!(survey.is_proved_best(&problem));
        let by_survey = asked.swap(0, Ordering::Relaxed);
        finish(&problem, &lagrangian, &limits).unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), by_survey, "nobody goes on");
    }

    #[test]
    fn work_without_limit_stays_so() {
        let problem = example::problem(3, StartUp::Ignored);
        let asked = Mutex::new(Vec::new());
        let probe = Probe { ends: true, asked: &asked };
        let in_turn = InTurn { solvers: &[(&probe, 0.1)] };
        in_turn.solve(&problem, &Limits::work(u64::MAX)).unwrap();
        assert_eq!(*asked.lock().unwrap(), [(u64::MAX, None)]);
    }
}
