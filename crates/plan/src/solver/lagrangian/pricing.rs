//! Pricing: the lower bound over all paths, where a problem's candidates are only some of them.

use tradewind_model::StartUp;

use super::dual::Prices;
use super::table::{Choice, Table};
use crate::candidates::{PartialPath, Tables, depth};
use crate::problem::Problem;

/// Returns the bound that the prices prove when each flow may take any path.
///
/// A path that is not a candidate counts with a lower bound on its time, so the bound holds for it
/// too.
pub(super) fn bound_over_all(problem: &Problem, table: &Table, prices: &Prices) -> f64 {
    let tables = Tables::new(problem);
    let depth = depth(problem);
    let of = |flow: usize| {
        let value = |choice: &Choice| choice.score_s + prices.lambda * prices.usd(table, choice);
        let least_of_candidates = table.of(flow).iter().map(value).fold(f64::INFINITY, f64::min);
        match problem.left_out(flow) {
            Some(_) => LeftOut::new(problem, &tables, table, prices, flow).best(
                &tables,
                depth,
                least_of_candidates,
            ),
            None => least_of_candidates,
        }
    };
    let total: f64 = (0..table.flows()).map(of).sum();
    // A candidate's rate is rounded to whole bits a second, which is less than a billionth of it.
    total * (1.0 - 1e-8) - prices.lambda * prices.given_usd(table)
}

/// The paths of one flow that are left out of its candidates.
struct LeftOut<'a> {
    problem: &'a Problem,
    flow: usize,
    lambda: f64,
    /// The weight of a second.
    weight: f64,
    /// Dollars for passing an offer, and for each byte a second through it.
    passing: Vec<f64>,
    filling: Vec<f64>,
    volume: f64,
    limit_s: f64,
}

impl<'a> LeftOut<'a> {
    fn new(
        problem: &'a Problem,
        tables: &Tables<'_>,
        table: &Table,
        prices: &Prices,
        flow: usize,
    ) -> Self {
        let offers = 0..table.supplies.len();
        let ends = &problem.flows()[flow];
        let mut passing: Vec<f64> =
            offers.clone().map(|k| prices.charge(table, k, 0.0, 0)).collect();
        for (k, share) in prices.shares(table, flow) {
            passing[k] = prices.charge(table, k, share, 0);
        }
        // Charges are linear in the rate.
        let filling = |k: usize| {
            let capacity = table.supplies[k].capacity;
            let whole = prices.charge(table, k, 0.0, capacity) - prices.charge(table, k, 0.0, 0);
            whole * 8.0 / capacity as f64
        };
        let filling = offers.map(filling);
        let direct = problem.direct_fct(flow).filter(|_| tables.of(flow).direct_is_cheapest());
        let limit = direct.into_iter().chain(ends.deadline).min();
        Self {
            filling: filling.collect(),
            passing,
            problem,
            flow,
            lambda: prices.lambda,
            weight: if table.costs_only { 0.0 } else { f64::from(ends.weight) },
            volume: ends.volume.as_u64() as f64,
            limit_s: limit.map_or(f64::INFINITY, |limit| limit.as_secs_f64()),
        }
    }

    /// Returns the least value of the flow's paths; the candidates' least is `least_of_candidates`.
    fn best(&self, tables: &Tables<'_>, depth: usize, least_of_candidates: f64) -> f64 {
        let tables = tables.of(self.flow);
        let mut best = least_of_candidates;
        let worth_s =
            if self.weight > 0.0 { least_of_candidates / self.weight } else { f64::INFINITY };
        let limit_s = self.limit_s.min(worth_s);
        tables.visit(depth, limit_s, &mut |path| {
            let value = self.value(path);
            if value < best && !self.is_candidate(path) {
                best = value;
            }
            limit_s
        });
        if depth < self.problem.max_relays() {
            let (least_s, usd) = tables.least_of_any();
            best = best.min(self.weight * least_s + self.lambda * usd * (depth + 1) as f64);
        }
        best
    }

    /// Returns a lower bound on the value of the path over these relays.
    fn value(&self, path: &PartialPath) -> f64 {
        let (mut usd, mut filling) = (path.egress_usd, 0.0);
        for relay in path.relays() {
            usd += self.passing[usize::from(*relay)];
            filling += self.filling[usize::from(*relay)];
        }
        let rate_price = self.lambda * filling * self.volume;
        // A slower path takes less capacity: the time between the least and the limit at which the
        // sum of both is least.
        let fct_s = match self.problem.inputs().start_up {
            StartUp::Ignored => path.least_s,
            StartUp::Cold | StartUp::Warm if self.weight > 0.0 => {
                (rate_price / self.weight).sqrt().min(self.limit_s).max(path.least_s)
            }
            StartUp::Cold | StartUp::Warm => self.limit_s.max(path.least_s),
        };
        // Without a limit, the time of a path whose seconds have no weight is infinite.
        let waiting = if self.weight > 0.0 { self.weight * fct_s } else { 0.0 };
        waiting + self.lambda * usd + rate_price / fct_s
    }

    fn is_candidate(&self, path: &PartialPath) -> bool {
        let same = |relays: &[usize]| {
            relays.iter().copied().eq(path.relays().iter().map(|relay| usize::from(*relay)))
        };
        self.problem.candidates(self.flow).iter().any(|candidate| same(&candidate.relays))
    }
}

#[cfg(test)]
mod tests {
    use super::super::dual::Ascent;
    use super::*;
    use crate::candidates::example;
    use crate::solver::{Limits, Work};

    #[test]
    fn path_price_never_exceeds_candidate_price() {
        for seed in 0..40 {
            for start_up in [StartUp::Ignored, StartUp::Cold, StartUp::Warm] {
                let problem = example::problem(seed, start_up);
                let table = Table::new(&problem).unwrap();
                let mut ascent = Ascent::new(&table);
                ascent.run(30, f64::INFINITY, &mut Work::new(&Limits::work(10_000)));
                let mut prices = ascent.best.prices;
                prices.lambda = 1.0 + seed as f64;
                let tables = Tables::new(&problem);
                let left_out = LeftOut::new(&problem, &tables, &table, &prices, 0);
                tables.of(0).visit(2, f64::INFINITY, &mut |path| {
                    let same = |choice: &&Choice| {
                        choice.relays().eq(path.relays().iter().map(|relay| usize::from(*relay)))
                    };
                    if let Some(choice) = table.of(0).iter().find(same) {
                        let value = choice.score_s + prices.lambda * prices.usd(&table, choice);
                        let priced = left_out.value(path);
                        assert!(priced <= value * (1.0 + 1e-7), "{seed}: {priced}, {value}");
                    }
                    f64::INFINITY
                });
            }
        }
    }
}
