//! Our own solver: the best plan that it finds within the limits, at any scale, with a proven
//! bound.
//!
//! 1. A lower bound by Lagrangian relaxation, whose multipliers price money, set-up and capacity
//!    ([`dual`]).
//! 2. Starts: each flow's choice at those prices, its cheapest choice, and the plans of other
//!    solvers given to it.
//! 3. Local search from each start: flows change paths, relays and offers close and open, evaluated
//!    by score plus priced cost; then the plan is repaired to meet the budget and the rest of the
//!    budget is spent ([`moves`]). Seeded random perturbations ("kicks") and ruin and recreate
//!    ([`recreate`]) follow until the limits, until bound and plan meet, or until nothing improves.
//! 4. Small problems are given to an exact solver first.
//!
//! All of it is deterministic: the same problem and work give the same plan.

use tradewind_units::{Duration, Money};

use super::obstacle::{Obstacle, infeasible, obstacle};
use super::{Exhaustive, Limits, SolveError, Solver, Work};
use crate::candidates::safely;
use crate::packing::{pack, relays_used};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};
use dual::{Ascent, Bound};
pub(super) use margins::Margins;
use recreate::Recreate;
use search::Search;
use state::State;
use table::Table;

mod branch;
mod dual;
mod margins;
mod moves;
mod pricing;
mod recreate;
mod search;
mod state;
mod table;

/// An exact solver and the size of problem that it is used for.
#[derive(Clone, Copy)]
pub struct EndGame<'a> {
    /// The solver. A plan that it returns without error must be optimal.
    pub solver: &'a dyn Solver,
    /// The most flows.
    pub flows: usize,
    /// The most candidates of all flows together.
    pub candidates: usize,
    /// Its most steps; never more than half of `LagrangianSearch`'s.
    pub work: u64,
}

/// The search by Lagrangian prices, a part of `auto` (`super::portfolio`). It needs no other
/// solvers: see `LagrangianSearch::default()`.
#[derive(Clone, Copy)]
pub struct LagrangianSearch<'a> {
    /// Solvers whose plans are starts; `LagrangianSearch` is never worse than any of them.
    pub starters: &'a [&'a dyn Solver],
    /// Exact solvers, tried in turn on problems that are small enough for them.
    pub end_games: &'a [EndGame<'a>],
}

/// [`Exhaustive`], for problems on which it is quick.
const EXHAUSTIVE: EndGame<'static> =
    EndGame { solver: &Exhaustive, flows: 8, candidates: 240, work: 60_000 };

impl Default for LagrangianSearch<'static> {
    fn default() -> Self {
        Self { starters: &[], end_games: &[EXHAUSTIVE] }
    }
}

/// The number of flows up to which the search also starts from the cheapest plan. Chosen: from
/// there it takes long.
const MAX_FLOWS_FROM_CHEAPEST: usize = 1_000;

/// Kicks without improvement until the search goes on to branching, and until it ends. Chosen.
const FIRST_KICKS: u32 = 400;
const MAX_KICKS: u32 = 3_000;

/// Rounds of ruin and recreate without improvement until that search ends. Chosen by trial.
const IDLE_ROUNDS: u32 = 4;

/// Flows times changes of a set of relays by one up to which they are ruined and recreated. Chosen:
/// with more a round takes many seconds.
const MAX_SET_CHANGES: usize = 3_000_000;

/// The most rounds of the ascent. Chosen: later ones win less than a thousandth.
const MAX_ROUNDS: u64 = 4_000;

/// Rounds between two checks of an ascent's progress, the least relative rise that counts as
/// progress, and the checks without progress until the ascent ends. Chosen by trial.
const STRETCH: u64 = 50;
const MIN_RISE: f64 = 1e-5;
const MAX_IDLE_STRETCHES: u32 = 2;

/// The most options evaluated in sum over all rounds. Chosen: a third of ten seconds.
const MAX_OPTIONS: u64 = 100_000_000;

impl Solver for LagrangianSearch<'_> {
    fn name(&self) -> &'static str {
        "lagrangian"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        if problem.objective() == Objective::Makespan {
            return super::makespan::solve(self, problem, limits);
        }
        self.survey(problem, limits, Effort::Full).found
    }
}

/// The effort of [`LagrangianSearch`] when its limits allow more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Stops early: other solvers go on from its plan.
    Brief,
    /// Goes on until nothing improves.
    Full,
}

/// A plan, if there is one, and the candidates' reduced costs.
pub(super) struct Survey {
    pub(super) found: Result<Plan, SolveError>,
    /// None where an exact solver made the plan, or where no relay can carry a flow without a
    /// direct path.
    pub(super) margins: Option<Margins>,
}

impl Survey {
    fn without_margins(found: Result<Plan, SolveError>) -> Self {
        Self { found, margins: None }
    }
}

