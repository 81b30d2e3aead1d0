//! Exact solvers: the problem as a mixed-integer linear program, solved by HiGHS.
//!
//! [`Exact`] uses our own formulation (`aggregated`), [`ExactCp`] CP's with corrections
//! (`cloudpilot`). Both work in rounds: HiGHS finds the best choice of paths, `Plan::from_choice`
//! packs the flows onto relays and adds up costs in whole nano-dollars; if that needs more relays
//! or money than the program counted, cuts are added (`cuts`) and HiGHS starts again. Each round's
//! bound holds for every plan, so the greatest one does. Once the score is proved optimal, a last
//! search among the plans of that score minimises the cost.
//!
//! If the problem leaves paths out, nothing is proved of them: the bound on the score stays the
//! sum of all flows' best ones, the bound on cost stays zero, and infeasibility over the candidates
//! does not prove that there is no plan.
//!
//! A makespan is minimised by a caller that uses [`Problem::within`]; here it counts as the sum of
//! scores.

use tradewind_units::{Duration, Money};

use super::obstacle::infeasible;
use super::{Greedy, Limits, SolveError, Solver, unlimited_bound};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};
use crate::verify::verify;

mod aggregated;
mod cloudpilot;
mod cuts;
mod formulation;
mod milp;
mod neighbourhood;
mod patterns;

pub use formulation::Size;
pub(in crate::solver) use neighbourhood::improve;

use cloudpilot::Refused;
use formulation::Formulation;
use milp::{Goal, RunLimits, Status, Whole};

/// Steps that a node of HiGHS's search tree counts as. Chosen: as many as other solvers take in its
/// time.
const STEPS_A_NODE: u64 = 1_000;

/// Steps that a simplex iteration of HiGHS counts as. Chosen: a node has some hundred iterations.
const STEPS_AN_ITERATION: u64 = 10;

/// The node limit of the search for the least cost among plans of the best score. Chosen: ties are
/// few, and it must not take longer than the search before it.
const TIE_NODES: u64 = 100;

/// The share of the limits for the greedy start. Chosen: a poor start costs little.
const START_SHARE: f64 = 0.2;

/// The most steps of the greedy start. Chosen: each step looks at every path of every flow.
const START_STEPS: u64 = 50_000;

/// The share of the limits for linear programs that add pattern cuts, and the most rounds of that,
/// and of the integer counts after it. Chosen: later rounds bring little.
const PATTERNS_SHARE: f64 = 0.4;
const MAX_PATTERN_ROUNDS: usize = 40;

/// A predicate on a flow and the index of one of its candidates: whether the program has that one.
pub(in crate::solver) type Retained<'a> = &'a dyn Fn(usize, usize) -> bool;

/// The exact solver by our own formulation, `exact`.
///
/// `Limits::work` bounds the nodes of HiGHS's search tree, which does not stop within the first
/// one, and `Limits::should_stop` is called between rounds only: HiGHS cannot be interrupted from
/// Rust without `unsafe`. The time of a round is bounded by `Limits::time_left`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exact<'a> {
    /// A plan to start from instead of the greedy one; ignored if it does not pass
    /// [`verify()`](crate::verify()).
    pub start: Option<&'a Plan>,
}

/// The exact solver by CP's formulation, `exact-cp`, for comparison. Limits are those of [`Exact`].
#[derive(Debug, Clone, Copy, Default)]
pub struct ExactCp<'a> {
    /// As [`Exact::start`].
    pub start: Option<&'a Plan>,
}

impl Exact<'_> {
    /// Returns the size of the program for this problem; `None` when a flow has no affordable path.
    #[must_use]
    pub fn size(problem: &Problem) -> Option<Size> {
        aggregated::aggregated(problem).map(|formulation| formulation.size())
    }
}

