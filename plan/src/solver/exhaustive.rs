//! Exact search for small problems: which regions hold relays, then which path each flow takes.
//!
//! Both levels are depth-first with a bound from [`super::knapsack`], which wants a price for each
//! path of each flow, while set-up is paid for each relay. Two shares of it never add up to more than
//! its truth: an equal share for every flow of the problem (there is at least one relay where a flow
//! passes), and the flow's rate over a relay's capacity (there are at least as many relays as the
//! rates fill). Any mix of the two is as safe; the best of a few mixes is taken, so nothing good is
//! cut off. How few relays carry a region's flows is worked out exactly ([`crate::packing`]).

use tradewind_units::Duration;

use super::greedy::{Greedy, by_gain};
use super::knapsack::{Menu, bound};
use super::{Limits, SolveError, Solver, Work};
use crate::candidates::{Candidate, capacity_never_binds, undominated};
use crate::packing::relays_at_least;
use crate::plan::Plan;
use crate::problem::Problem;

/// Gains below this are none: a nanosecond, the resolution of completion times.
const LEAST_GAIN_S: f64 = 1e-9;

/// Weights of the equal share against the share of capacity. Chosen: more of them cost more than they cut.
const MIXES: [f64; 3] = [0.0, 0.5, 1.0];

/// The exact solver. Starts from the greedy one's plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exhaustive;

impl Solver for Exhaustive {
    fn name(&self) -> &'static str {
        "exhaustive"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        let first = match Greedy.solve(problem, limits) {
            Ok(plan) => Some(plan),
            Err(SolveError::WorkLimit { best, .. }) => best.map(|plan| *plan),
            Err(_) => None,
        };
        let mut search = Search::new(problem, first, Work::new(limits));
        let undecided = vec![Fate::Undecided; problem.regions().len()];
        let root = search.bound_of(&undecided);
        search.choose_regions(&mut undecided.clone(), 0);
        let bound = Duration::from_secs_f64(root.unwrap_or(0.0).max(0.0));
        let finish = |plan: Plan, bound: Duration| {
            let bound = bound.min(plan.total_fct);
            Plan { solver: "exhaustive".to_owned(), bound, ..plan }
        };
        match search.best {
            best if search.work.stopped => {
                let best = best.map(|plan| Box::new(finish(plan, bound)));
                Err(SolveError::WorkLimit { best, bound })
            }
            Some(plan) => {
                let optimum = plan.total_fct;
                Ok(finish(plan, optimum))
            }
            None => Err(search.infeasible()),
        }
    }
}

/// What the first level has decided of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Undecided,
    Used,
    Unused,
}

/// One way of a flow, with its numbers at hand.
#[derive(Debug, Clone)]
struct Choice<'a> {
    candidate: &'a Candidate,
    /// Its place among the problem's candidates of the flow.
    place: usize,
    egress_usd: f64,
    fct_s: f64,
    /// What it takes of one relay's capacity.
    share: f64,
}

impl Choice<'_> {
    /// What it takes of relays' capacity on its whole path.
    fn capacity_shares(&self) -> f64 {
        self.share * self.candidate.regions.len() as f64
    }
}