impl LagrangianSearch<'_> {
    /// Plans for the sum of completion times or for the cost.
    pub(super) fn survey(&self, problem: &Problem, limits: &Limits<'_>, effort: Effort) -> Survey {
        if let Some(plan) = self.exact(problem, limits) {
            return Survey::without_margins(Ok(Plan { solver: "lagrangian".to_owned(), ..plan }));
        }
        let Some(table) = Table::new(problem) else {
            return Survey::without_margins(Err(infeasible(problem)));
        };
        let plans = self.starts(problem, limits);
        let mut work = Work::new(limits);
        let mut ascent = Ascent::new(&table);
        let half = limits.time_left.map(|left| left() / 2);
        let is_late = || limits.time_left.zip(half).is_some_and(|(left, half)| left() < half);
        let should_stop = || (limits.should_stop)() || is_late();
        let mut proving = Work::new(&Limits { should_stop: &should_stop, ..*limits });
        let mut bound = bound(problem, &table, &mut ascent, &mut proving);
        work.left = proving.left;
        let margins = Some(Margins::new(problem, &table, &bound));
        let mut search = Search::new(&table, bound.prices.lambda);
        search.fall_back(&cheapest(&table));
        for choices in starting_choices(problem, &table, &bound, &plans) {
            search.start(&choices, &mut work);
        }
        let changes = table.supplies.len().pow(2).saturating_mul(table.flows());
        if changes <= MAX_SET_CHANGES {
            let recreate = Recreate::new(&table, search.lambda);
            recreate.improve(&mut search, IDLE_ROUNDS, bound.least, &mut work);
        }
        search.kick(FIRST_KICKS, bound.least, &mut work);
        if effort == Effort::Full {
            if !problem.leaves_out() {
                let mut best = |choices: &[usize], work: &mut Work<'_>| {
                    search.start(choices, work);
                    let within = search.best.as_ref().filter(|best| best.key().over_budget == 0);
                    within.map_or(f64::INFINITY, value)
                };
                branch::raise(&table, &mut ascent, &mut bound, &mut best, &mut work);
            }
            search.kick(MAX_KICKS, bound.least, &mut work);
        }
        bound.least = bound.least.max(0.0);
        Survey { found: finish(problem, search.best, plans, &bound), margins }
    }

    /// Returns the optimal plan, where an exact solver finds it.
    fn exact(&self, problem: &Problem, limits: &Limits<'_>) -> Option<Plan> {
        let flows = problem.flows().len();
        let candidates: usize = (0..flows).map(|flow| problem.candidates(flow).len()).sum();
        let fits = |game: &&EndGame<'_>| {
            flows <= game.flows && candidates <= game.candidates && !problem.leaves_out()
        };
        self.end_games.iter().filter(fits).find_map(|game| {
            let work = game.work.min(limits.work / 2);
            game.solver
                .solve(problem, &limits.with_work(work))
                .ok()
                .filter(|plan| plan.cost <= problem.budget())
        })
    }

    /// Returns the starters' plans that are within the budget.
    fn starts(&self, problem: &Problem, limits: &Limits<'_>) -> Vec<Plan> {
        let plans =
            self.starters.iter().filter_map(|starter| match starter.solve(problem, limits) {
                Ok(plan) => Some(plan),
                Err(SolveError::WorkLimit { best, .. }) => best.map(|plan| *plan),
                Err(_) => None,
            });
        plans.filter(|plan| plan.cost <= problem.budget()).collect()
    }
}

/// Returns a state's objective: seconds, or dollars where cost alone is minimised.
fn value(state: &State<'_>) -> f64 {
    if state.table.costs_only { state.cost as f64 / 1e9 } else { state.score_s }
}

/// Returns the lower bound, over all paths, those included that are no candidates.
fn bound(problem: &Problem, table: &Table, ascent: &mut Ascent<'_>, work: &mut Work<'_>) -> Bound {
    let rounds = MAX_ROUNDS.min(MAX_OPTIONS / table.len().max(1) as u64).max(20);
    let affordable = work.left / 3 / (table.flows() as u64 / 8 + 1);
    let mut left = rounds.min(affordable);
    let mut idle = 0;
    while left > 0 && idle < MAX_IDLE_STRETCHES {
        let before = ascent.best.least;
        ascent.run(STRETCH.min(left), f64::INFINITY, work);
        left = left.saturating_sub(STRETCH);
        let rose = ascent.best.least - before > MIN_RISE * ascent.best.least.abs();
        idle = if rose { 0 } else { idle + 1 };
    }
    let mut bound = ascent.best.clone();
    if problem.leaves_out() {
        bound.least = pricing::bound_over_all(problem, table, &bound.prices);
    }
    bound
}

/// Returns each flow's cheapest choice.
fn cheapest(table: &Table) -> Vec<usize> {
    let cheapest = |flow: usize| {
        let all = table.of(flow).iter().enumerate();
        all.min_by_key(|(_, choice)| (choice.cost, choice.hops())).map_or(0, |(index, _)| index)
    };
    (0..table.flows()).map(cheapest).collect()
}

