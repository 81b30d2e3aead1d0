//! Iterated local search over the moves, from several starts, with kicks out of local optima.

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

use super::state::State;
use super::table::Table;
use crate::solver::Work;

/// Kicks without improvement until the search returns to the best plan. Chosen.
const KICKS_BEFORE_RETURN: u32 = 40;

/// The greatest relative loss of an accepted plan. Chosen.
const MAX_WORSE: f64 = 0.004;

/// Rounds of moves after each start. Chosen: more change little.
const ROUNDS: usize = 3;

/// The seed of the kicks. Any number would do.
const SEED: u128 = 0xcafe_f00d_d15e_a5e5;

/// The state of the local search.
pub(super) struct Search<'t> {
    table: &'t Table,
    /// Seconds a dollar, from the bound's prices.
    pub(super) lambda: f64,
    generator: Pcg64Mcg,
    pub(super) best: Option<State<'t>>,
}

impl<'t> Search<'t> {
    pub(super) fn new(table: &'t Table, lambda: f64) -> Self {
        Self {
            table,
            lambda: lambda.max(least_lambda(table)),
            generator: Pcg64Mcg::new(SEED),
            best: None,
        }
    }

    /// Keeps a plan unchanged: the incumbent when no work is left for more.
    pub(super) fn fall_back(&mut self, choices: &[usize]) {
        self.best = Some(State::new(self.table, choices));
    }

    /// Improves a start and keeps it if it is the best.
    pub(super) fn start(&mut self, choices: &[usize], work: &mut Work<'_>) {
        let mut state = State::new(self.table, choices);
        self.settle(state.clone(), self.lambda, work);
        self.improve(&mut state, self.lambda, ROUNDS, true, work);
        self.settle(state, self.lambda, work);
    }

    /// Kicks and improves until the work is done, the best meets the bound `least`, or `most_idle`
    /// kicks in a row have not helped.
    ///
    /// Continues from a plan that is better or a little worse, and returns to the best after some
    /// kicks without improvement.
    pub(super) fn kick(&mut self, most_idle: u32, least: f64, work: &mut Work<'_>) {
        let Some(mut now) = self.best.clone() else { return };
        let mut idle = 0;
        while let Some(best) = &self.best {
            if work.stopped || idle >= most_idle || self.is_at(least) {
                return;
            }
            let before = best.key();
            if idle > 0 && idle.is_multiple_of(KICKS_BEFORE_RETURN) {
                now = best.clone();
            }
            let mut state = now.clone();
            let lambda = self.lambda * (0.7 * self.fraction() - 0.35).exp();
            self.disturb(&mut state, lambda, work);
            // Pairs take longest and help least often.
            let pairs = self.below(8) == 0;
            self.improve(&mut state, lambda, 1, pairs, work);
            let state = self.settle(state, lambda, work);
            let worse = self.fraction() * MAX_WORSE * now.merit(self.lambda);
            if state.merit(self.lambda) <= now.merit(self.lambda) + worse
                && state.key().over_budget == 0
            {
                now = state;
            }
            let after = self.best.as_ref().map(State::key);
            idle = if after.is_some_and(|after| after.is_below(before)) { 0 } else { idle + 1 };
        }
    }

    /// Returns whether the best plan meets this bound.
    pub(super) fn is_at(&self, least: f64) -> bool {
        let enough = |state: &State<'_>| super::value(state) <= least + 1e-9 * least.abs();
        self.best.as_ref().is_some_and(enough)
    }

    pub(super) fn fraction(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn below(&mut self, count: usize) -> usize {
        (self.fraction() * count as f64) as usize
    }

    /// Closes an offer, lets some flows choose again, or moves some to paths drawn at random.
    fn disturb(&mut self, state: &mut State<'t>, lambda: f64, work: &mut Work<'_>) {
        let flows = self.table.flows();
        match self.below(3) {
            0 => {
                let users = state.users();
                let open: Vec<usize> =
                    (0..users.len()).filter(|offer| !users[*offer].is_empty()).collect();
                if !open.is_empty() {
                    let offer = open[self.below(open.len())];
                    state.reseat(&users[offer], Some(offer), lambda, true, work);
                }
            }
            1 => {
                let count = (flows / 10).clamp(2.min(flows), 300);
                let mut some: Vec<usize> = (0..count).map(|_| self.below(flows)).collect();
                some.sort_unstable();
                some.dedup();
                state.reseat(&some, None, lambda, true, work);
            }
            _ => {
                for _ in 0..1 + flows / 100 {
                    let flow = self.below(flows);
                    let choice = self.below(self.table.of(flow).len());
                    state.detach(flow);
                    state.attach(flow, choice);
                }
            }
        }
    }

    fn improve(
        &self,
        state: &mut State<'t>,
        lambda: f64,
        rounds: usize,
        pairs: bool,
        work: &mut Work<'_>,
    ) {
        for _ in 0..rounds {
            let mut changed = state.descend(lambda, work);
            changed |= state.close(lambda, work);
            changed |= state.open(lambda, pairs, work);
            if !changed || work.stopped {
                return;
            }
        }
    }

    /// Repairs a plan to meet the budget, spends the rest, and keeps it if it is the best.
    pub(super) fn settle(
        &mut self,
        mut state: State<'t>,
        lambda: f64,
        work: &mut Work<'_>,
    ) -> State<'t> {
        state.tidy();
        let mut dearer = lambda;
        for _ in 0..12 {
            if state.cost <= self.table.budget + self.table.budget / 50 || work.stopped {
                break;
            }
            dearer *= 1.1;
            state.descend(dearer, work);
            state.close(dearer, work);
            state.tidy();
        }
        state.cheapen(work);
        state.spend(work);
        let cost = state.cost;
        state.tidy();
        if state.cost < cost {
            state.spend(work);
        }
        if self.best.as_ref().is_none_or(|best| state.key().is_below(best.key())) {
            self.best = Some(state.clone());
        }
        state
    }
}

/// Returns a price of money so small that cost only breaks ties.
fn least_lambda(table: &Table) -> f64 {
    let (mut score_s, mut usd) = (0.0, 0.0);
    for flow in 0..table.flows() {
        score_s += table.of(flow).iter().map(|c| c.score_s).fold(f64::INFINITY, f64::min);
        usd += table.of(flow).iter().map(|c| c.usd).fold(0.0, f64::max);
    }
    let usd = usd + table.supplies.iter().map(|supply| supply.set_up_usd).sum::<f64>();
    if usd > 0.0 { 1e-7 * score_s / usd } else { 0.0 }
}
