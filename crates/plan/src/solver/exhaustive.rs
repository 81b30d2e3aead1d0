//! Exact search for small problems: over the offers to use, then over each flow's path.
//!
//! Both levels are depth-first branch and bound with a bound from [`super::knapsack`], which needs
//! a cost for each path of each flow, while set-up is paid for each relay. Two shares of it never
//! add up to more than its true cost: an equal share for every flow of the problem (there is at
//! least one relay where a flow passes), and the flow's rate over a relay's capacity (there are at
//! least as many relays as the rates fill). Any convex combination of the two is valid, too; the
//! best of a few is selected. Offers of which some relays run already are free in the bounds. The
//! number of relays that carry an offer's flows is computed exactly ([`crate::packing`]).
//!
//! It prunes by score. Under [`Objective::Cost`], and among plans of equal score, another search
//! prunes by cost ([`cheapest`]).

use tradewind_units::{Duration, Money};

use super::greedy::{Greedy, by_gain};
use super::knapsack::{Menu, bound};
use super::obstacle::{fits, infeasible};
use super::{Limits, SolveError, Solver, Work, unlimited_bound};
use crate::candidates::{Candidate, capacity_never_binds, undominated};
use crate::packing::relays_at_least;
use crate::plan::Plan;
use crate::problem::{Objective, Offer, Problem};

mod cheapest;

/// The least gain that counts: a nanosecond, the resolution of completion times.
const MIN_GAIN_S: f64 = 1e-9;

/// Weights of the equal share against the share of capacity. Chosen: the time for more of them
/// exceeds the time that they save.
const MIXES: [f64; 3] = [0.0, 0.5, 1.0];

/// The exact solver. Starts from the greedy one's plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exhaustive;

impl Solver for Exhaustive {
    fn name(&self) -> &'static str {
        "exhaustive"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        if problem.objective() == Objective::Cost {
            return cheapest::solve(problem, limits);
        }
        let first = match Greedy.solve(problem, limits) {
            Ok(plan) => Some(plan),
            Err(SolveError::WorkLimit { best, .. }) => best.map(|plan| *plan),
            Err(_) => None,
        };
        let mut search = Search::new(problem, first, Work::new(limits));
        let undecided = vec![Fate::Undecided; problem.offers().len()];
        let root = search.bound_of(&undecided);
        search.choose_offers(&mut undecided.clone(), 0);
        let bound = Duration::from_secs_f64(root.unwrap_or(0.0).max(0.0));
        let bound = if problem.leaves_out() { unlimited_bound(problem) } else { bound };
        let finish = |plan: Plan, bound: Duration| {
            let bound = bound.min(plan.score(problem).0);
            Plan { solver: "exhaustive".to_owned(), bound, ..plan }
        };
        match search.best.take() {
            best if search.work.stopped => {
                let best = best.map(|plan| Box::new(finish(plan, bound)));
                Err(SolveError::WorkLimit { best, bound })
            }
            Some(plan) => {
                let optimum = plan.score(problem).0;
                let plan = cheapest::within(problem, optimum, Some(plan.clone()), &mut search.work)
                    .unwrap_or(plan);
                let left_out = problem.leaves_out();
                Ok(finish(plan, if left_out { unlimited_bound(problem) } else { optimum }))
            }
            None => Err(infeasible(problem)),
        }
    }
}

/// The first level's decision on an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Undecided,
    Used,
    Unused,
}

/// One candidate of a flow, with its derived numbers.
#[derive(Debug, Clone)]
struct Choice<'a> {
    candidate: &'a Candidate,
    /// Its index among the problem's candidates of the flow.
    place: usize,
    cost_usd: f64,
    score_s: f64,
    /// Its share of its relays' set-up by the capacity that it takes.
    set_up_part_usd: f64,
}

