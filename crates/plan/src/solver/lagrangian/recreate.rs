//! Ruin and recreate: flows of a few relays are removed from the plan, a relay is opened elsewhere,
//! and the flows choose again, one after another, among the relays that are open.
//!
//! If setting up a relay is expensive and transfer is cheap, the set of relays and their packing
//! determine the plan. Moves evaluated at a price of money do not find such sets, for the budget
//! buys whole relays only, and a set is worth what its best packing is worth. So here both change
//! together, within the budget; a step takes some microseconds, and worse plans are accepted as in
//! simulated annealing.
//!
//! Source: [Schrimpf et al. 2000: Record breaking optimization results using the ruin and recreate
//! principle]; random skips of the best choice as in [Christiaens and Vanden Berghe 2020].

use super::search::Search;
use super::state::{Assignment, State};
use super::table::{Choice, Table};
use super::value;
use crate::solver::Work;

/// Steps of a round, each of which begins with the best plan and cools from [`HOT`] to [`COLD`],
/// relative to the plan's value. Chosen by trial.
const ROUND: u64 = 25_000;
const HOT: f64 = 6e-3;
const COLD: f64 = 6e-5;

/// One step in so many detaches flows alone, one exchanges two relays, and the others one. Chosen
/// by trial, as the next three are.
const KINDS: usize = 8;

/// The most flows that are detached at random beside those of a relay, and alone.
const MAX_BESIDE: usize = 3;
const MAX_ALONE: usize = 6;

/// Probability of skipping a choice that fits, in percent.
const SKIPS: usize = 2;

/// The range of the random factor on a flow's gain when flows are ordered.
const MIN_FACTOR: f64 = 0.6;
const MAX_FACTOR: f64 = 1.4;

/// The most flows drawn to a relay that is opened. Chosen: more than fit into most.
const MAX_DRAWN: usize = 12;

/// Flows that count as a step of work. Chosen: a step is then as long as elsewhere.
const FLOWS_A_STEP: usize = 16;

/// Factors on the price of money when a plan is above the budget and when it is within. Chosen:
/// they balance where one plan of several is above.
const DEARER: f64 = 1.01;
const CHEAPER: f64 = 0.998;

/// The price of money changes the order of choices once it has changed by this factor.
const REORDERED: f64 = 1.05;

/// The search by ruin and recreate.
pub(super) struct Recreate<'t> {
    table: &'t Table,
    /// Seconds a dollar of transfer.
    lambda: f64,
    /// Each flow's choices at `ranked_at` seconds a dollar, the best first.
    ranked: Vec<Vec<u32>>,
    ranked_at: f64,
    has_prices: bool,
    /// The relays that may be in use, by offer.
    granted: Vec<usize>,
    /// The assignments that the present step has changed, for undoing it.
    changed: Vec<(usize, Assignment)>,
    /// Flows that are detached.
    detached: Vec<usize>,
    is_detached: Vec<bool>,
}

impl<'t> Recreate<'t> {
    pub(super) fn new(table: &'t Table, lambda: f64) -> Self {
        let priced = |flow: usize| table.of(flow).iter().any(|choice| choice.cost != 0);
        let mut new = Self {
            table,
            lambda,
            ranked: Vec::new(),
            ranked_at: lambda,
            has_prices: (0..table.flows()).any(priced),
            granted: vec![0; table.supplies.len()],
            changed: Vec::new(),
            detached: Vec::new(),
            is_detached: vec![false; table.flows()],
        };
        new.rank();
        new
    }

    /// Searches from the best plan on, in rounds, until the work is done, the best plan meets the
    /// bound `least`, or `most_idle` rounds in a row have not helped.
    pub(super) fn improve(
        mut self,
        search: &mut Search<'t>,
        most_idle: u32,
        least: f64,
        work: &mut Work<'_>,
    ) {
        let mut idle = 0;
        loop {
            let Some(best) = search.best.clone() else { return };
            if best.key().over_budget > 0
                || work.stopped
                || search.is_at(least)
                || idle >= most_idle
            {
                return;
            }
            let found = self.round(best.clone(), search, work);
            search.settle(found, search.lambda, work);
            let helped = search.best.as_ref().is_some_and(|now| now.key().is_below(best.key()));
            idle = if helped { 0 } else { idle + 1 };
        }
    }