impl Exact<'_> {
    /// Solves the problem over the candidates that are `retained`, among which are those of
    /// `start`.
    ///
    /// Its proofs hold for all plans if no better plan uses another candidate.
    pub(super) fn over(
        problem: &Problem,
        start: Plan,
        retained: Retained<'_>,
        limits: &Limits<'_>,
    ) -> Result<Plan, SolveError> {
        let formulation = aggregated::aggregated_over(problem, retained);
        let formulation = formulation.ok_or_else(|| infeasible(problem))?;
        Search::new(problem, formulation, limits, "exact", Some(start)).run()
    }

    /// Returns the plan with the bounds proved when only the counts of relays must be integers.
    ///
    /// That takes few nodes, where a search for integer paths, too, takes many before it has
    /// decided on the relays. Fractional paths that a relay cannot carry are cut off ([`patterns`])
    /// and the counts are solved for again, until there is no cut left or the limits end.
    pub(super) fn by_counts(
        problem: &Problem,
        start: Plan,
        retained: Retained<'_>,
        limits: &Limits<'_>,
    ) -> Plan {
        let Some(formulation) = aggregated::aggregated_over(problem, retained) else {
            return start;
        };
        let goal = if problem.objective() == Objective::Cost { Goal::Cost } else { Goal::Score };
        let mut search = Search::new(problem, formulation, limits, "auto", Some(start.clone()));
        (search.bound, search.bound_cost) = (start.bound, start.bound_cost);
        search.rule_out_patterns(goal);
        for _ in 0..MAX_PATTERN_ROUNDS {
            let Some(run) = search.next_run() else { break };
            let run = RunLimits { whole: Whole::Counts, ..run };
            let Some(answer) = search.relaxed(goal, run) else { break };
            search.note_bound(goal, answer.bound);
            let values = answer.values.filter(|_| answer.status == Status::Optimal);
            if !values.is_some_and(|values| search.add_patterns(&values)) {
                break;
            }
        }
        let (score, cost) = start.score(problem);
        Plan { bound: search.bound.min(score), bound_cost: search.bound_cost.min(cost), ..start }
    }

    /// Returns the cheapest plan found within the limits that has at most the score of `plan`; none
    /// where there is no better one or no program.
    pub(super) fn cheapest(problem: &Problem, plan: &Plan, limits: &Limits<'_>) -> Option<Plan> {
        let formulation = aggregated::aggregated(problem)?;
        let start = Some(plan.clone());
        let mut search = Search::new(problem, formulation, limits, "exact", start);
        search.steps = search.steps.min(TIE_NODES * STEPS_A_NODE);
        search.minimise(Goal::CostWithin(plan.score(problem).0)).ok()?;
        search.best.filter(|best| best.score(problem) < plan.score(problem))
    }
}

impl ExactCp<'_> {
    /// Returns the size of the program for this problem; `None` when a flow has no affordable path,
    /// or there would be more than 400,000 columns.
    #[must_use]
    pub fn size(problem: &Problem) -> Option<Size> {
        cloudpilot::cloudpilot(problem).ok().map(|formulation| formulation.size())
    }
}

impl Solver for Exact<'_> {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        let formulation = aggregated::aggregated(problem).ok_or_else(|| infeasible(problem))?;
        let start = first(problem, limits, self.start);
        Search::new(problem, formulation, limits, self.name(), start).run()
    }
}

impl Solver for ExactCp<'_> {
    fn name(&self) -> &'static str {
        "exact-cp"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        let (formulation, too_large) = match cloudpilot::cloudpilot(problem) {
            Ok(formulation) => (formulation, false),
            Err(Refused::Infeasible) => return Err(infeasible(problem)),
            Err(Refused::TooLarge) => (Formulation::default(), true),
        };
        let start = first(problem, limits, self.start);
        let search = Search::new(problem, formulation, limits, self.name(), start);
        if too_large { Err(search.stopped()) } else { search.run() }
    }
}

/// Returns the plan to start from: the one given if it is valid, else the greedy one, or the best
/// that it finds within its share of the limits.
fn first(problem: &Problem, limits: &Limits<'_>, given: Option<&Plan>) -> Option<Plan> {
    if let Some(plan) = given.filter(|plan| verify(problem, plan).is_empty()) {
        return Some(plan.clone());
    }
    let time_left = limits.time_left;
    let until = time_left.map(|left| left().mul_f64(1.0 - START_SHARE));
    let late = || time_left.zip(until).is_some_and(|(left, until)| left() < until);
    let should_stop = || (limits.should_stop)() || late();
    let work = ((limits.work as f64 * START_SHARE) as u64).min(START_STEPS);
    let part = Limits { work, should_stop: &should_stop, ..*limits };
    let plan = match Greedy.solve(problem, &part) {
        Ok(plan) => Some(plan),
        Err(SolveError::WorkLimit { best, .. }) => best.map(|plan| *plan),
        Err(_) => None,
    };
    // Its direct paths may cost more than the budget where moving a flow there has a price.
    plan.filter(|plan| plan.cost <= problem.budget())
}

