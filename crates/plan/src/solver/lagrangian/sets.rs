//! Local search over the number of relays of each offer, within the budget.
//!
//! If setting up a relay is expensive and transfer is cheap, the set of relays determines the
//! plan: where not all flows fit, those go first that gain most for the capacity that they take, as
//! in a knapsack. Moves evaluated at a price of money do not find such sets, for the budget buys
//! whole relays only. So here a set is changed by one relay: added, dropped or swapped. Each set is
//! evaluated by letting the flows choose in turn, within its relays' capacity; money below the
//! budget has no value. From local optima the search continues after a few random changes, as long
//! as they help (iterated local search; swaps as for p-medians: [Teitz and Bart 1968]).

use super::search::Search;
use super::state::State;
use super::table::{Choice, Table};
use crate::problem::MAX_RELAYS;
use crate::solver::Work;

/// The penalty on a dollar above the budget, as a multiple of its price. Chosen.
const OVER: f64 = 3.0;

/// The number of flows that count as a step of work. Chosen: a step is then as long as elsewhere.
const FLOWS_A_STEP: usize = 8;

/// The most random changes of a kick. Chosen by trial.
const MOST_CHANGES: usize = 4;

/// Kicks after which the search returns to the best set. Chosen.
const KICKS_BEFORE_RETURN: u32 = 10;

/// The number of relays of each offer.
type Set = Vec<usize>;

/// The choices and the objective that a set gives.
struct Outcome {
    choices: Vec<usize>,
    value: f64,
}

/// The charges for filling a relay, in set-ups of it, when flows choose. Chosen by trial: the best
/// one differs from set to set.
const FILLED: [f64; 4] = [0.5, 0.0, 1.0, 2.0];

/// The order in which flows choose, and their preferences.
struct Turn {
    /// Each flow's choices, the best first.
    ranked: Vec<Vec<u32>>,
    /// The flows, those first that gain most for the capacity that they take.
    order: Vec<usize>,
}

impl Turn {
    fn new(table: &Table, lambda: f64, filled: f64) -> Self {
        let fills = |choice: &Choice| -> f64 {
            let part = |relay: usize| {
                let supply = &table.supplies[relay];
                supply.set_up_usd.max(1e-9) * choice.rate as f64 / supply.capacity as f64
            };
            choice.relays().map(part).sum()
        };
        let value =
            |choice: &Choice| choice.score_s + lambda * (choice.usd + filled * fills(choice));
        let rank = |flow: usize| {
            let all = table.of(flow);
            let of = |index: &u32| value(&all[*index as usize]);
            let mut ranked: Vec<u32> = (0..all.len() as u32).collect();
            ranked.sort_by(|a, b| of(a).total_cmp(&of(b)).then(a.cmp(b)));
            ranked
        };
        let ranked: Vec<Vec<u32>> = (0..table.flows()).map(rank).collect();
        let density = |flow: &usize| {
            let of = |index: Option<&u32>| index.map(|index| &table.of(*flow)[*index as usize]);
            let (Some(best), Some(worst)) = (of(ranked[*flow].first()), of(ranked[*flow].last()))
            else {
                return 0.0;
            };
            (value(worst) - value(best)) / if filled > 0.0 { fills(best).max(1e-9) } else { 1.0 }
        };
        let mut order: Vec<usize> = (0..table.flows()).collect();
        order.sort_by(|a, b| density(b).total_cmp(&density(a)).then(a.cmp(b)));
        Self { ranked, order }
    }
}

/// The local search over sets.
pub(super) struct Sets<'t> {
    table: &'t Table,
    lambda: f64,
    turns: Vec<Turn>,
    /// The index in `turns` of the one in use.
    now: usize,
}

/// The index of the zero in [`FILLED`].
const UNFILLED: usize = 1;

impl<'t> Sets<'t> {
    pub(super) fn new(table: &'t Table, lambda: f64) -> Self {
        let turns = FILLED.map(|filled| Turn::new(table, lambda, filled)).into();
        Self { table, lambda, turns, now: 0 }
    }

    /// Searches from the best plan on until `most_idle` kicks in a row have not helped.
    pub(super) fn improve(
        mut self,
        search: &mut Search<'t>,
        most_idle: u32,
        least: f64,
        work: &mut Work<'_>,
    ) {
        let Some(best) = &search.best else { return };
        let mut best_set: Set = (0..self.table.supplies.len()).map(|at| best.used(at)).collect();
        let mut best_value = f64::INFINITY;
        let mut now = best_set.clone();
        let mut idle = 0;
        loop {
            let value = self.serve(&now, work).map_or(f64::INFINITY, |outcome| outcome.value);
            let now_value = self.descend(search, &mut now, value, work);
            self.keep(search, &now, work);
            if now_value < best_value {
                (best_set, best_value) = (now.clone(), now_value);
                idle = 0;
            }
            if work.stopped || idle >= most_idle || search.is_at(least) {
                return;
            }
            idle += 1;
            self.now = idle as usize % self.turns.len();
            if idle.is_multiple_of(KICKS_BEFORE_RETURN) || now_value > best_value {
                now = best_set.clone();
            }
            for _ in 0..1 + search.below(MOST_CHANGES) {
                self.change_at_random(search, &mut now);
            }
        }
    }

