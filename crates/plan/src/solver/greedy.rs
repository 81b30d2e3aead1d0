//! Greedy search that shares relays, after the idea of CP's proxy-greedy family [CP VI-B].
//!
//! A set of relays is evaluated by the flows that it can serve: each starts direct, and the upgrade
//! that saves most time for each dollar of egress is made repeatedly while budget and capacity
//! last. From no relays at all, the set moves to its best neighbour (one or two relays more, one
//! less, one replaced) as long as that improves it. The paper's own five heuristics are other
//! solvers; this one is none of them.

use std::cmp::Reverse;

use tradewind_units::{Duration, Money};

use super::{Limits, SolveError, Solver, Work, unlimited_bound};
use crate::candidates::Candidate;
use crate::plan::Plan;
use crate::problem::Problem;

/// The greedy solver.
#[derive(Debug, Clone, Copy, Default)]
pub struct Greedy;

/// The number of relays of each offer.
type Relays = Vec<usize>;

/// The choices, score and cost that a set of relays gives.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    /// Each flow's candidate; none for a flow that has no path over this set.
    choice: Vec<Option<usize>>,
    score: Duration,
    cost: Money,
}

impl Outcome {
    /// Returns the lexicographic objective: flows without a path, then score, then cost.
    fn key(&self) -> (usize, Duration, Money) {
        let unserved = self.choice.iter().filter(|choice| choice.is_none()).count();
        (unserved, self.score, self.cost)
    }
}

impl Solver for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        let mut work = Work::new(limits);
        let bound = unlimited_bound(problem);
        let mut relays = vec![0; problem.offers().len()];
        let mut best = serve(problem, &relays, &mut work);
        while !work.stopped {
            let sets = neighbours(problem, &relays).into_iter();
            let outcomes = sets.map(|set| (serve(problem, &set, &mut work), set));
            match outcomes.min_by_key(|(outcome, _)| outcome.key()) {
                Some((outcome, set)) if outcome.key() < best.key() => {
                    (best, relays) = (outcome, set);
                }
                _ => break,
            }
        }
        let choice: Option<Vec<usize>> = best.choice.into_iter().collect();
        let plan = choice.and_then(|all| Plan::from_choice(problem, &all, self.name(), bound));
        match plan {
            Some(plan) if !work.stopped => Ok(plan),
            plan => Err(SolveError::WorkLimit { best: plan.map(Box::new), bound }),
        }
    }
}

/// Returns the sets with one or two relays more, one less, or one replaced, that the budget can set
/// up.
fn neighbours(problem: &Problem, relays: &Relays) -> Vec<Relays> {
    let offers = 0..problem.offers().len();
    let with = |set: &Relays, offer: usize| {
        let mut more = set.clone();
        more[offer] += 1;
        more
    };
    let mut sets = Vec::new();
    for offer in offers.clone() {
        let one = with(relays, offer);
        sets.extend((offer..problem.offers().len()).map(|second| with(&one, second)));
        sets.push(one);
        if relays[offer] > 0 {
            let mut less = relays.clone();
            less[offer] -= 1;
            let others = offers.clone().filter(|other| *other != offer);
            sets.extend(others.map(|other| with(&less, other)));
            sets.push(less);
        }
    }
    sets.retain(|set| set_up(problem, set) <= problem.budget());
    sets
}

fn set_up(problem: &Problem, relays: &Relays) -> Money {
    problem.offers().iter().zip(relays).map(|(offer, count)| offer.set_up(*count)).sum()
}

/// Serves the flows with a set of relays that the budget can set up.
fn serve(problem: &Problem, relays: &Relays, work: &mut Work<'_>) -> Outcome {
    let mut serving = Serving::new(problem, relays);
    while let Some((flow, candidate)) = serving.best_upgrade() {
        if !work.step() {
            break;
        }
        serving.assign(flow, candidate);
    }
    serving.outcome()
}

/// An assignment of flows to a set of relays.
struct Serving<'a> {
    problem: &'a Problem,
    /// The free capacity of each relay, by offer.
    free_bps: Vec<Vec<u64>>,
    /// Candidates whose offers all have a relay: index and candidate, by flow.
    open: Vec<Vec<(usize, &'a Candidate)>>,
    /// Each flow's candidate, and its relays' numbers.
    choice: Vec<Option<(usize, Vec<usize>)>>,
    left: Money,
    set_up: Money,
}

impl<'a> Serving<'a> {
    fn new(problem: &'a Problem, relays: &Relays) -> Self {
        let set_up = set_up(problem, relays);
        let left = problem.budget().checked_sub(set_up).unwrap_or(Money::ZERO);
        let flows = 0..problem.flows().len();
        let open: Vec<Vec<(usize, &Candidate)>> = flows
            .map(|flow| {
                let all = problem.candidates(flow).iter().enumerate();
                all.filter(|(_, c)| c.relays.iter().all(|offer| relays[*offer] > 0)).collect()
            })
            .collect();
        // A flow that runs elsewhere pays for its move, so direct is not always free.
        let free = |c: &Candidate| c.relays.is_empty() && c.cost == Money::ZERO;
        let direct = |flow: &[(usize, &Candidate)]| {
            flow.first().filter(|(_, c)| free(c)).map(|(at, _)| (*at, Vec::new()))
        };
        let choice = open.iter().map(|flow| direct(flow)).collect();
        let fleets = problem.offers().iter().zip(relays);
        let free_bps = fleets.map(|(offer, count)| vec![offer.capacity_bps(); *count]).collect();
        Self { problem, free_bps, open, choice, left, set_up }
    }

