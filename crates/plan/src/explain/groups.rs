//! Groups of flows that would move together: onto an additional relay that pays off for none of
//! them alone, or onto one in place of another.

use std::cmp::Reverse;

use serde::Serialize;
use tradewind_units::{Duration, FlowId, Money};

use super::{Stop, Verdict, stops};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};

/// Most paths evaluated in the search for groups, with a relay added or in place of another.
/// Chosen: about a second.
pub(super) const MAX_LOOKED_AT: usize = 20_000_000;

/// The groups that were found, and the reason why some were not searched.
pub(super) struct Groups {
    pub(super) found: Vec<Group>,
    /// The reason why some were not searched.
    pub(super) left_out: Option<&'static str>,
}

impl Groups {
    const fn none(why: &'static str) -> Self {
        Self { found: Vec::new(), left_out: Some(why) }
    }
}

/// Flows that move together, with all others as planned.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// The relay that would be set up for them.
    pub relay: Stop,
    /// The relay that would be given up for it: its flows move, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<Stop>,
    /// The flows: the one being explained first, then those that gain most.
    pub flows: Vec<FlowId>,
    /// Decrease of the weighted sum of completion times; negative: increase.
    pub gain_s: f64,
    /// The cost of the whole plan with it.
    #[serde(rename = "plan_cost_usd")]
    pub plan_cost: Money,
    /// Cost above that of the plan; negative: below.
    pub extra_cost_usd: f64,
    /// The reason why the plan does not have it.
    pub verdict: Verdict,
}

/// Returns the groups of two or more flows that the flow at this index could belong to: for each
/// relay that may be set up the best group, with the relay added or in place of one of the plan's
/// offers. Affordable groups come first, and better ones before others.
///
/// Empty if more than `most` paths would be evaluated. Groups in place of an offer are left out
/// first.
pub(super) fn groups(problem: &Problem, plan: &Plan, flow: usize, most: usize) -> Groups {
    let Some(choice) = plan.choice_in(problem) else {
        return Groups::none("the plan has a path that the problem does not look at");
    };
    let all: usize = (0..choice.len()).map(|flow| problem.candidates(flow).len()).sum();
    let beside = all.saturating_mul(problem.offers().len());
    if beside > most {
        return Groups::none("the problem is too large to look for groups");
    }
    let in_use = in_use(problem, &choice);
    let offers = problem.offers().len();
    let some: Vec<usize> = (0..offers).filter(|offer| in_use[*offer]).collect();
    let few = beside.saturating_mul(some.len()) <= most;
    let given_up = || [None].into_iter().chain(some.iter().copied().map(Some).filter(|_| few));
    let moves = Moves { problem, plan, in_use: &in_use, choice };
    let best = |offer: usize| {
        let all = given_up().filter_map(|given_up| moves.group(offer, given_up, flow));
        all.min_by_key(|(order, _)| *order)
    };
    let mut found: Vec<_> = (0..offers).filter_map(best).collect();
    found.sort_by_key(|(order, _)| *order);
    let why = "the problem is too large to look for groups in place of a relay";
    Groups {
        found: found.into_iter().map(|(_, group)| group).collect(),
        left_out: (!few).then_some(why),
    }
}

/// Sort key: groups beyond the budget last; otherwise as plans are ranked.
type Order = (bool, (Duration, Money, Duration));

/// Returns whether each offer has a relay in the plan of these choices.
fn in_use(problem: &Problem, choice: &[usize]) -> Vec<bool> {
    let mut in_use = vec![false; problem.offers().len()];
    for (flow, place) in choice.iter().enumerate() {
        problem.candidates(flow)[*place].relays.iter().for_each(|relay| in_use[*relay] = true);
    }
    in_use
}

/// A flow's change to another path.
struct Move {
    flow: usize,
    place: usize,
    /// Decrease of the objective: nanoseconds, or nano-dollars.
    gain: i128,
    rate: u64,
}

struct Moves<'a> {
    problem: &'a Problem,
    plan: &'a Plan,
    choice: Vec<usize>,
    in_use: &'a [bool],
}