struct Search<'a> {
    problem: &'a Problem,
    /// Flows in the order of branching.
    order: Vec<usize>,
    /// For each flow of `order`, its choices by increasing score.
    choices: Vec<Vec<Choice<'a>>>,
    /// The cost of the first relay of each offer.
    set_up_usd: Vec<f64>,
    budget_usd: f64,
    best: Option<Plan>,
    work: Work<'a>,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, best: Option<Plan>, work: Work<'a>) -> Self {
        let prune = capacity_never_binds(problem);
        let order = by_gain(problem);
        let choices = order.iter().map(|flow| choices_of(problem, *flow, prune)).collect();
        Self {
            problem,
            order,
            choices,
            set_up_usd: problem.offers().iter().map(first_set_up_usd).collect(),
            budget_usd: problem.budget().as_usd(),
            best,
            work,
        }
    }

    fn best_s(&self) -> f64 {
        let score = |plan: &Plan| plan.score(self.problem).0.as_secs_f64();
        self.best.as_ref().map_or(f64::INFINITY, score)
    }

    /// Runs the first level: decides offers from `next` on, then the flows.
    fn choose_offers(&mut self, fates: &mut Vec<Fate>, next: usize) {
        if !self.work.step() {
            return;
        }
        match self.bound_of(fates) {
            Some(bound) if bound < self.best_s() - MIN_GAIN_S => {}
            _ => return,
        }
        if next == fates.len() {
            self.choose_paths(fates);
            return;
        }
        for fate in [Fate::Used, Fate::Unused] {
            fates[next] = fate;
            self.choose_offers(fates, next + 1);
        }
        fates[next] = Fate::Undecided;
    }

    /// Returns a lower bound for all plans with these decisions; `None` when none is affordable.
    fn bound_of(&self, fates: &[Fate]) -> Option<f64> {
        let offers = fates.iter().zip(&self.set_up_usd);
        let used = offers.filter(|(fate, _)| **fate == Fate::Used);
        let used_usd: f64 = used.map(|(_, set_up)| set_up).sum();
        let share = 1.0 / self.order.len().max(1) as f64;
        let mut best = 0.0;
        for mix in MIXES {
            if best >= self.best_s() {
                break;
            }
            let charge = |choice: &Choice<'_>| {
                let relays = choice.candidate.relays.iter();
                let undecided = relays.filter(|relay| fates[**relay] == Fate::Undecided);
                let undecided_usd: f64 = undecided.map(|relay| self.set_up_usd[*relay]).sum();
                let parts = mix * share * undecided_usd + (1.0 - mix) * choice.set_up_part_usd;
                (choice.cost_usd + parts, choice.score_s)
            };
            let menus: Option<Vec<Menu>> =
                self.choices.iter().map(|all| Menu::new(open(all, fates).map(charge))).collect();
            let left = self.budget_usd - mix * used_usd;
            best = f64::max(best, bound(menus?.iter(), left)?);
        }
        Some(best)
    }

    /// Runs the second level: finds the best paths over the offers used.
    fn choose_paths(&mut self, fates: &[Fate]) {
        let choices: Vec<Vec<Choice<'a>>> =
            self.choices.iter().map(|all| open(all, fates).cloned().collect()).collect();
        let menus_of = |mix: f64| -> Option<Vec<Menu>> {
            let charge = |choice: &Choice<'_>| {
                (choice.cost_usd + (1.0 - mix) * choice.set_up_part_usd, choice.score_s)
            };
            choices.iter().map(|all| Menu::new(all.iter().map(charge))).collect()
        };
        let menus: Option<Vec<Vec<Menu>>> = MIXES.into_iter().map(menus_of).collect();
        let Some(menus) = menus else { return };
        let mut node = Node {
            loads: vec![0; fates.len()],
            relays: fates.iter().map(|fate| usize::from(*fate == Fate::Used)).collect(),
            set_up_parts_usd: 0.0,
            cost_usd: 0.0,
            score_s: 0.0,
            selected: Vec::new(),
        };
        self.choose_path(&choices, &menus, &mut node);
    }

    /// Returns a lower bound for all completions of this node; `None` when none is affordable.
    fn bound_from(&self, menus: &[Vec<Menu>], node: &Node) -> Option<f64> {
        let counts = self.problem.offers().iter().zip(&node.relays);
        let set_up: Money = counts.map(|(offer, count)| offer.set_up(*count)).sum();
        let mut best = 0.0;
        for (mix, menus) in MIXES.into_iter().zip(menus) {
            if node.score_s + best >= self.best_s() {
                break;
            }
            let set_up_usd = mix * set_up.as_usd() + (1.0 - mix) * node.set_up_parts_usd;
            let left = self.budget_usd - node.cost_usd - set_up_usd;
            best = f64::max(best, bound(menus[node.selected.len()..].iter(), left)?);
        }
        Some(node.score_s + best)
    }

    fn choose_path(&mut self, choices: &[Vec<Choice<'a>>], menus: &[Vec<Menu>], node: &mut Node) {
        let depth = node.selected.len();
        if depth == choices.len() {
            self.offer(&node.selected);
            return;
        }
        for choice in &choices[depth] {
            if !self.work.step() {
                return;
            }
            let before = node.clone();
            node.take(choice, self.problem);
            let bound = self.bound_from(menus, node);
            if bound.is_some_and(|bound| bound < self.best_s() - MIN_GAIN_S) {
                self.choose_path(choices, menus, node);
            }
            *node = before;
        }
    }

    /// Accepts the choice as incumbent if it is better and affordable with its true number of
    /// relays.
    fn offer(&mut self, selected: &[usize]) {
        let mut choice = vec![0; selected.len()];
        for (flow, place) in self.order.iter().zip(selected) {
            choice[*flow] = *place;
        }
        let plan = Plan::from_choice(self.problem, &choice, "exhaustive", Duration::ZERO);
        let Some(plan) = plan.filter(|plan| plan.cost <= self.problem.budget()) else { return };
        let better = |best: &Plan| plan.score(self.problem) < best.score(self.problem);
        if self.best.as_ref().is_none_or(better) {
            self.best = Some(plan);
        }
    }
}