/// The end of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The incumbent is proved optimal.
    Proved,
    /// A limit was reached first.
    Stopped,
    /// There is no plan.
    Infeasible,
}

struct Search<'a> {
    problem: &'a Problem,
    formulation: Formulation,
    limits: &'a Limits<'a>,
    name: &'static str,
    steps: u64,
    best: Option<Plan>,
    /// A lower bound on every plan's score.
    bound: Duration,
    /// A lower bound on every plan's cost.
    bound_cost: Money,
    /// Set once a choice was cut off without proof: later bounds prove nothing.
    unproved: bool,
}

impl<'a> Search<'a> {
    fn new(
        problem: &'a Problem,
        formulation: Formulation,
        limits: &'a Limits<'a>,
        name: &'static str,
        start: Option<Plan>,
    ) -> Self {
        Self {
            problem,
            formulation,
            limits,
            name,
            steps: limits.work,
            best: start,
            bound: unlimited_bound(problem),
            bound_cost: Money::ZERO,
            unproved: false,
        }
    }

    fn run(mut self) -> Result<Plan, SolveError> {
        let by_cost = self.problem.objective() == Objective::Cost;
        let goal = if by_cost { Goal::Cost } else { Goal::Score };
        match self.minimise(goal)? {
            End::Infeasible => return Err(infeasible(self.problem)),
            End::Stopped => return Err(self.stopped()),
            End::Proved => {}
        }
        let best = self.best.clone().ok_or_else(|| lost("the plan"))?;
        let (score, cost) = best.score(self.problem);
        if !self.problem.leaves_out() {
            self.bound = score;
            self.bound_cost = if by_cost { cost } else { self.bound_cost };
        }
        if !by_cost {
            self.steps = self.steps.min(TIE_NODES * STEPS_A_NODE);
            self.minimise(Goal::CostWithin(score))?;
        }
        self.best.take().map(|plan| self.finished(plan)).ok_or_else(|| lost("the plan"))
    }

    /// Runs rounds until the goal is proved optimal or a limit is reached.
    fn minimise(&mut self, goal: Goal) -> Result<End, SolveError> {
        loop {
            let Some(limits) = self.next_run() else { return Ok(End::Stopped) };
            let start = self.best.as_ref();
            let start = start.and_then(|plan| self.formulation.values_of_any(self.problem, plan));
            let budget = self.problem.budget();
            let answer = milp::run(&self.formulation, goal, budget, start.as_deref(), limits)?;
            let steps = STEPS_A_NODE + STEPS_AN_ITERATION.saturating_mul(answer.iterations);
            self.steps = self.steps.saturating_sub(steps);
            self.note_bound(goal, answer.bound);
            match (answer.status, answer.values) {
                (Status::Infeasible, _) if self.best.is_none() && !self.unproved => {
                    return Ok(End::Infeasible);
                }
                (Status::Infeasible, _) | (_, None) => return Ok(End::Stopped),
                (status, Some(values)) => {
                    let sound = self.admit(goal, &values);
                    match (status, sound) {
                        (Status::Optimal, true) if self.unproved => return Ok(End::Stopped),
                        (Status::Optimal, true) => return Ok(End::Proved),
                        (Status::Optimal, false) => {}
                        _ => return Ok(End::Stopped),
                    }
                }
            }
        }
    }

    /// Runs with some columns relaxed to fractions, from the best plan.
    fn relaxed(&mut self, goal: Goal, run: RunLimits) -> Option<milp::Answer> {
        let start = self.best.as_ref();
        let start = start.and_then(|plan| self.formulation.values_of_any(self.problem, plan));
        let start = start.filter(|_| run.whole != Whole::Nothing);
        let budget = self.problem.budget();
        let answer = milp::run(&self.formulation, goal, budget, start.as_deref(), run).ok()?;
        let steps = STEPS_A_NODE + STEPS_AN_ITERATION.saturating_mul(answer.iterations);
        self.steps = self.steps.saturating_sub(steps);
        Some(answer)
    }

    /// Adds pattern cuts against these values; returns whether there were any.
    fn add_patterns(&mut self, values: &[f64]) -> bool {
        let rows = patterns::rows(self.problem, &self.formulation, values);
        let some = !rows.is_empty();
        self.formulation.rows.extend(rows);
        some
    }