impl Moves<'_> {
    /// Returns the group for an additional relay of `offer` and none of `given_up`, if `flow` and
    /// another flow are among those that move.
    fn group(&self, offer: usize, given_up: Option<usize>, flow: usize) -> Option<(Order, Group)> {
        if given_up == Some(offer) {
            return None;
        }
        let free_bps = self.problem.offers()[offer].capacity_bps();
        let moves = self.moves(offer, given_up, flow, free_bps)?;
        if moves.len() < 2 || moves[0].flow != flow {
            return None;
        }
        let mut choice = self.choice.clone();
        moves.iter().for_each(|one| choice[one.flow] = one.place);
        let moved = Plan::from_choice(self.problem, &choice, &self.plan.solver, Duration::ZERO)?;
        let seconds = |plan: &Plan| plan.score(self.problem).0.as_secs_f64();
        let is_dear = moved.cost > self.problem.budget();
        let is_better = moved.rank(self.problem) < self.plan.rank(self.problem);
        let stop = |offer: usize| stops(self.problem, &[offer]).pop();
        let group = Group {
            relay: stop(offer)?,
            instead_of: given_up.or_else(|| self.emptied_by(&choice)).and_then(stop),
            flows: moves.iter().map(|one| self.problem.flows()[one.flow].id.clone()).collect(),
            gain_s: seconds(self.plan) - seconds(&moved),
            plan_cost: moved.cost,
            extra_cost_usd: moved.cost.as_usd() - self.plan.cost.as_usd(),
            verdict: match (is_dear, is_better) {
                (true, _) => Verdict::Budget,
                (false, true) => Verdict::Missed,
                (false, false) => Verdict::NoBetter,
            },
        };
        Some(((is_dear, moved.rank(self.problem)), group))
    }

    /// Returns the plan's first offer that these choices no longer use.
    fn emptied_by(&self, choice: &[usize]) -> Option<usize> {
        let left = in_use(self.problem, choice);
        (0..left.len()).find(|offer| self.in_use[*offer] && !left[*offer])
    }

    /// Returns the moves; `None` if a flow that must move has no other path.
    fn moves(
        &self,
        offer: usize,
        given_up: Option<usize>,
        flow: usize,
        mut free_bps: u64,
    ) -> Option<Vec<Move>> {
        let mut wanted = Vec::new();
        let mut must = Vec::new();
        for other in 0..self.choice.len() {
            let own = &self.problem.candidates(other)[self.choice[other]];
            let loses_its_path = given_up.is_some_and(|offer| own.relays.contains(&offer));
            let best = self.best(other, given_up, Some(offer));
            wanted.extend(best.filter(|one| one.gain > 0 || loses_its_path));
            if loses_its_path {
                must.push(other);
            }
        }
        wanted.sort_by_key(|one: &Move| (one.flow != flow, Reverse(one.gain), one.flow));
        wanted.retain(|one| {
            let fits = one.rate <= free_bps;
            free_bps -= if fits { one.rate } else { 0 };
            fits
        });
        let mut moves = wanted;
        for other in must {
            // Another path may be better than the one over the new relay.
            let elsewhere = self.best(other, given_up, None);
            match (moves.iter().position(|one| one.flow == other), elsewhere) {
                (Some(at), Some(one)) if one.gain > moves[at].gain => moves[at] = one,
                (None, one) => moves.push(one?),
                (Some(_), _) => {}
            }
        }
        moves.sort_by_key(|one| (one.flow != flow, Reverse(one.gain), one.flow));
        Some(moves)
    }

    /// Returns the flow's best path over relays in use except `given_up`, and over one of `offer`
    /// if that is given.
    fn best(&self, flow: usize, given_up: Option<usize>, offer: Option<usize>) -> Option<Move> {
        let all = self.problem.candidates(flow);
        let by_cost = self.problem.objective() == Objective::Cost;
        let value = |place: usize| {
            if by_cost {
                i128::from(all[place].cost.as_nano_usd())
            } else {
                i128::try_from(all[place].score.as_nanos()).unwrap_or(i128::MAX)
            }
        };
        let is_open = |relay: &usize| {
            Some(*relay) == offer || (self.in_use[*relay] && Some(*relay) != given_up)
        };
        let usable = (0..all.len()).filter(|place| {
            let relays = &all[*place].relays;
            relays.iter().all(is_open) && offer.is_none_or(|offer| relays.contains(&offer))
        });
        let place = usable.min_by_key(|place| value(*place))?;
        let gain = value(self.choice[flow]) - value(place);
        Some(Move { flow, place, gain, rate: all[place].rate.as_bps() })
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::StartUp;
    use tradewind_units::FlowId;

    use super::*;
    use crate::candidates::example;
    use crate::problem::{Flow, Inputs};
    use crate::solver::{FlowGreedyFct, Limits, Solver};

    /// Returns the groups among twenty flows of one pair.
    fn groups_up_to(most: usize) -> Groups {
        let inputs = example::problem(1, StartUp::Ignored).inputs().clone();
        let flow = |at: usize| Flow {
            id: FlowId::new(format!("f{at}")).unwrap(),
            ..inputs.flows[0].clone()
        };
        let flows = (0..20).map(flow).collect();
        let problem = Problem::new(Inputs { flows, ..inputs.clone() }).unwrap();
        let plan = FlowGreedyFct.solve(&problem, &Limits::work(u64::MAX)).unwrap();
        groups(&problem, &plan, 0, most)
    }

    #[test]
    fn left_out_groups_are_reported() {
        let all = groups_up_to(MAX_LOOKED_AT);
        assert!(!all.found.is_empty());
        assert_eq!(all.left_out, None);
        let none = groups_up_to(10);
        assert!(none.found.is_empty());
        assert!(none.left_out.is_some_and(|why| why.contains("too large")));
    }
}
