//! Fix and optimise: HiGHS improves a plan, a part of the problem at a time.
//!
//! Local search moves a flow, or opens or closes an offer. Where setting up a relay is expensive
//! and transfer is cheap, better plans differ in several offers and most flows at once, and each
//! step towards them is worse. Here some choices are fixed and HiGHS optimises the others:
//!
//! - [`Part::Offers`]: all flows, over the offers in use and some others drawn at random;
//! - [`Part::Flows`]: some flows, which share an offer or are drawn at random, over all offers.
//!
//! Parts grow while HiGHS solves them without finding a better plan, and shrink when it reaches its
//! limits. The incumbent is always retained, so the result is never worse than the start.
//!
//! Source: the matheuristic known as fix-and-optimise or large neighbourhood search [Shaw 1998:
//! Using constraint programming and local search methods to solve vehicle routing problems].

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;
use tradewind_units::{Duration, Money};

use super::aggregated::aggregated_over;
use super::formulation::{Formulation, Pick, Relays, Row};
use super::milp::{self, Answer, Goal, RunLimits, Status, Whole};
use super::{Retained, STEPS_A_NODE, STEPS_AN_ITERATION};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};
use crate::solver::Limits;

/// The seed of the draws. Any number would do.
const SEED: u128 = 0x5eed_0f0f_f1e7_0001;

/// The size of the first, the smallest and the largest parts, in columns. Chosen by trial: HiGHS
/// solves programs of some hundred columns within a tenth of a second.
const FIRST_COLUMNS: f64 = 500.0;
const MIN_COLUMNS: f64 = 60.0;
const MAX_COLUMNS: f64 = 6_000.0;

/// Factors by which a part grows and shrinks. Chosen by trial.
const GROWS: f64 = 1.15;
const SHRINKS: f64 = 0.7;

/// The most nodes of HiGHS's search tree for one part. Chosen: a part that needs more is too large.
const MAX_NODES: u64 = 500;

/// The share of the remaining time and work for one run, and the least time of a run. Chosen: ten
/// runs or so at least, and each has time to begin.
const RUN_SHARE: f64 = 0.1;
const MIN_RUN: Duration = Duration::from_millis(200);

/// The kind of part that is free to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// All flows, over the offers in use and some more.
    Offers,
    /// Some flows, over all offers.
    Flows,
}

/// Improves `start` over the candidates that are `retained`, until the limits end or the plan is
/// proved optimal. Returns the best plan.
pub(in crate::solver) fn improve(
    problem: &Problem,
    start: Plan,
    retained: Retained<'_>,
    limits: &Limits<'_>,
) -> Plan {
    let Some(formulation) = aggregated_over(problem, retained) else { return start };
    let Some(values) = formulation.values_of_any(problem, &start) else { return start };
    let goal = if problem.objective() == Objective::Cost { Goal::Cost } else { Goal::Score };
    let mut search = Search {
        problem,
        formulation,
        goal,
        limits,
        steps: limits.work,
        generator: Pcg64Mcg::new(SEED),
        values,
        best: start,
    };
    search.run();
    search.best
}

struct Search<'a> {
    problem: &'a Problem,
    formulation: Formulation,
    goal: Goal,
    limits: &'a Limits<'a>,
    steps: u64,
    generator: Pcg64Mcg,
    /// The values of the formulation's columns for `best`.
    values: Vec<f64>,
    best: Plan,
}