    /// Adds pattern cuts until linear programs yield no more of them, or their share of the limits
    /// is used.
    fn rule_out_patterns(&mut self, goal: Goal) {
        let remaining = 1.0 - PATTERNS_SHARE;
        let steps = (self.steps as f64 * remaining) as u64;
        let time = self.limits.time_left.map(|left| left().mul_f64(remaining));
        for _ in 0..MAX_PATTERN_ROUNDS {
            let Some(run) = self.next_run() else { return };
            let is_late = run.time.zip(time).is_some_and(|(left, least)| left < least);
            if is_late || self.steps < steps {
                return;
            }
            let run = RunLimits { whole: Whole::Nothing, ..run };
            let Some(answer) = self.relaxed(goal, run) else { return };
            let values = answer.values.filter(|_| answer.status == Status::Optimal);
            if !values.is_some_and(|values| self.add_patterns(&values)) {
                return;
            }
        }
    }

    /// Returns the limits of the next run; `None` when no run is allowed.
    fn next_run(&self) -> Option<RunLimits> {
        let nodes = self.steps / STEPS_A_NODE;
        let time = self.limits.time_left.map(|left| left());
        let over = nodes == 0 || time.is_some_and(|left| left.is_zero());
        let limits = RunLimits { nodes, time, whole: Whole::All };
        (!over && !(self.limits.should_stop)()).then_some(limits)
    }

    /// Accepts the plan of these values as incumbent if it is affordable and better; adds cuts
    /// against them and returns false when the plan costs more than they say.
    fn admit(&mut self, goal: Goal, values: &[f64]) -> bool {
        let choice = self.formulation.choice(values);
        let plan = Plan::from_choice(self.problem, &choice, self.name, Duration::ZERO);
        let affordable = plan.filter(|plan| plan.cost <= self.problem.budget());
        let as_cheap = affordable.as_ref().is_some_and(|plan| {
            goal == Goal::Score || !cuts::costs_more(&self.formulation, values, plan.cost)
        });
        let found_any = affordable.is_some();
        if let Some(plan) = affordable {
            let better = |best: &Plan| self.key(&plan) < self.key(best);
            if self.best.as_ref().is_none_or(better) {
                self.best = Some(plan);
            }
        }
        if as_cheap {
            return true;
        }
        let cuts = cuts::packing_cuts(self.problem, &self.formulation, &choice, values);
        if cuts.rows.is_empty() {
            // A tolerance of HiGHS, or a packing that could not be proved: only this choice is cut
            // off, and if it is affordable, it has been considered as the incumbent.
            self.unproved |= cuts.gave_up || found_any;
            self.formulation.rows.push(cuts::forbid(&self.formulation, &choice));
        }
        self.formulation.rows.extend(cuts.rows);
        false
    }

    /// Returns the lexicographic objective.
    fn key(&self, plan: &Plan) -> (Duration, Money) {
        plan.score(self.problem)
    }

    fn note_bound(&mut self, goal: Goal, above: f64) {
        // The program covers the candidates only.
        if self.unproved || self.problem.leaves_out() {
            return;
        }
        match goal {
            Goal::Score => {
                let above = Duration::from_nanos(above as u64);
                self.bound = self.bound.max(self.formulation.least_score.saturating_add(above));
            }
            Goal::Cost => {
                let cost = Money::from_usd(above / 1e9).unwrap_or_default();
                self.bound_cost = self.bound_cost.max(cost);
            }
            Goal::CostWithin(_) => {}
        }
    }

    fn finished(&self, plan: Plan) -> Plan {
        let (score, cost) = plan.score(self.problem);
        let solver = self.name.to_owned();
        let bound_cost = self.bound_cost.min(cost);
        Plan { solver, bound: self.bound.min(score), bound_cost, ..plan }
    }

    fn stopped(mut self) -> SolveError {
        let best = self.best.take().map(|plan| self.finished(plan));
        let bound = best.as_ref().map_or(self.bound, |plan| plan.bound);
        SolveError::WorkLimit { best: best.map(Box::new), bound }
    }
}

fn lost(what: &str) -> SolveError {
    SolveError::Backend(format!("HiGHS: {what} was proved best and is not there"))
}

#[cfg(test)]
mod tests;
