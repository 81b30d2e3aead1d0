//! The cheapest plan by exact search: of all plans, or of those whose score is no more than a
//! limit.
//!
//! Depth-first branch and bound over the flows, each trying its cheapest paths first, with a bound
//! from each flow's cheapest path and from the fewest relays for the loads so far.

use tradewind_units::{Duration, Money};

use super::super::greedy::by_gain;
use super::super::obstacle::infeasible;
use super::super::{Greedy, Limits, SolveError, Solver as _, Work};
use super::{Choice, choices_of};
use crate::candidates::capacity_never_binds;
use crate::packing::relays_at_least;
use crate::plan::Plan;
use crate::problem::Problem;

/// Finds the cheapest plan within the budget.
///
/// # Errors
/// When there is none, or the limits are reached.
pub(super) fn solve(problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
    let first = match Greedy.solve(problem, limits) {
        Ok(plan) => Some(plan),
        Err(SolveError::WorkLimit { best, .. }) => best.map(|plan| *plan),
        Err(_) => None,
    };
    let first = first.filter(|plan| plan.cost <= problem.budget());
    let mut work = Work::new(limits);
    let best = within(problem, Duration::MAX, first, &mut work);
    let named = |plan: Plan, bound_cost: Money| {
        let bound = Duration::ZERO;
        Plan { solver: "exhaustive".to_owned(), bound, bound_cost, ..plan }
    };
    match best {
        best if work.stopped => {
            let best = best.map(|plan| Box::new(named(plan, Money::ZERO)));
            Err(SolveError::WorkLimit { best, bound: Duration::ZERO })
        }
        Some(plan) => {
            let least = if problem.leaves_out() { Money::ZERO } else { plan.cost };
            Ok(named(plan, least))
        }
        None => Err(infeasible(problem)),
    }
}

/// Returns the cheapest plan whose score is no more than `most`, starting from `best`; the
/// incumbent when `work` ends.
pub(super) fn within(
    problem: &Problem,
    most: Duration,
    best: Option<Plan>,
    work: &mut Work<'_>,
) -> Option<Plan> {
    let prune = capacity_never_binds(problem);
    let order = by_gain(problem);
    let by_cost = |flow: &usize| {
        let mut choices = choices_of(problem, *flow, prune);
        choices.sort_by_key(|choice| (choice.candidate.cost, choice.candidate.score));
        choices
    };
    let choices: Vec<Vec<Choice<'_>>> = order.iter().map(by_cost).collect();
    let mut least = vec![(Money::ZERO, Duration::ZERO); order.len() + 1];
    for (at, choices) in choices.iter().enumerate().rev() {
        let cost = choices.iter().map(|choice| choice.candidate.cost).min()?;
        let score = choices.iter().map(|choice| choice.candidate.score).min()?;
        least[at] = (least[at + 1].0 + cost, least[at + 1].1.saturating_add(score));
    }
    let offers = problem.offers().len();
    let (loads, relays) = (vec![0; offers], vec![0; offers]);
    let node = Node { loads, relays, cost: Money::ZERO, score: Duration::ZERO };
    let mut search = Search { problem, order, choices, least, most, best, selected: Vec::new() };
    search.go(&node, work);
    search.best
}

struct Search<'a> {
    problem: &'a Problem,
    /// Flows in the order of branching, and for each its choices by increasing cost.
    order: Vec<usize>,
    choices: Vec<Vec<Choice<'a>>>,
    /// Lower bounds on cost and score of the flows from each index on.
    least: Vec<(Money, Duration)>,
    most: Duration,
    best: Option<Plan>,
    selected: Vec<usize>,
}

/// A node: the flows decided so far.
#[derive(Clone)]
struct Node {
    /// Rate through each offer's relays.
    loads: Vec<u64>,
    /// A lower bound on the relays of each offer.
    relays: Vec<usize>,
    cost: Money,
    score: Duration,
}

impl Search<'_> {
    fn go(&mut self, node: &Node, work: &mut Work<'_>) {
        let depth = self.selected.len();
        if depth == self.choices.len() {
            self.offer();
            return;
        }
        for at in 0..self.choices[depth].len() {
            if !work.step() {
                return;
            }
            let choice = &self.choices[depth][at];
            let next = self.with(node, choice);
            let (cost, score) = self.least[depth + 1];
            let set_up = self.problem.offers().iter().zip(&next.relays);
            let set_up: Money = set_up.map(|(offer, count)| offer.set_up(*count)).sum();
            let cost = next.cost + cost + set_up;
            let is_dearer = self.best.as_ref().is_some_and(|best| cost >= best.cost);
            let is_slow = next.score.saturating_add(score) > self.most;
            if is_dearer || is_slow || cost > self.problem.budget() {
                continue;
            }
            self.selected.push(choice.place);
            self.go(&next, work);
            self.selected.pop();
        }
    }

    /// Returns the node with one more flow on its path.
    fn with(&self, node: &Node, choice: &Choice<'_>) -> Node {
        let mut next = node.clone();
        for relay in &choice.candidate.relays {
            next.loads[*relay] += choice.candidate.rate.as_bps();
            let capacity = self.problem.offers()[*relay].capacity_bps();
            next.relays[*relay] = relays_at_least(next.loads[*relay], capacity).max(1);
        }
        next.cost = next.cost + choice.candidate.cost;
        next.score = next.score.saturating_add(choice.candidate.score);
        next
    }

    /// Accepts the choice as incumbent if it is cheaper with its true number of relays.
    fn offer(&mut self) {
        let mut choice = vec![0; self.selected.len()];
        for (flow, place) in self.order.iter().zip(&self.selected) {
            choice[*flow] = *place;
        }
        let plan = Plan::from_choice(self.problem, &choice, "exhaustive", Duration::ZERO);
        let Some(plan) = plan.filter(|plan| plan.cost <= self.problem.budget()) else { return };
        if self.best.as_ref().is_none_or(|best| plan.cost < best.cost) {
            self.best = Some(plan);
        }
    }
}