impl Search<'_> {
    fn run(&mut self) {
        let (mut offers, mut flows) = (FIRST_COLUMNS, FIRST_COLUMNS);
        for turn in 0_u64.. {
            let part = if turn.is_multiple_of(2) { Part::Offers } else { Part::Flows };
            let size = if part == Part::Offers { &mut offers } else { &mut flows };
            let Some(run) = self.next_run() else { return };
            if self.best.is_proved_best(self.problem) {
                return;
            }
            let free = self.draw(part, *size);
            let is_whole = free.iter().all(|free| *free);
            match self.solve(&free, run) {
                // All columns were free: no other part can improve the plan.
                Some(Ended::Solved) if is_whole => return,
                Some(Ended::Better) => {}
                Some(Ended::Solved) => *size = (*size * GROWS).min(MAX_COLUMNS),
                Some(Ended::Cut) => *size = (*size * SHRINKS).max(MIN_COLUMNS),
                None => return,
            }
        }
    }

    /// Returns the limits of the next run; `None` when no run is allowed.
    fn next_run(&self) -> Option<RunLimits> {
        let time = self.limits.time_left.map(|left| left());
        let over = self.steps < STEPS_A_NODE || time.is_some_and(|left| left.is_zero());
        if over || (self.limits.should_stop)() {
            return None;
        }
        let affordable = (self.steps as f64 * RUN_SHARE) as u64 / STEPS_A_NODE;
        let nodes = affordable.clamp(1, MAX_NODES);
        let of = |left: Duration| left.mul_f64(RUN_SHARE).max(MIN_RUN.min(left));
        Some(RunLimits { nodes, time: time.map(of), whole: Whole::All })
    }

    /// Draws the free columns, some `size` of them.
    fn draw(&mut self, part: Part, size: f64) -> Vec<bool> {
        match part {
            Part::Offers => self.draw_offers(size),
            Part::Flows => self.draw_flows(size),
        }
    }

    fn draw_offers(&mut self, size: f64) -> Vec<bool> {
        let count = self.problem.offers().len();
        let mut in_part = self.offers_in_use();
        let mut free = self.columns_over(&in_part);
        let mut closed: Vec<usize> = (0..count).filter(|offer| !in_part[*offer]).collect();
        self.shuffle(&mut closed);
        // At least one more offer, or there is nothing new.
        for (added, offer) in closed.into_iter().enumerate() {
            in_part[offer] = true;
            let more = self.columns_over(&in_part);
            let is_too_many = free_columns(&more) as f64 > size;
            if added > 0 && is_too_many {
                break;
            }
            free = more;
        }
        free
    }

    fn draw_flows(&mut self, size: f64) -> Vec<bool> {
        let mut order: Vec<usize> = (0..self.formulation.picks.len()).collect();
        self.shuffle(&mut order);
        if let Some(offer) = self.some_offer_in_use() {
            // Flows that pass this offer first: only together can they leave it.
            order.sort_by_key(|flow| !self.passes(*flow, offer));
        }
        let mut free = self.counts();
        let mut columns = 0;
        for (placed, flow) in order.into_iter().enumerate() {
            let picks = &self.formulation.picks[flow];
            if placed > 1 && (columns + picks.len()) as f64 > size {
                break;
            }
            columns += picks.len();
            picks.iter().for_each(|pick| free[pick.column] = true);
        }
        free
    }

    /// Returns the offers that the best plan uses, or that need no set-up.
    fn offers_in_use(&self) -> Vec<bool> {
        let mut in_use: Vec<bool> = (self.formulation.relays.iter())
            .map(|relays| match relays {
                Relays::Uncounted => true,
                Relays::Count(column) => self.values[*column] > 0.5,
                Relays::Each(columns) => columns.iter().any(|column| self.values[*column] > 0.5),
            })
            .collect();
        for (offer, running) in self.problem.offers().iter().map(|o| o.running).enumerate() {
            in_use[offer] |= running > 0;
        }
        in_use
    }

    /// Returns the columns of counts, and of the picks that pass these offers alone.
    fn columns_over(&self, offers: &[bool]) -> Vec<bool> {
        let mut free = self.counts();
        for (flow, picks) in self.formulation.picks.iter().enumerate() {
            let all = self.problem.candidates(flow);
            for pick in picks {
                free[pick.column] = all[pick.place].relays.iter().all(|relay| offers[*relay]);
            }
        }
        free
    }

    fn counts(&self) -> Vec<bool> {
        let mut free = vec![false; self.formulation.columns.len()];
        for relays in &self.formulation.relays {
            if let Relays::Count(column) = relays {
                free[*column] = true;
            }
        }
        free
    }

    fn some_offer_in_use(&mut self) -> Option<usize> {
        let relays = self.formulation.relays.iter().enumerate();
        let counted = |(offer, relays): (usize, &Relays)| match relays {
            Relays::Count(column) if self.values[*column] > 0.5 => Some(offer),
            _ => None,
        };
        let in_use: Vec<usize> = relays.filter_map(counted).collect();
        (!in_use.is_empty()).then(|| in_use[self.below(in_use.len())])
    }

    fn passes(&self, flow: usize, offer: usize) -> bool {
        let selected = |pick: &&Pick| self.values[pick.column] > 0.5;
        let selected = self.formulation.picks[flow].iter().find(selected);
        let relays = |pick: &Pick| &self.problem.candidates(flow)[pick.place].relays;
        selected.is_some_and(|pick| relays(pick).contains(&offer))
    }

    /// Solves the program with all but the `free` columns fixed. `None` when HiGHS fails.
    fn solve(&mut self, free: &[bool], run: RunLimits) -> Option<Ended> {
        let reduced = Reduced::new(&self.formulation, &self.values, free);
        let start: Vec<f64> = reduced.columns.iter().map(|column| self.values[*column]).collect();
        let budget = self.problem.budget().checked_sub(reduced.fixed_cost).unwrap_or_default();
        let answer = milp::run(&reduced.formulation, self.goal, budget, Some(&start), run).ok()?;
        let steps = STEPS_A_NODE + STEPS_AN_ITERATION.saturating_mul(answer.iterations);
        self.steps = self.steps.saturating_sub(steps);
        let better = answer.values.as_ref().is_some_and(|values| self.admit(&reduced, values));
        if free_columns(free) == free.len() && !self.problem.leaves_out() {
            self.note_bound(&answer);
        }
        Some(match answer.status {
            _ if better => Ended::Better,
            Status::Limit => Ended::Cut,
            Status::Optimal | Status::Infeasible => Ended::Solved,
        })
    }

    /// Records the bound from this answer to the whole program. It holds for all plans, as no
    /// better one uses a path that the program leaves out.
    fn note_bound(&mut self, answer: &Answer) {
        let (score, cost) = self.best.score(self.problem);
        let optimum = answer.values.as_ref().filter(|_| answer.status == Status::Optimal);
        if self.goal == Goal::Cost {
            let least = Money::from_usd(answer.bound / 1e9).unwrap_or_default();
            let least = optimum.map_or(least, |values| self.formulation.cost(values));
            self.best.bound_cost = self.best.bound_cost.max(least.min(cost));
        } else {
            let above = Duration::from_nanos(answer.bound as u64);
            let least = self.formulation.least_score.saturating_add(above);
            let least = optimum.map_or(least, |values| self.score_of(values));
            self.best.bound = self.best.bound.max(least.min(score));
        }
    }

    /// Returns the score of the paths that these values choose.
    fn score_of(&self, values: &[f64]) -> Duration {
        let choice = self.formulation.choice(values).into_iter().enumerate();
        choice.map(|(flow, place)| self.problem.candidates(flow)[place].score).sum()
    }

    /// Accepts the plan of these values if it is better.
    fn admit(&mut self, reduced: &Reduced, values: &[f64]) -> bool {
        let mut all = self.values.clone();
        for (column, value) in reduced.columns.iter().zip(values) {
            all[*column] = value.round();
        }
        let choice = self.formulation.choice(&all);
        let Some(plan) =
            Plan::from_choice(self.problem, &choice, &self.best.solver, Duration::ZERO)
        else {
            return false;
        };
        let better = plan.cost <= self.problem.budget()
            && plan.score(self.problem) < self.best.score(self.problem);
        if !better {
            return false;
        }
        // The plan's own counts: flows may fit into fewer relays, or need more, than the program
        // counts.
        let Some(values) = self.formulation.values(self.problem, &plan) else { return false };
        self.values = values;
        let (bound, bound_cost) = (self.best.bound, self.best.bound_cost);
        self.best = Plan { bound, bound_cost, ..plan };
        true
    }

    fn below(&mut self, count: usize) -> usize {
        (self.generator.next_u64() % count.max(1) as u64) as usize
    }

    fn shuffle(&mut self, items: &mut [usize]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last + 1);
            items.swap(last, other);
        }
    }
}