    /// Changes the set by one relay as long as that helps; returns the value that it then has.
    fn descend(
        &self,
        search: &mut Search<'t>,
        set: &mut Set,
        mut value: f64,
        work: &mut Work<'_>,
    ) -> f64 {
        let offers = set.len();
        // Each pair of an offer that loses a relay and one that gets it, or none.
        let mut pairs: Vec<(usize, usize)> =
            (0..=offers).flat_map(|from| (0..=offers).map(move |to| (from, to))).collect();
        let mut tried = 0;
        let mut at = 0;
        while tried < pairs.len() && !work.stopped {
            if at == 0 {
                search.shuffle(&mut pairs);
            }
            let (from, to) = pairs[at];
            (at, tried) = ((at + 1) % pairs.len(), tried + 1);
            if from == to || !self.may_change(set, from, to) {
                continue;
            }
            let before = set.clone();
            change(set, from, to);
            let found = self.serve(set, work).map(|outcome| outcome.value);
            match found.filter(|found| *found < value * (1.0 - 1e-9)) {
                Some(found) => (value, tried) = (found, 0),
                None => *set = before,
            }
        }
        value
    }

    /// Returns whether there is a relay to drop, and money for the one to add.
    fn may_change(&self, set: &Set, from: usize, to: usize) -> bool {
        let gives = from == set.len() || set[from] > self.table.supplies[from].running;
        let gets = to == set.len() || set[to] < self.table.flows();
        let mut after = set.clone();
        if !gives || !gets {
            return false;
        }
        change(&mut after, from, to);
        self.table.costs_only || self.cost(&after) <= self.table.budget || to == set.len()
    }

    fn cost(&self, set: &Set) -> i64 {
        let supplies = self.table.supplies.iter().zip(set);
        supplies.map(|(supply, count)| supply.cost_of(*count)).sum()
    }

    fn change_at_random(&self, search: &mut Search<'t>, set: &mut Set) {
        let offers = set.len();
        let open: Vec<usize> =
            (0..offers).filter(|at| set[*at] > self.table.supplies[*at].running).collect();
        let from = if open.is_empty() { offers } else { open[search.below(open.len())] };
        let to = search.below(offers);
        if from != to && self.may_change(set, from, to) {
            change(set, from, to);
        }
    }

    /// Makes a plan of the set and keeps it if it is the best.
    fn keep(&self, search: &mut Search<'t>, set: &Set, work: &mut Work<'_>) {
        if let Some(outcome) = self.serve(set, work) {
            search.settle(State::new(self.table, &outcome.choices), self.lambda, work);
        }
    }

    /// Returns the outcome when the flows choose in turn, twice; none where one of them does not
    /// fit, or when no work is left.
    fn serve(&self, set: &Set, work: &mut Work<'_>) -> Option<Outcome> {
        if !(0..=self.table.flows() / FLOWS_A_STEP).all(|_| work.step()) {
            return None;
        }
        let mut rooms: Vec<Vec<u64>> = (self.table.supplies.iter().zip(set))
            .map(|(supply, count)| vec![supply.capacity; *count])
            .collect();
        let mut choices = vec![None; self.table.flows()];
        let turn = &self.turns[self.now];
        for flow in &turn.order {
            choices[*flow] = Some(self.take(*flow, &turn.ranked[*flow], &mut rooms)?);
        }
        for flow in &turn.order {
            let (choice, numbers) = choices[*flow].take()?;
            let taken = &self.table.of(*flow)[choice];
            for (relay, number) in taken.relays().zip(&numbers) {
                rooms[relay][*number as usize] += taken.rate;
            }
            let ranked = &self.turns[UNFILLED].ranked[*flow];
            choices[*flow] = Some(self.take(*flow, ranked, &mut rooms)?);
        }
        let choices: Vec<usize> = choices.into_iter().flatten().map(|(choice, _)| choice).collect();
        let (mut score_s, mut cost) = (0.0, self.cost_in_use(set, &rooms));
        for (flow, choice) in choices.iter().enumerate() {
            let choice = &self.table.of(flow)[*choice];
            (score_s, cost) = (score_s + choice.score_s, cost + choice.cost);
        }
        let value = if self.table.costs_only {
            cost as f64 / 1e9
        } else {
            let over = (cost - self.table.budget).max(0) as f64 / 1e9;
            // Breaks ties in score by cost.
            score_s + self.lambda * (OVER * over + 1e-6 * cost as f64 / 1e9)
        };
        Some(Outcome { choices, value })
    }

    /// Returns the cost of the relays in use.
    fn cost_in_use(&self, set: &Set, rooms: &[Vec<u64>]) -> i64 {
        let of = |at: usize| {
            let supply = &self.table.supplies[at];
            let used = rooms[at].iter().filter(|room| **room < supply.capacity).count();
            supply.cost_of(used)
        };
        (0..set.len()).map(of).sum()
    }

    /// Returns the flow's first choice that fits, with the fullest relays that have the capacity.
    fn take(
        &self,
        flow: usize,
        ranked: &[u32],
        rooms: &mut [Vec<u64>],
    ) -> Option<(usize, [u32; MAX_RELAYS])> {
        for choice in ranked {
            let taken = &self.table.of(flow)[*choice as usize];
            let mut numbers = [0; MAX_RELAYS];
            let has_room = taken.relays().zip(&mut numbers).all(|(relay, number)| {
                let roomy =
                    rooms[relay].iter().enumerate().filter(|(_, room)| **room >= taken.rate);
                let fullest = roomy.min_by_key(|(at, room)| (**room, *at));
                fullest.map(|(at, _)| *number = at as u32).is_some()
            });
            if has_room {
                for (relay, number) in taken.relays().zip(&numbers) {
                    rooms[relay][*number as usize] -= taken.rate;
                }
                return Some((*choice as usize, numbers));
            }
        }
        None
    }
}

/// Moves a relay; the index after the last offer stands for none.
fn change(set: &mut Set, from: usize, to: usize) {
    if let Some(count) = set.get_mut(from) {
        *count -= 1;
    }
    if let Some(count) = set.get_mut(to) {
        *count += 1;
    }
}
