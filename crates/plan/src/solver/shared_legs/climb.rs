//! Local search that counts each leg of a tree once: single flows change paths, a tree's flows join
//! a trunk together, an offer closes. Money has a price in seconds, found by bisection, at which
//! the plan just fits the budget; what is left is spent.

use std::collections::BTreeMap;

use tradewind_units::Duration;

use super::grove::Grove;
use crate::plan::Plan;
use crate::problem::{Objective, Problem};
use crate::solver::Work;

/// Rounds of moves at one price of money. Chosen: more change little.
const ROUNDS: usize = 6;

/// Prices tried. Chosen: they halve the range's logarithm each time, to a hundredth of it.
const PRICES: u32 = 10;

/// Range of prices, as multiples of what all flows could gain over what that would cost. Chosen.
const RANGE: (f64, f64) = (1e-3, 1e3);

/// Starts that the search goes on from. Chosen: those of `auto` and its starters.
const MOST_STARTS: usize = 8;

/// Places on trunks of all candidates up to which trunks are tried. Chosen: memory of fifty
/// megabytes.
const MOST_ON_TRUNKS: usize = 500_000;

/// Plans that differ by less, as a part, are equal: sums of floating point drift.
const DRIFT: f64 = 1e-9;

/// Relays that a tree's paths may begin with, and who may take them.
struct SharedPrefix {
    tree: usize,
    relays: Vec<usize>,
    /// Flows, each with its candidates that begin so.
    members: Vec<(usize, Vec<usize>)>,
}

/// Flows that may take a trunk, and their candidates that do.
type Members = BTreeMap<usize, Vec<usize>>;

/// The search.
pub(super) struct Climb<'p> {
    problem: &'p Problem,
    grove: Grove<'p>,
    choice: Vec<usize>,
    trunks: Vec<SharedPrefix>,
    starts: Vec<Vec<usize>>,
    /// The best plan within the budget, and its candidates.
    pub(super) best: Option<(Vec<usize>, Plan)>,
}

/// What a move is judged by.
#[derive(Clone, Copy)]
struct Judge {
    /// Seconds a dollar.
    lambda: f64,
    /// Dollars that no plan may rise above.
    limit_usd: f64,
}

impl Judge {
    fn merit(self, grove: &Grove<'_>) -> f64 {
        grove.score_s + self.lambda * grove.usd()
    }

    /// Whether a change is for the better.
    fn accepts(self, grove: &Grove<'_>, before: (f64, f64)) -> bool {
        let (merit, usd) = (self.merit(grove), grove.usd());
        let affordable = usd <= self.limit_usd || usd <= before.1;
        affordable && merit < before.0 - DRIFT * before.0.abs()
    }
}

impl<'p> Climb<'p> {
    pub(super) fn new(problem: &'p Problem) -> Self {
        let flows = problem.flows().len();
        let cheapest = |flow: usize| {
            let all = problem.candidates(flow).iter().enumerate();
            all.min_by_key(|(_, c)| (c.cost, c.relays.len(), c.score)).map_or(0, |(at, _)| at)
        };
        let choice: Vec<usize> = (0..flows).map(cheapest).collect();
        let mut climb = Self {
            problem,
            grove: Grove::new(problem),
            choice: Vec::new(),
            trunks: trunks(problem),
            starts: Vec::new(),
            best: None,
        };
        climb.go_to(&choice);
        climb.keep(&choice);
        climb
    }

    /// Remembers a start, and its plan if that is the best so far; how much more it truly costs
    /// than is judged here.
    pub(super) fn keep(&mut self, choice: &[usize]) -> Option<Plan> {
        if !self.starts.iter().any(|known| known == choice) && self.starts.len() < MOST_STARTS {
            self.starts.push(choice.to_vec());
        }
        let plan = Plan::from_choice(self.problem, choice, "", Duration::ZERO)?;
        let score = |plan: &Plan| plan.score(self.problem);
        let better = self.best.as_ref().is_none_or(|(_, best)| score(&plan) < score(best));
        if plan.cost <= self.problem.budget() && better {
            self.best = Some((choice.to_vec(), plan.clone()));
        }
        Some(plan)
    }