    /// Returns the affordable change of one flow's path that saves most for each dollar: flow and
    /// candidate.
    ///
    /// A flow without any path comes first; a change without extra cost comes before one with it.
    fn best_upgrade(&self) -> Option<(usize, usize)> {
        let mut best: Option<((bool, f64), (usize, usize))> = None;
        for (flow, open) in self.open.iter().enumerate() {
            let current = self.current(flow);
            for (place, candidate) in open {
                let (saved, paid) = match current {
                    None => (1.0 / candidate.fct.as_secs_f64(), candidate.cost),
                    Some(now) if candidate.score >= now.score => continue,
                    Some(now) => {
                        let saved = (now.score - candidate.score).as_secs_f64();
                        (saved, candidate.cost.checked_sub(now.cost).unwrap_or(Money::ZERO))
                    }
                };
                let worth = (current.is_none(), saved / paid.as_usd().max(1e-9));
                let better = best.is_none_or(|(other, _)| worth > other);
                let refund = current.map_or(Money::ZERO, |now| now.cost);
                let affordable = candidate.cost <= self.left + refund;
                if better && affordable && self.numbers(flow, candidate).is_some() {
                    best = Some((worth, (flow, *place)));
                }
            }
        }
        best.map(|(_, upgrade)| upgrade)
    }

    fn current(&self, flow: usize) -> Option<&'a Candidate> {
        let (place, _) = self.choice[flow].as_ref()?;
        Some(&self.problem.candidates(flow)[*place])
    }

    /// Returns the fullest relay with the capacity of each offer of the candidate, the flow's
    /// present share released.
    fn numbers(&self, flow: usize, candidate: &Candidate) -> Option<Vec<usize>> {
        let need = candidate.rate.as_bps();
        let free_at = |offer: usize, number: usize| {
            self.free_bps[offer][number] + self.held(flow, offer, number)
        };
        let fullest = |offer: &usize| {
            let numbers = 0..self.free_bps[*offer].len();
            let fitting = numbers.filter(|number| free_at(*offer, *number) >= need);
            fitting.min_by_key(|number| free_at(*offer, *number))
        };
        candidate.relays.iter().map(fullest).collect()
    }

    /// Returns the rate that a flow takes of this relay now.
    fn held(&self, flow: usize, offer: usize, number: usize) -> u64 {
        let (Some(candidate), Some((_, numbers))) = (self.current(flow), &self.choice[flow]) else {
            return 0;
        };
        let mut relays = candidate.relays.iter().zip(numbers);
        let here = relays.any(|relay| relay == (&offer, &number));
        if here { candidate.rate.as_bps() } else { 0 }
    }

    fn assign(&mut self, flow: usize, place: usize) {
        let candidate = &self.problem.candidates(flow)[place];
        let numbers = self.numbers(flow, candidate).expect("an upgrade has room");
        if let (Some(before), Some((_, old))) = (self.current(flow), self.choice[flow].take()) {
            self.left = self.left + before.cost;
            for (offer, number) in before.relays.iter().zip(old) {
                self.free_bps[*offer][number] += before.rate.as_bps();
            }
        }
        self.left = self.left.checked_sub(candidate.cost).expect("an upgrade is affordable");
        for (offer, number) in candidate.relays.iter().zip(&numbers) {
            self.free_bps[*offer][*number] -= candidate.rate.as_bps();
        }
        self.choice[flow] = Some((place, numbers));
    }

    fn outcome(self) -> Outcome {
        let chosen = || (0..self.choice.len()).filter_map(|flow| self.current(flow));
        let carrying: Money = chosen().map(|candidate| candidate.cost).sum();
        let score = chosen().map(|candidate| candidate.score).sum();
        let place = |choice: &Option<(usize, Vec<usize>)>| choice.as_ref().map(|(at, _)| *at);
        let choice = self.choice.iter().map(place).collect();
        Outcome { choice, score, cost: self.set_up + carrying }
    }
}

/// Returns the flows in the order of branching: those with most to gain first.
pub(super) fn by_gain(problem: &Problem) -> Vec<usize> {
    let spread = |flow: &usize| {
        let times = problem.candidates(*flow).iter().map(|candidate| candidate.score);
        let slowest = times.clone().max().unwrap_or_default();
        slowest.saturating_sub(times.min().unwrap_or_default())
    };
    let mut order: Vec<usize> = (0..problem.flows().len()).collect();
    order.sort_by_key(|flow| (Reverse(spread(flow)), *flow));
    order
}