/// Returns a flow's choices without those that no relay could carry and, with `prune`, without
/// dominated ones.
fn choices_of(problem: &Problem, flow: usize, prune: bool) -> Vec<Choice<'_>> {
    let all = problem.candidates(flow);
    let retained: Vec<&Candidate> = if prune { undominated(all) } else { all.iter().collect() };
    let place = |candidate: &Candidate| all.iter().position(|other| std::ptr::eq(other, candidate));
    let mut choices: Vec<Choice<'_>> = retained
        .into_iter()
        .filter(|candidate| fits(problem, candidate))
        .map(|candidate| Choice {
            candidate,
            place: place(candidate).expect("a kept candidate is one of all"),
            cost_usd: candidate.cost.as_usd(),
            score_s: candidate.score.as_secs_f64(),
            set_up_part_usd: candidate
                .relays
                .iter()
                .map(|r| set_up_part_usd(candidate, &problem.offers()[*r]))
                .sum(),
        })
        .collect();
    choices.sort_by(|a, b| a.score_s.total_cmp(&b.score_s).then(a.cost_usd.total_cmp(&b.cost_usd)));
    choices
}

/// Returns the cost of the first relay of an offer: nothing if one runs already.
fn first_set_up_usd(offer: &Offer) -> f64 {
    offer.set_up(1).as_usd()
}

/// Returns the share of a relay's set-up by the capacity that the candidate takes.
fn set_up_part_usd(candidate: &Candidate, offer: &Offer) -> f64 {
    let share = candidate.rate.as_bps() as f64 / offer.capacity_bps() as f64;
    share * first_set_up_usd(offer)
}

/// Returns the choices that pass no unused offer.
fn open<'c, 'a>(
    choices: &'c [Choice<'a>],
    fates: &'c [Fate],
) -> impl Iterator<Item = &'c Choice<'a>> {
    let allowed = |choice: &&Choice<'_>| {
        choice.candidate.relays.iter().all(|relay| fates[*relay] != Fate::Unused)
    };
    choices.iter().filter(allowed)
}

/// A node of the second level: the flows decided so far.
#[derive(Debug, Clone)]
struct Node {
    /// Rate through each offer's relays.
    loads: Vec<u64>,
    /// A lower bound on the relays of each offer.
    relays: Vec<usize>,
    set_up_parts_usd: f64,
    cost_usd: f64,
    score_s: f64,
    selected: Vec<usize>,
}

impl Node {
    fn take(&mut self, choice: &Choice<'_>, problem: &Problem) {
        for relay in &choice.candidate.relays {
            self.loads[*relay] += choice.candidate.rate.as_bps();
            let capacity = problem.offers()[*relay].capacity_bps();
            let needed = relays_at_least(self.loads[*relay], capacity);
            self.relays[*relay] = self.relays[*relay].max(needed);
        }
        self.set_up_parts_usd += choice.set_up_part_usd;
        self.cost_usd += choice.cost_usd;
        self.score_s += choice.score_s;
        self.selected.push(choice.place);
    }
}