    pub(super) fn run(&mut self, work: &mut Work<'_>) {
        if self.problem.objective() == Objective::Cost {
            for start in self.starts.clone() {
                self.go_to(&start);
                self.descend(Judge { lambda: 1.0, limit_usd: f64::INFINITY }, work);
                self.keep(&self.choice.clone());
            }
            return;
        }
        let unit = self.unit();
        if !unit.is_finite() || unit <= 0.0 {
            return;
        }
        for start in self.starts.clone() {
            self.go_to(&start);
            self.settle(unit, work);
        }
        let (mut low, mut high) = (unit * RANGE.0, unit * RANGE.1);
        for _ in 0..PRICES {
            if work.stopped {
                return;
            }
            let lambda = (low * high).sqrt();
            let best = self.best.as_ref().map(|(choice, _)| choice.clone());
            self.go_to(&best.unwrap_or_else(|| self.starts[0].clone()));
            self.descend(Judge { lambda, limit_usd: f64::INFINITY }, work);
            if self.settle(lambda, work) {
                high = lambda;
            } else {
                low = lambda;
            }
        }
    }

    /// What all flows could gain in seconds over what that would cost in dollars.
    fn unit(&mut self) -> f64 {
        let fastest = |flow: usize| {
            let all = self.problem.candidates(flow).iter().enumerate();
            all.min_by_key(|(_, c)| (c.score, c.cost)).map_or(0, |(at, _)| at)
        };
        let fastest: Vec<usize> = (0..self.choice.len()).map(fastest).collect();
        let (slow_s, little_usd) = (self.grove.score_s, self.grove.usd());
        self.go_to(&fastest);
        self.keep(&fastest);
        (slow_s - self.grove.score_s) / (self.grove.usd() - little_usd).max(1e-9)
    }

    /// Keeps the plan if it fits the budget, and spends what is left, first where it wins most;
    /// whether it fits.
    fn settle(&mut self, lambda: f64, work: &mut Work<'_>) -> bool {
        let budget = self.problem.budget();
        let Some(plan) = self.keep(&self.choice.clone()) else { return false };
        if plan.cost > budget {
            return false;
        }
        // Relays that the packing needs beyond what is judged here.
        let hidden_usd = plan.cost.as_usd() - self.grove.usd();
        for share in [1.0, 0.2, 0.0] {
            let limit_usd = budget.as_usd() - hidden_usd.max(0.0);
            self.descend(Judge { lambda: lambda * share, limit_usd }, work);
        }
        self.keep(&self.choice.clone());
        true
    }

    fn go_to(&mut self, choice: &[usize]) {
        self.grove = Grove::new(self.problem);
        for (flow, candidate) in choice.iter().enumerate() {
            self.grove.add(flow, *candidate);
        }
        self.choice = choice.to_vec();
    }

    fn descend(&mut self, judge: Judge, work: &mut Work<'_>) {
        for _ in 0..ROUNDS {
            let mut changed = self.move_flows(judge, work);
            changed |= self.join_trunks(judge, work);
            changed |= self.close_offers(judge, work);
            if !changed || work.stopped {
                return;
            }
        }
    }

    /// Each flow to its best candidate, all else as it is.
    fn move_flows(&mut self, judge: Judge, work: &mut Work<'_>) -> bool {
        let mut changed = false;
        for flow in 0..self.choice.len() {
            let all = 0..self.problem.candidates(flow).len();
            changed |= self.reseat(flow, all, judge, work);
        }
        changed
    }

    /// A flow to the best of these candidates, if that is better than where it is.
    fn reseat(
        &mut self,
        flow: usize,
        candidates: impl Iterator<Item = usize>,
        judge: Judge,
        work: &mut Work<'_>,
    ) -> bool {
        let own = self.choice[flow];
        let before = (judge.merit(&self.grove), self.grove.usd());
        self.grove.remove(flow, own);
        let without = judge.merit(&self.grove);
        let mut best = (before.0, own);
        for candidate in candidates.filter(|candidate| *candidate != own) {
            // No candidate adds less than its score.
            let least = without + self.problem.candidates(flow)[candidate].score.as_secs_f64();
            if least >= best.0 {
                continue;
            }
            if !work.step() {
                break;
            }
            self.grove.add(flow, candidate);
            if judge.accepts(&self.grove, (best.0, before.1)) {
                best = (judge.merit(&self.grove), candidate);
            }
            self.grove.remove(flow, candidate);
        }
        self.grove.add(flow, best.1);
        self.choice[flow] = best.1;
        best.1 != own
    }