struct Search<'a> {
    problem: &'a Problem,
    /// Flows in the order of branching.
    order: Vec<usize>,
    /// For each flow of `order`, its choices by rising completion time.
    choices: Vec<Vec<Choice<'a>>>,
    set_up_usd: f64,
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
            set_up_usd: problem.set_up().as_usd(),
            budget_usd: problem.budget().as_usd(),
            best,
            work,
        }
    }

    fn best_s(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |plan| plan.total_fct.as_secs_f64())
    }

    /// The first level: decides regions from `next` on, then the flows.
    fn choose_regions(&mut self, fates: &mut Vec<Fate>, next: usize) {
        if !self.work.step() {
            return;
        }
        match self.bound_of(fates) {
            Some(bound) if bound < self.best_s() - LEAST_GAIN_S => {}
            _ => return,
        }
        if next == fates.len() {
            self.choose_paths(fates);
            return;
        }
        for fate in [Fate::Used, Fate::Unused] {
            fates[next] = fate;
            self.choose_regions(fates, next + 1);
        }
        fates[next] = Fate::Undecided;
    }

    /// No plan that agrees with these fates takes less; `None` when none is affordable.
    fn bound_of(&self, fates: &[Fate]) -> Option<f64> {
        let used = fates.iter().filter(|fate| **fate == Fate::Used).count() as f64;
        let share = 1.0 / self.order.len().max(1) as f64;
        let mut best = 0.0;
        for mix in MIXES {
            if best >= self.best_s() {
                break;
            }
            let charge = |choice: &Choice<'_>| {
                let undecided = |region: &&usize| fates[**region] == Fate::Undecided;
                let shares = choice.candidate.regions.iter().filter(undecided).count() as f64;
                let relays = mix * share * shares + (1.0 - mix) * choice.capacity_shares();
                (choice.egress_usd + relays * self.set_up_usd, choice.fct_s)
            };
            let menus: Option<Vec<Menu>> =
                self.choices.iter().map(|all| Menu::new(open(all, fates).map(charge))).collect();
            let left = self.budget_usd - mix * used * self.set_up_usd;
            best = f64::max(best, bound(menus?.iter(), left)?);
        }
        Some(best)
    }

    /// The second level: the best paths over the regions used.
    fn choose_paths(&mut self, fates: &[Fate]) {
        let choices: Vec<Vec<Choice<'a>>> =
            self.choices.iter().map(|all| open(all, fates).cloned().collect()).collect();
        let menus_of = |mix: f64| -> Option<Vec<Menu>> {
            let charge = |choice: &Choice<'_>| {
                let relays = (1.0 - mix) * choice.capacity_shares();
                (choice.egress_usd + relays * self.set_up_usd, choice.fct_s)
            };
            choices.iter().map(|all| Menu::new(all.iter().map(charge))).collect()
        };
        let menus: Option<Vec<Vec<Menu>>> = MIXES.into_iter().map(menus_of).collect();
        let Some(menus) = menus else { return };
        let mut node = Node {
            loads: vec![0; fates.len()],
            relays: fates.iter().map(|fate| usize::from(*fate == Fate::Used)).collect(),
            shares: 0.0,
            egress_usd: 0.0,
            fct_s: 0.0,
            taken: Vec::new(),
        };
        self.choose_path(&choices, &menus, &mut node);
    }

    /// No way to go on from this node takes less; `None` when none is affordable.
    fn bound_from(&self, menus: &[Vec<Menu>], node: &Node) -> Option<f64> {
        let relays = node.relays.iter().sum::<usize>() as f64;
        let mut best = 0.0;
        for (mix, menus) in MIXES.into_iter().zip(menus) {
            if node.fct_s + best >= self.best_s() {
                break;
            }
            let set_up_usd = (mix * relays + (1.0 - mix) * node.shares) * self.set_up_usd;
            let left = self.budget_usd - node.egress_usd - set_up_usd;
            best = f64::max(best, bound(menus[node.taken.len()..].iter(), left)?);
        }
        Some(node.fct_s + best)
    }

    fn choose_path(&mut self, choices: &[Vec<Choice<'a>>], menus: &[Vec<Menu>], node: &mut Node) {
        let depth = node.taken.len();
        if depth == choices.len() {
            self.offer(&node.taken);
            return;
        }
        for choice in &choices[depth] {
            if !self.work.step() {
                return;
            }
            let before = node.clone();
            node.take(choice, self.problem.relay_capacity().as_bps());
            let bound = self.bound_from(menus, node);
            if bound.is_some_and(|bound| bound < self.best_s() - LEAST_GAIN_S) {
                self.choose_path(choices, menus, node);
            }
            *node = before;
        }
    }

    /// Takes the choice as the best so far if it is affordable with its true number of relays.
    fn offer(&mut self, taken: &[usize]) {
        let mut choice = vec![0; taken.len()];
        for (flow, place) in self.order.iter().zip(taken) {
            choice[*flow] = *place;
        }
        let plan = Plan::from_choice(self.problem, &choice, "exhaustive", Duration::ZERO);
        let Some(plan) = plan.filter(|plan| plan.cost <= self.problem.budget()) else { return };
        let key = |plan: &Plan| (plan.total_fct, plan.cost);
        if self.best.as_ref().is_none_or(|best| key(&plan) < key(best)) {
            self.best = Some(plan);
        }
    }

    fn infeasible(&self) -> SolveError {
        super::greedy::infeasible(self.problem)
    }
}

/// A flow's choices, those left out that no relay could carry and, with `prune`, those that never help.
fn choices_of(problem: &Problem, flow: usize, prune: bool) -> Vec<Choice<'_>> {
    let all = problem.candidates(flow);
    let kept: Vec<&Candidate> = if prune { undominated(all) } else { all.iter().collect() };
    let place = |candidate: &Candidate| all.iter().position(|other| std::ptr::eq(other, candidate));
    let mut choices: Vec<Choice<'_>> = kept
        .into_iter()
        .filter(|c| c.regions.is_empty() || c.rate <= problem.relay_capacity())
        .map(|candidate| Choice {
            candidate,
            place: place(candidate).expect("a kept candidate is one of all"),
            egress_usd: candidate.egress.as_usd(),
            fct_s: candidate.fct.as_secs_f64(),
            share: candidate.rate.as_bps() as f64 / problem.relay_capacity().as_bps() as f64,
        })
        .collect();
    choices.sort_by(|a, b| a.fct_s.total_cmp(&b.fct_s).then(a.egress_usd.total_cmp(&b.egress_usd)));
    choices
}

/// The choices that pass no unused region.
fn open<'c, 'a>(
    choices: &'c [Choice<'a>],
    fates: &'c [Fate],
) -> impl Iterator<Item = &'c Choice<'a>> {
    let allowed = |choice: &&Choice<'_>| {
        choice.candidate.regions.iter().all(|region| fates[*region] != Fate::Unused)
    };
    choices.iter().filter(allowed)
}

/// The flows decided so far on the second level.
#[derive(Debug, Clone)]
struct Node {
    /// Rate through each region.
    loads: Vec<u64>,
    /// Relays that each region needs at least.
    relays: Vec<usize>,
    /// Rates through all regions, over a relay's capacity.
    shares: f64,
    egress_usd: f64,
    fct_s: f64,
    taken: Vec<usize>,
}

impl Node {
    fn take(&mut self, choice: &Choice<'_>, capacity: u64) {
        for region in &choice.candidate.regions {
            self.loads[*region] += choice.candidate.rate.as_bps();
            let needed = relays_at_least(self.loads[*region], capacity);
            self.relays[*region] = self.relays[*region].max(needed);
        }
        self.shares += choice.capacity_shares();
        self.egress_usd += choice.egress_usd;
        self.fct_s += choice.fct_s;
        self.taken.push(choice.place);
    }
}