    /// Returns the best plan within the budget that a round finds.
    fn round(
        &mut self,
        start: State<'t>,
        search: &mut Search<'t>,
        work: &mut Work<'_>,
    ) -> State<'t> {
        let mut state = start.clone();
        let mut best = start;
        let mut heat = HOT * value(&state);
        let cooling = (COLD / HOT).powf(1.0 / ROUND as f64);
        for _ in 0..ROUND {
            let before = (state.score_s, state.cost);
            let now = value(&state);
            self.ruin(&mut state, search);
            let flows = self.detached.len();
            let complete = self.recreate(&mut state, search);
            if !(0..=flows / FLOWS_A_STEP).all(|_| work.step()) {
                self.undo(&mut state, before);
                break;
            }
            let over = !self.table.costs_only && state.cost > self.table.budget;
            if self.has_prices && !self.table.costs_only {
                self.lambda *= if over { DEARER } else { CHEAPER };
                self.rank_anew();
            }
            let bar = now - heat * search.fraction().max(1e-12).ln();
            if !complete || over || value(&state) > bar {
                self.undo(&mut state, before);
            } else {
                self.changed.clear();
                if state.key().is_below(best.key()) {
                    best = state.clone();
                }
            }
            heat *= cooling;
        }
        best
    }

    /// Detaches the flows of one relay or some, and grants another instead; or detaches some flows.
    fn ruin(&mut self, state: &mut State<'t>, search: &mut Search<'t>) {
        for offer in 0..self.granted.len() {
            self.granted[offer] = state.used(offer).max(self.table.supplies[offer].running);
        }
        let relays = match search.below(KINDS) {
            0 => return self.ruin_flows(state, search),
            1 => 2,
            _ => 1,
        };
        for _ in 0..relays {
            self.close_one(state, search);
        }
        for _ in 0..relays {
            self.grant_one(state, search);
        }
        for _ in 0..search.below(MAX_BESIDE + 1) {
            let flow = search.below(self.table.flows());
            self.detach(state, flow);
        }
    }

    /// Detaches some flows of one offer, and some others.
    fn ruin_flows(&mut self, state: &mut State<'t>, search: &mut Search<'t>) {
        let offers: Vec<usize> =
            (0..self.granted.len()).filter(|offer| state.used(*offer) > 0).collect();
        if !offers.is_empty() {
            let offer = offers[search.below(offers.len())];
            for flow in 0..self.table.flows() {
                if state.choice(flow).passes(offer) && search.below(2) == 0 {
                    self.detach(state, flow);
                }
            }
        }
        for _ in 0..=search.below(MAX_ALONE) {
            let flow = search.below(self.table.flows());
            self.detach(state, flow);
        }
    }

    /// Closes a relay that is drawn from those with set-up.
    fn close_one(&mut self, state: &mut State<'t>, search: &mut Search<'t>) {
        let count =
            |offer: usize| self.granted[offer].saturating_sub(self.table.supplies[offer].running);
        let total: usize = (0..self.granted.len()).map(count).sum();
        if total == 0 {
            return;
        }
        let mut at = search.below(total);
        let mut offer = 0;
        while at >= count(offer) {
            at -= count(offer);
            offer += 1;
        }
        self.granted[offer] -= 1;
        let numbers = state.numbers_in_use(offer);
        if numbers.len() <= self.granted[offer] {
            return;
        }
        let number = numbers[search.below(numbers.len())];
        for flow in 0..self.table.flows() {
            if !self.is_detached[flow] && state.number_at(flow, offer) == Some(number) {
                self.detach(state, flow);
            }
        }
    }

    /// Grants one more relay of an offer drawn at random that the budget allows, and detaches the
    /// flows that would gain most by it.
    fn grant_one(&mut self, state: &mut State<'t>, search: &mut Search<'t>) {
        let offer = search.below(self.granted.len());
        let supply = &self.table.supplies[offer];
        let granted: i64 =
            (self.table.supplies.iter().zip(&self.granted)).map(|(s, n)| s.cost_of(*n)).sum();
        let next = supply.cost_of_next(self.granted[offer]);
        if !self.table.costs_only && granted.saturating_add(next) > self.table.budget {
            return;
        }
        self.granted[offer] += 1;
        let most = 1 + search.below(MAX_DRAWN);
        let mut drawn: Vec<(f64, usize)> = Vec::new();
        for (flow, index) in self.table.through(offer) {
            if self.is_detached[flow] {
                continue;
            }
            let choice = &self.table.of(flow)[index];
            let own = state.choice(flow);
            let gain = own.score_s - choice.score_s + self.lambda * (own.usd - choice.usd);
            let last = drawn.last().filter(|last| last.1 == flow);
            let bar = last.map_or(0.0, |last| last.0);
            let is_open = |relay: usize| self.granted[relay] > 0;
            if gain > bar && choice.relays().all(is_open) {
                drawn.pop_if(|last| last.1 == flow);
                drawn.push((gain, flow));
            }
        }
        drawn.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (_, flow) in drawn.into_iter().take(most) {
            self.detach(state, flow);
        }
    }

    fn detach(&mut self, state: &mut State<'t>, flow: usize) {
        if self.is_detached[flow] {
            return;
        }
        self.changed.push((flow, state.detach(flow)));
        self.detached.push(flow);
        self.is_detached[flow] = true;
    }

    /// Attaches the detached flows, those first that gain most; returns whether all have a choice.
    fn recreate(&mut self, state: &mut State<'t>, search: &mut Search<'t>) -> bool {
        let power = [0.0, 0.5, 1.0][search.below(3)];
        let mut order: Vec<(f64, usize)> = Vec::with_capacity(self.detached.len());
        for flow in std::mem::take(&mut self.detached) {
            self.is_detached[flow] = false;
            let all = self.table.of(flow);
            let first = self.first_fit(state, flow, None);
            let worth = first.map_or(f64::INFINITY, |first| {
                let worst = self.ranked[flow].last().map_or(first, |last| *last as usize);
                let gain = self.worth(&all[worst]) - self.worth(&all[first]);
                gain / self.fills(&all[first]).powf(power)
            });
            let factor = MIN_FACTOR + (MAX_FACTOR - MIN_FACTOR) * search.fraction();
            order.push((worth * factor, flow));
        }
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut done = 0;
        for (_, flow) in &order {
            let Some(choice) = self.first_fit(state, *flow, Some(search)) else { break };
            state.attach(*flow, choice);
            done += 1;
        }
        if done == order.len() {
            return true;
        }
        for (_, flow) in &order[..done] {
            state.detach(*flow);
        }
        for (flow, assignment) in self.changed.drain(..) {
            state.attach_at(flow, assignment);
        }
        false
    }

    fn worth(&self, choice: &Choice) -> f64 {
        choice.score_s + self.lambda * choice.usd
    }

    /// Returns the part of its relays that a choice fills.
    fn fills(&self, choice: &Choice) -> f64 {
        let part =
            |relay: usize| choice.rate as f64 / self.table.supplies[relay].capacity.max(1) as f64;
        choice.relays().map(part).sum::<f64>().max(0.02)
    }

    /// Returns the flow's best choice that fits into the granted relays; some are skipped at random
    /// where a generator is given.
    fn first_fit(
        &self,
        state: &State<'t>,
        flow: usize,
        mut search: Option<&mut Search<'t>>,
    ) -> Option<usize> {
        let mut skipped = None;
        for index in &self.ranked[flow] {
            let choice = &self.table.of(flow)[*index as usize];
            if !state.fits_within(choice, &self.granted) {
                continue;
            }
            let skips = search.as_mut().is_some_and(|search| search.below(100) < SKIPS);
            if !skips {
                return Some(*index as usize);
            }
            skipped = skipped.or(Some(*index as usize));
        }
        skipped
    }

    /// Takes back the present step.
    fn undo(&mut self, state: &mut State<'t>, before: (f64, i64)) {
        for (flow, _) in &self.changed {
            state.detach(*flow);
        }
        for (flow, assignment) in self.changed.drain(..) {
            state.attach_at(flow, assignment);
        }
        (state.score_s, state.cost) = before;
    }

    fn rank_anew(&mut self) {
        let factor = self.lambda / self.ranked_at;
        if !(1.0 / REORDERED..REORDERED).contains(&factor) {
            self.rank();
        }
    }

    fn rank(&mut self) {
        self.ranked_at = self.lambda;
        let rank = |flow: usize| {
            let all = self.table.of(flow);
            let of = |index: &u32| self.worth(&all[*index as usize]);
            let mut ranked: Vec<u32> = (0..all.len() as u32).collect();
            ranked.sort_by(|a, b| of(a).total_cmp(&of(b)).then(a.cmp(b)));
            // Later choices without a relay are worse than the first, which always fits.
            if let Some(at) = ranked.iter().position(|at| all[*at as usize].hops() == 0) {
                ranked.truncate(at + 1);
            }
            ranked
        };
        self.ranked = (0..self.table.flows()).map(rank).collect();
    }
}