/// The end of a run over a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// It found a better plan.
    Better,
    /// It proved that this part has none.
    Solved,
    /// It reached a limit.
    Cut,
}

fn free_columns(free: &[bool]) -> usize {
    free.iter().filter(|free| **free).count()
}

/// A formulation in which some columns are fixed.
struct Reduced {
    formulation: Formulation,
    /// The free columns of the whole formulation, in order.
    columns: Vec<usize>,
    /// The cost of the fixed columns.
    fixed_cost: Money,
}

impl Reduced {
    fn new(whole: &Formulation, values: &[f64], free: &[bool]) -> Self {
        let columns: Vec<usize> = (0..free.len()).filter(|column| free[*column]).collect();
        let mut place = vec![None; free.len()];
        columns.iter().enumerate().for_each(|(at, column)| place[*column] = Some(at));
        let fixed = (0..free.len()).filter(|column| !free[*column]);
        let fixed_cost =
            fixed.map(|column| whole.columns[column].cost.times(values[column] as u64)).sum();
        let rows = whole.rows.iter().filter_map(|row| reduced_row(row, values, &place)).collect();
        let picks = (whole.picks.iter())
            .map(|picks| {
                let left = picks.iter().filter_map(|pick| {
                    place[pick.column].map(|column| Pick { column, ..pick.clone() })
                });
                left.collect()
            })
            .collect();
        let formulation = Formulation {
            columns: columns.iter().map(|column| whole.columns[*column].clone()).collect(),
            rows,
            picks,
            ..Formulation::default()
        };
        Self { formulation, columns, fixed_cost }
    }
}

