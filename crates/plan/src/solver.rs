//! Solvers: they make a plan for a problem, within limits.
//!
//! All of them minimise the problem's objective, the sum of its terms
//! ([`Candidate::score`](crate::Candidate::score)), and, among equals, the cost.

use tradewind_units::{Duration, Money};

use crate::plan::Plan;
use crate::problem::{Objective, Problem};

#[cfg(feature = "highs")]
pub mod exact;
mod executor;
mod exhaustive;
mod flow_greedy;
mod greedy;
mod hours;
mod knapsack;
#[cfg_attr(not(feature = "highs"), allow(dead_code, reason = "HiGHS goes on from there"))]
mod lagrangian;
pub mod makespan;
mod obstacle;
#[cfg_attr(not(feature = "highs"), allow(dead_code, reason = "HiGHS goes on from there"))]
mod portfolio;
mod proxy_greedy;
mod registry;

#[cfg(feature = "highs")]
pub use exact::{Exact, ExactCp};
pub use executor::{Executor, OneByOne, Piece};
pub use exhaustive::Exhaustive;
pub use flow_greedy::{FlowGreedyCost, FlowGreedyFct, FlowGreedyRatio};
pub use greedy::Greedy;
pub use lagrangian::{EndGame, LagrangianSearch};
pub use obstacle::Obstacle;
pub use proxy_greedy::{OneProxy, TwoProxy, TwoProxyRollback};
pub use registry::{Algorithm, DEFAULT, algorithms, by_name, names, solve};

/// The limits of a solver's run.
pub struct Limits<'a> {
    /// The most steps; each solver takes some hundred thousand to some million a second.
    pub work: u64,
    /// The stop signal, called now and then; the solver stops when it returns true.
    pub should_stop: ShouldStop<'a>,
    /// The time left from now, for libraries that cannot be stopped and keep a clock of their own.
    /// The caller reads the clock; with it, equal problems may get unequal plans.
    pub time_left: Option<TimeLeft<'a>>,
    /// The executor of pieces of work that may run in parallel. It changes no plan, only the time
    /// until there is one.
    pub executor: &'a dyn Executor,
}

/// A stop signal: returns true once the solver is to stop. Several threads may call it at the same
/// time.
pub type ShouldStop<'a> = &'a (dyn Fn() -> bool + Sync);

/// A clock: returns the time that the solver may go on from now.
pub type TimeLeft<'a> = &'a (dyn Fn() -> Duration + Sync);

impl Limits<'static> {
    /// At most `work` steps, never stopped from outside, one piece of work after another.
    #[must_use]
    pub fn work(work: u64) -> Self {
        Self { work, should_stop: &|| false, time_left: None, executor: &OneByOne }
    }
}

impl<'a> Limits<'a> {
    /// Returns the same limits with other work.
    #[must_use]
    pub const fn with_work(&self, work: u64) -> Self {
        Self { work, ..*self }
    }
}

/// Runs `run` within a share of the remaining limits.
fn part<T>(limits: &Limits<'_>, share: f64, run: impl FnOnce(&Limits<'_>) -> T) -> T {
    let is_limited = share < 1.0 && limits.work < u64::MAX;
    let work = if is_limited { (limits.work as f64 * share) as u64 } else { limits.work };
    let Some(left) = limits.time_left else { return run(&limits.with_work(work)) };
    let end = left().mul_f64(1.0 - share);
    let time_left = || left().saturating_sub(end);
    let should_stop = || (limits.should_stop)() || left() <= end;
    run(&Limits { work, should_stop: &should_stop, time_left: Some(&time_left), ..*limits })
}

/// The reason why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SolveError {
    /// No plan is within the budget, as was proven.
    #[error(transparent)]
    Infeasible(Obstacle),
    /// A limit was reached first, a heuristic found no plan, or the problem leaves paths out.
    #[error("no plan was found, and no proof that there is none")]
    WorkLimit {
        /// The best plan found so far, if any.
        best: Option<Box<Plan>>,
        /// A lower bound on every plan's score, or on its makespan where that is minimised.
        bound: Duration,
    },
    /// The exact program is unbounded. No problem should make one: all columns of its programs are
    /// bounded.
    #[error("the exact program has no least value, which is a bug of ours")]
    Unbounded,
    /// The solver does not support the objective.
    #[error("solver `{solver}` does not serve the objective {objective:?}")]
    Objective {
        /// The solver.
        solver: &'static str,
        /// The problem's objective.
        objective: Objective,
    },
    /// The library behind a solver failed.
    #[error("solver: {0}")]
    Backend(String),
}

