//! The reasons why no plan is within the budget.

use tradewind_units::{FlowId, Money};

use super::{SolveError, unlimited_bound};
use crate::candidates::Candidate;
use crate::problem::Problem;

/// The reason why the budget does not afford any plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// A flow that has only paths over relays, which are all too small for it.
    #[error(
        "flow `{flow}`: it has no direct path{}, and no relay on offer is large enough for it",
        in_time(*has_deadline)
    )]
    TooLarge {
        /// The flow.
        flow: FlowId,
        /// Set if it has a deadline, which its direct path may miss.
        has_deadline: bool,
    },
    /// A flow that the budget does not afford, even if nothing else is carried.
    #[error(
        "flow `{flow}`: no path{} costs less than ${}, relays and moves included; the budget is \
         ${}",
        in_time(*has_deadline),
        least.as_usd(),
        budget.as_usd()
    )]
    TooDear {
        /// The flow, or one of several.
        flow: FlowId,
        /// Set if it has a deadline, which cheaper paths may miss.
        has_deadline: bool,
        /// The least cost of its paths.
        least: Money,
        /// The problem's budget.
        budget: Money,
    },
    /// A lower bound on the cost of all plans is above the budget.
    #[error("flows: no plan costs less than ${}; the budget is \
        ${}", least.as_usd(), budget.as_usd())]
    Bound {
        /// The lower bound.
        least: Money,
        /// The problem's budget.
        budget: Money,
    },
    /// The budget affords each flow, but not all of them with the allowed number of relays.
    #[error(
        "flows: the budget of ${} and the most relays that there may be allow each of them, but \
         not all together",
        budget.as_usd()
    )]
    Relays {
        /// The problem's budget.
        budget: Money,
    },
    /// The budget affords each flow, but not all of them.
    #[error("flows: the budget of ${} affords each of them, but not all together", budget.as_usd())]
    Together {
        /// The problem's budget.
        budget: Money,
    },
}

fn in_time(has_deadline: bool) -> &'static str {
    if has_deadline { " that meets its deadline" } else { "" }
}

/// Returns the error that the problem has no plan, given that its candidates allow none. Where
/// paths are left out, that proves nothing: then the error says that none was found.
pub(super) fn infeasible(problem: &Problem) -> SolveError {
    if problem.leaves_out() {
        return SolveError::WorkLimit { best: None, bound: unlimited_bound(problem) };
    }
    let budget = problem.budget();
    let together = || {
        if problem.inputs().most.is_empty() {
            Obstacle::Together { budget }
        } else {
            Obstacle::Relays { budget }
        }
    };
    SolveError::Infeasible(obstacle(problem).unwrap_or_else(together))
}

/// Returns the obstacle that simple bounds over the problem's candidates show, if any.
pub(super) fn obstacle(problem: &Problem) -> Option<Obstacle> {
    let flows = 0..problem.flows().len();
    let least = |flow: usize, cost: &dyn Fn(&Candidate) -> Money| {
        let all = problem.candidates(flow).iter();
        all.filter(|candidate| fits(problem, candidate)).map(cost).min()
    };
    let alone = |candidate: &Candidate| {
        let relays = candidate.relays.iter();
        candidate.cost + relays.map(|relay| problem.offers()[*relay].set_up(1)).sum::<Money>()
    };
    let budget = problem.budget();
    for at in flows.clone() {
        let flow = problem.flows()[at].id.clone();
        let has_deadline = problem.flows()[at].deadline.is_some();
        match least(at, &alone) {
            None => return Some(Obstacle::TooLarge { flow, has_deadline }),
            Some(least) if least > budget => {
                return Some(Obstacle::TooDear { flow, has_deadline, least, budget });
            }
            Some(_) => {}
        }
    }
    let carrying: Money = flows.filter_map(|flow| least(flow, &|c| c.cost)).sum();
    (carrying > budget).then_some(Obstacle::Together { budget })
}

/// Returns whether a relay of each offer on the path has the capacity for it.
pub(super) fn fits(problem: &Problem, candidate: &Candidate) -> bool {
    let mut offers = candidate.relays.iter().map(|relay| &problem.offers()[*relay]);
    offers.all(|offer| candidate.rate <= offer.relay_type.capacity)
}
