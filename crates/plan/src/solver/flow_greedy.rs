//! CP's flow-greedy heuristics F-FCT and F-Cost [CP VI-A, Algorithms 1 and 2].
//!
//! Every flow starts direct. In each step the flow whose best path has the largest gain gets that
//! path, if the budget and the relays allow; if not, its next best path is tried in its turn. A
//! flow that has a path keeps it. F-FCT's gain is the score that the path saves; F-Cost's is that
//! for each dollar of egress and of its share of the set-up.
//!
//! **Repairs of the text.** Algorithm 1 is garbled in print; this is how it is read here:
//!
//! - A path is on a list if it is faster than the direct one: the direct path costs nothing and is
//!   always allowed, so paths listed behind it are never reached.
//! - The printed greedy step drops the head of a list; footnote 2 drops all heads that cannot be
//!   afforded after each success. Both make the same plan, and so does this code, which drops a
//!   head when its turn comes: a path that is infeasible once stays so. Free capacity of relays
//!   only shrinks within one run. A path becomes cheaper only when a relay that it needs is set up
//!   for another flow, and that takes at least as much from the budget.
//! - "Find a relay with room" (lines 25 and 26) does not say which: here the first that was set up.
//! - Ties are open in the paper: here the flow that comes first in the problem; of its paths the
//!   cheaper, then the one that comes first among its candidates.
//!
//! **Beyond the paper.** Paths have up to four relays and relays are of several types: lists and
//! steps stay as they are. A weight multiplies a flow's gain. Running relays cost no set-up, in
//! F-Cost's gain too. Flows without a direct path come before all others, the fastest first. Where
//! leaving the running path costs, a flow starts with that cost and gets it back when it moves on;
//! only then the order in which heads are dropped matters.
//!
//! Costs O(m P log P) for the lists of m flows with P paths each, O(m + n) for each step with n
//! relays.

use tradewind_units::Duration;

use super::{Limits, SolveError, Solver, Work, unlimited_bound};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};

mod events;
mod list;
mod rows;
mod run;

pub(super) use events::{Events, Lack};
pub(super) use list::{Entry, List, Lists, Needs, Rank};
pub(super) use run::{Race, Run, Terms, Value};

/// F-FCT, flow-greedy by completion time: best where the budget is nearly unlimited [CP VI-A].
#[derive(Debug, Clone, Copy, Default)]
pub struct FlowGreedyFct;

/// F-Cost, flow-greedy by completion time for each dollar [CP VI-A].
#[derive(Debug, Clone, Copy, Default)]
pub struct FlowGreedyCost;

/// F-Cost with the ratio of times in the place of their difference, as in the authors' published
/// program. Not one of the paper's five; it comes nearer to the paper's figures than F-Cost as
/// printed.
#[derive(Debug, Clone, Copy, Default)]
pub struct FlowGreedyRatio;

/// The gain by which paths are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gain {
    /// The score it saves [CP VI, Algorithm 1, line 13].
    Fct,
    /// The same for each dollar [CP VI, Algorithm 2].
    FctPerCost,
    /// The direct score over the path's, for each dollar.
    RatioPerCost,
}

impl Solver for FlowGreedyFct {
    fn name(&self) -> &'static str {
        "f-fct"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        solve(problem, limits, Gain::Fct, self.name())
    }
}

impl Solver for FlowGreedyCost {
    fn name(&self) -> &'static str {
        "f-cost"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        solve(problem, limits, Gain::FctPerCost, self.name())
    }
}

impl Solver for FlowGreedyRatio {
    fn name(&self) -> &'static str {
        "f-ratio"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        solve(problem, limits, Gain::RatioPerCost, self.name())
    }
}

fn solve(
    problem: &Problem,
    limits: &Limits<'_>,
    gain: Gain,
    name: &'static str,
) -> Result<Plan, SolveError> {
    let mut work = Work::new(limits);
    let bound = unlimited_bound(problem);
    let lists = Lists::new(problem, gain);
    let mut run = Run::new(problem, &lists);
    run.supply.fill(usize::MAX);
    run.start(0);
    run.go(None, None, &mut work);
    finish(problem, &lists, run.selected(), name, bound, &work)
}

/// Returns the plan of a run; an error when it leaves a flow out, exceeds the budget, or was
/// stopped.
pub(super) fn finish(
    problem: &Problem,
    lists: &Lists,
    selected: &[Rank],
    name: &'static str,
    bound: Duration,
    work: &Work<'_>,
) -> Result<Plan, SolveError> {
    let plan = plan(problem, lists, selected, name, bound);
    match plan {
        Some(plan) if !work.stopped => Ok(plan),
        plan => Err(SolveError::WorkLimit { best: plan.map(Box::new), bound }),
    }
}

fn plan(
    problem: &Problem,
    lists: &Lists,
    selected: &[Rank],
    name: &'static str,
    bound: Duration,
) -> Option<Plan> {
    let mut paths = vec![None; problem.flows().len()];
    let mut free: Vec<Vec<u64>> = vec![Vec::new(); problem.offers().len()];
    for rank in selected {
        let entry = lists.entry(*rank);
        let place = |offer: &u32| {
            let (offer, free) = (*offer as usize, &mut free[*offer as usize]);
            let first = free.iter().position(|left| *left >= entry.rate);
            let number = first.unwrap_or_else(|| {
                free.push(problem.offers()[offer].capacity_bps());
                free.len() - 1
            });
            free[number] -= entry.rate;
            (offer, number)
        };
        let numbers: Vec<(usize, usize)> = entry.relays().iter().map(place).collect();
        paths[entry.flow as usize] = Some((entry.candidate as usize, numbers));
    }
    let candidate = |(flow, path): (usize, &Option<(usize, _)>)| match path {
        Some((candidate, _)) => Some(*candidate),
        None => lists.flows[flow].direct.is_some().then_some(0),
    };
    let choice = paths.iter().enumerate().map(candidate).collect::<Option<Vec<usize>>>()?;
    let number = |flow: usize, offer: usize| {
        let (_, numbers) = paths[flow].as_ref().expect("a flow that passes relays took them");
        let number = numbers.iter().find(|(passed, _)| *passed == offer);
        number.expect("a user passes the relay").1
    };
    let place = |offer: usize, users: &[usize], _: &[u64]| {
        Some(users.iter().map(|flow| number(*flow, offer)).collect())
    };
    let plan = Plan::from_packing(problem, &choice, place, name, bound)?;
    (plan.cost <= problem.budget()).then_some(plan)
}

/// Returns whether plans are compared by cost, because all have one score.
pub(super) fn cheapest_wins(problem: &Problem) -> bool {
    problem.objective() == Objective::Cost
}