/// An algorithm that makes plans.
///
/// A solver by itself ignores the cost of hours: problems whose machines are paid for as long as
/// the plan takes ([`Problem::is_paid_by_the_hour`]) are solved by way of [`solve`] alone.
pub trait Solver {
    /// Returns its name, as plans record it.
    fn name(&self) -> &'static str;

    /// Returns the best plan that it finds within the limits.
    ///
    /// # Errors
    /// When there is no plan, the limits were reached, or the library behind it failed.
    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError>;
}

/// Returns the best plan of several solvers, those included that reached their limits with a plan.
///
/// # Errors
/// The last solver's error, when none has a plan.
pub fn best_of(
    solvers: &[&dyn Solver],
    problem: &Problem,
    limits: &Limits<'_>,
) -> Result<Plan, SolveError> {
    let mut best: Option<Plan> = None;
    let (mut bound, mut bound_cost) = (Duration::ZERO, Money::ZERO);
    let mut last_error = SolveError::Backend("no solver was given".to_owned());
    for solver in solvers {
        let plan = match solver.solve(problem, limits) {
            Ok(plan) => plan,
            Err(SolveError::WorkLimit { best: Some(plan), .. }) => *plan,
            Err(error) => {
                last_error = error;
                continue;
            }
        };
        bound = bound.max(plan.bound);
        bound_cost = bound_cost.max(plan.bound_cost);
        let better = |best: &Plan| plan.rank(problem) < best.rank(problem);
        if best.as_ref().is_none_or(better) {
            best = Some(plan);
        }
    }
    let proved = |plan: Plan| {
        let (bound, bound_cost) = (bound.min(plan.bounded(problem)), bound_cost.min(plan.cost));
        Plan { bound, bound_cost, ..plan }
    };
    best.map(proved).ok_or(last_error)
}

/// A count of a solver's remaining steps.
#[derive(Clone)]
struct Work<'a> {
    left: u64,
    should_stop: ShouldStop<'a>,
    stopped: bool,
}

/// The steps between two calls of `should_stop`. Chosen: well under a millisecond.
const STEPS_BETWEEN_QUESTIONS: u64 = 256;

impl<'a> Work<'a> {
    fn new(limits: &Limits<'a>) -> Self {
        Self { left: limits.work, should_stop: limits.should_stop, stopped: false }
    }

    /// Takes one step; returns false when there is none left, and from then on.
    fn step(&mut self) -> bool {
        let asked = self.left.is_multiple_of(STEPS_BETWEEN_QUESTIONS) && (self.should_stop)();
        self.stopped = self.stopped || self.left == 0 || asked;
        self.left = self.left.saturating_sub(1);
        !self.stopped
    }

    /// Returns the share of each of so many pieces of work that may run in parallel.
    fn share(&self, pieces: usize) -> Self {
        Self { left: self.left / pieces.max(1) as u64, ..*self }
    }

    /// Subtracts the steps that the pieces took of their shares; stops if one of them was stopped.
    fn settle<'p>(&mut self, share: &Self, pieces: impl Iterator<Item = &'p Work<'p>>) {
        for piece in pieces {
            self.left -= share.left - piece.left;
            self.stopped = self.stopped || piece.stopped;
        }
        // Short pieces may end before they call it.
        self.stopped = self.stopped || (self.should_stop)();
    }
}

/// Returns a lower bound for every budget: of a makespan the slowest flow's best time, else the sum
/// of each flow's best score.
fn unlimited_bound(problem: &Problem) -> Duration {
    if problem.objective() == Objective::Makespan {
        return makespan::slowest_flows_best(problem);
    }
    let fastest = |flow| {
        let left_out = problem.left_out(flow).map(|fct| problem.score(flow, fct));
        problem.candidates(flow).iter().map(|candidate| candidate.score).chain(left_out).min()
    };
    (0..problem.flows().len()).filter_map(fastest).sum()
}