    /// For each trunk: who gains by joining once it is there joins, if all together pay for it.
    fn join_trunks(&mut self, judge: Judge, work: &mut Work<'_>) -> bool {
        let trunks = std::mem::take(&mut self.trunks);
        let mut changed = false;
        for shared_prefix in &trunks {
            if work.stopped {
                break;
            }
            let before = (judge.merit(&self.grove), self.grove.usd());
            let own: Vec<usize> =
                shared_prefix.members.iter().map(|(flow, _)| self.choice[*flow]).collect();
            let first = shared_prefix.members[0].0;
            let open = Judge { limit_usd: f64::INFINITY, ..judge };
            self.grove.open(shared_prefix.tree, first, &shared_prefix.relays);
            let mut joined = false;
            for (flow, candidates) in &shared_prefix.members {
                joined |= self.reseat(*flow, candidates.iter().copied(), open, work);
            }
            self.grove.close(shared_prefix.tree, &shared_prefix.relays);
            if joined && !judge.accepts(&self.grove, before) {
                let flows = shared_prefix.members.iter().map(|(flow, _)| *flow);
                self.put_back(flows.zip(own));
            } else {
                changed |= joined;
            }
        }
        self.trunks = trunks;
        changed
    }

    /// For each offer: those who pass it go elsewhere, if that is better without it.
    fn close_offers(&mut self, judge: Judge, work: &mut Work<'_>) -> bool {
        let mut changed = false;
        for offer in 0..self.problem.offers().len() {
            if self.grove.users(offer) == 0 || work.stopped {
                continue;
            }
            let passes = |flow: usize, candidate: usize| {
                self.problem.candidates(flow)[candidate].relays.contains(&offer)
            };
            let users: Vec<(usize, usize)> = (self.choice.iter().copied().enumerate())
                .filter(|(flow, candidate)| passes(*flow, *candidate))
                .collect();
            let others: Vec<Vec<usize>> = (users.iter())
                .map(|(flow, _)| {
                    let all = 0..self.problem.candidates(*flow).len();
                    all.filter(|candidate| !passes(*flow, *candidate)).collect()
                })
                .collect();
            if others.iter().any(Vec::is_empty) {
                continue;
            }
            let before = (judge.merit(&self.grove), self.grove.usd());
            for ((flow, _), others) in users.iter().zip(others) {
                self.leave(*flow, others[0]);
                self.reseat(*flow, others.into_iter(), judge, work);
            }
            if judge.accepts(&self.grove, before) {
                changed = true;
            } else {
                self.put_back(users.into_iter());
            }
        }
        changed
    }

    fn leave(&mut self, flow: usize, candidate: usize) {
        self.grove.remove(flow, self.choice[flow]);
        self.grove.add(flow, candidate);
        self.choice[flow] = candidate;
    }

    fn put_back(&mut self, seats: impl Iterator<Item = (usize, usize)>) {
        for (flow, candidate) in seats {
            self.leave(flow, candidate);
        }
    }
}

/// The trunks that two flows of a tree could share; none where there would be too many.
fn trunks(problem: &Problem) -> Vec<SharedPrefix> {
    let flows = || (0..problem.flows().len()).filter_map(|f| Some((f, problem.tree(f)?)));
    let places = |flow| problem.candidates(flow).iter().map(|c| c.relays.len()).sum::<usize>();
    if flows().map(|(flow, _)| places(flow)).sum::<usize>() > MOST_ON_TRUNKS {
        return Vec::new();
    }
    let mut found: BTreeMap<(usize, &[usize]), Members> = BTreeMap::new();
    for (flow, tree) in flows() {
        for (at, candidate) in problem.candidates(flow).iter().enumerate() {
            for end in 1..=candidate.relays.len() {
                let members = found.entry((tree, &candidate.relays[..end])).or_default();
                members.entry(flow).or_default().push(at);
            }
        }
    }
    let mut trunks = Vec::new();
    for ((tree, relays), members) in found {
        if members.len() > 1 {
            let members = members.into_iter().collect();
            trunks.push(SharedPrefix { tree, relays: relays.to_vec(), members });
        }
    }
    trunks
}