/// Returns the row without its fixed columns; `None` where no free one is in it.
fn reduced_row(row: &Row, values: &[f64], place: &[Option<usize>]) -> Option<Row> {
    let mut fixed = 0.0;
    let mut terms = Vec::new();
    for (column, factor) in &row.terms {
        match place[*column] {
            Some(at) => terms.push((at, *factor)),
            None => fixed += factor * values[*column],
        }
    }
    (!terms.is_empty()).then_some(Row { least: row.least - fixed, most: row.most - fixed, terms })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tradewind_model::StartUp;
    use tradewind_units::FlowId;

    use super::*;
    use crate::candidates::example;
    use crate::problem::{Flow, Inputs};
    use crate::solver::{Exhaustive, Greedy, Solver};

    /// Returns a problem of three flows of one pair over eight regions, with money for a relay or
    /// two.
    fn problem(seed: u64, objective: Objective) -> Problem {
        let inputs = example::problem(seed, StartUp::Ignored).inputs().clone();
        let flow = |at: u32| Flow {
            id: FlowId::new(format!("f{at}")).unwrap(),
            weight: 1 + (at + seed as u32) % 3,
            ..inputs.flows[0].clone()
        };
        let flows = (0..3).map(flow).collect();
        let budget = Money::from_usd(0.6 + 0.3 * (seed % 4) as f64).unwrap();
        Problem::new(Inputs { flows, budget, objective, ..inputs.clone() }).unwrap()
    }

    #[test]
    fn neighbourhood_of_whole_problem_proves_optimum() {
        for seed in 0..24 {
            let objective = [Objective::TotalFct, Objective::Cost][seed as usize % 2];
            let problem = problem(seed, objective);
            let start = Greedy.solve(&problem, &Limits::work(100_000)).unwrap();
            let start = Plan { bound: Duration::ZERO, bound_cost: Money::ZERO, ..start };
            let asked = AtomicU64::new(0);
            let should_stop = || asked.fetch_add(1, Ordering::Relaxed) >= 500;
            let limits = Limits { should_stop: &should_stop, ..Limits::work(u64::MAX) };
            let plan = improve(&problem, start, &|_, _| true, &limits);
            assert!(asked.load(Ordering::Relaxed) < 500, "seed {seed}: parts go on and on");
            let best = Exhaustive.solve(&problem, &Limits::work(20_000_000)).unwrap();
            assert!(plan.is_proved_best(&problem), "seed {seed}");
            assert_eq!(plan.score(&problem).0, best.score(&problem).0, "seed {seed}");
            if objective == Objective::Cost {
                assert_eq!(plan.cost, best.cost, "seed {seed}");
            }
        }
    }
}