/// Returns the choices that the search starts from.
fn starting_choices(
    problem: &Problem,
    table: &Table,
    bound: &Bound,
    plans: &[Plan],
) -> Vec<Vec<usize>> {
    let few = table.flows() <= MAX_FLOWS_FROM_CHEAPEST;
    let cheapest = few.then(|| cheapest(table));
    let given = plans.iter().filter_map(|plan| choices_of(problem, table, plan));
    [bound.choices.clone()].into_iter().chain(cheapest).chain(given).collect()
}

/// Returns the choices of a plan made elsewhere; `None` when it uses a path that is no candidate,
/// or one that no relay can carry.
fn choices_of(problem: &Problem, table: &Table, plan: &Plan) -> Option<Vec<usize>> {
    let choice = |(flow, place): (usize, usize)| {
        table.of(flow).iter().position(|choice| choice.place as usize == place)
    };
    plan.choice_in(problem)?.into_iter().enumerate().map(choice).collect()
}

/// Returns the best of the search's plan and those given, with the proven bound.
fn finish(
    problem: &Problem,
    best: Option<State<'_>>,
    plans: Vec<Plan>,
    bound: &Bound,
) -> Result<Plan, SolveError> {
    let own = best.and_then(|state| {
        let place = |flow: usize| state.choice(flow).place as usize;
        let choice: Vec<usize> = (0..problem.flows().len()).map(place).collect();
        let packing = |offer: usize, users: &[usize], rates: &[u64]| {
            let own = state.packing(offer, users);
            let new = pack(rates, problem.offers()[offer].capacity_bps());
            new.into_iter().chain([own]).min_by_key(|packing| relays_used(packing))
        };
        Plan::from_packing(problem, &choice, packing, "lagrangian", Duration::ZERO)
    });
    let all = own.into_iter().chain(plans).filter(|plan| plan.cost <= problem.budget());
    let best = all.min_by_key(|plan| plan.score(problem));
    let costs_only = problem.objective() == Objective::Cost;
    let (least, least_cost) = if costs_only {
        (
            Duration::ZERO,
            Money::from_usd((bound.least * (1.0 - 1e-12) - 2e-9).max(0.0)).unwrap_or_default(),
        )
    } else {
        (safely(bound.least), Money::ZERO)
    };
    let Some(plan) = best else {
        return Err(without_plan(problem, least, least_cost));
    };
    let (score, cost) = plan.score(problem);
    Ok(Plan {
        solver: "lagrangian".to_owned(),
        bound: least.min(score),
        bound_cost: least_cost.min(cost),
        ..plan
    })
}

/// Returns the reason why there is no plan, or that none was found.
fn without_plan(problem: &Problem, least: Duration, least_cost: Money) -> SolveError {
    let budget = problem.budget();
    // The bound holds for all paths, the other reasons for the candidates only.
    let seen = obstacle(problem).filter(|_| !problem.leaves_out());
    let bound = Obstacle::Bound { least: least_cost, budget };
    match seen.or((least_cost > budget).then_some(bound)) {
        Some(obstacle) => SolveError::Infeasible(obstacle),
        None => SolveError::WorkLimit { best: None, bound: least },
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::StartUp;
    use tradewind_model::cost::Prices;
    use tradewind_units::PricePerGb;

    use super::*;
    use crate::candidates::example;
    use crate::problem::{Inputs, LegEnd};
    use crate::solver::Exhaustive;

    #[test]
    fn cheapest_of_equally_fast_plans_is_kept() {
        // The flow takes as long over each region, and pays the more the higher its number.
        let mut inputs = example::problem(3, StartUp::Ignored).inputs().clone();
        inputs.max_relays = 1;
        for ((from, to), leg) in &mut inputs.legs {
            let is_direct = matches!((from, to), (LegEnd::Site(_), LegEnd::Site(_)));
            leg.rtt = Duration::from_millis(if is_direct { 300 } else { 40 });
        }
        let price = |at: usize| PricePerGb::from_usd_per_gb(at as f64).unwrap();
        let pairs = inputs.regions.iter().enumerate();
        let pairs = pairs.map(|(at, region)| ((region.clone(), None), price(at))).collect();
        let otherwise = Box::new(inputs.prices.clone());
        inputs.prices = Prices::Stated { pairs, otherwise };
        let over = |at: usize| {
            let regions = vec![inputs.regions[at].clone()];
            let alone = Problem::new(Inputs { regions, ..inputs.clone() }).unwrap();
            Exhaustive.solve(&alone, &Limits::work(1_000_000)).unwrap()
        };
        let (cheap, dear) = (over(1), over(4));
        let problem = Problem::new(inputs.clone()).unwrap();
        let [best, other] = [&cheap, &dear].map(|plan| plan.score(&problem));
        assert!(best.0 == other.0 && best.1 < other.1, "{best:?}, {other:?}");
        let table = Table::new(&problem).unwrap();
        let bound = Ascent::new(&table).best;
        for plans in [[&cheap, &dear], [&dear, &cheap]] {
            let plans = plans.map(Clone::clone).to_vec();
            let retained = finish(&problem, None, plans, &bound).unwrap();
            assert_eq!(retained.score(&problem), best);
        }
    }
}
