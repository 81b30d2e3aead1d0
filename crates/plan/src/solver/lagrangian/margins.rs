//! Reduced-cost fixing: candidates that no better plan uses.
//!
//! At the prices of a Lagrangian bound each flow chooses for itself. A plan in which a flow takes
//! another candidate than its best one lies above the bound by at least the difference of the two,
//! the candidate's reduced cost. Where bound and reduced cost exceed the incumbent, no better plan
//! uses the candidate.

use super::dual::Bound;
use super::table::Table;
use crate::plan::Plan;
use crate::problem::{Objective, Problem};

/// The relative allowance for rounding. Far more than sums of doubles lose.
const ROUNDING: f64 = 1e-9;

/// A lower bound, and the reduced costs of the candidates.
#[derive(Debug, Clone)]
pub(in crate::solver) struct Margins {
    least: f64,
    /// By flow and index of the candidate; infinite where no relay can carry it.
    rises: Vec<Vec<f64>>,
}

impl Margins {
    /// Computes the reduced costs from a bound whose prices restrict no range.
    pub(super) fn new(problem: &Problem, table: &Table, bound: &Bound) -> Self {
        let prices = &bound.prices;
        let mut proved = -prices.lambda * prices.given_usd(table);
        let mut rises = |flow: usize| {
            let values: Vec<f64> = (table.of(flow).iter())
                .map(|choice| choice.score_s + prices.lambda * prices.usd(table, choice))
                .collect();
            let best = values.iter().copied().fold(f64::INFINITY, f64::min);
            proved += best;
            let mut rises = vec![f64::INFINITY; problem.candidates(flow).len()];
            for (choice, value) in table.of(flow).iter().zip(values) {
                rises[choice.place as usize] = value - best;
            }
            rises
        };
        let rises = (0..table.flows()).map(&mut rises).collect();
        // The bound may not come from its prices, where these never proved more.
        Self { least: bound.least.min(proved), rises }
    }

    /// Returns which candidates of each flow a plan at least as good as `plan` may use, by index.
    pub(in crate::solver) fn retained(&self, problem: &Problem, plan: &Plan) -> Vec<Vec<bool>> {
        let (score, cost) = plan.score(problem);
        let own = match problem.objective() {
            Objective::Cost => cost.as_usd(),
            Objective::TotalFct | Objective::Makespan => score.as_secs_f64(),
        };
        let most = own + ROUNDING * (1.0 + own.abs()) - self.least;
        let mut retained: Vec<Vec<bool>> = (self.rises.iter())
            .map(|rises| rises.iter().map(|rise| *rise <= most).collect())
            .collect();
        for (places, own) in retained.iter_mut().zip(plan.choice_in(problem).unwrap_or_default()) {
            places[own] = true;
        }
        retained
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::StartUp;
    use tradewind_units::{FlowId, Money};

    use super::*;
    use crate::candidates::example;
    use crate::problem::{Flow, Inputs};
    use crate::solver::lagrangian::{Effort, LagrangianSearch};
    use crate::solver::{Exhaustive, Limits, Solver};

    /// Returns a problem of four flows of one pair over eight regions, with money for a relay or
    /// two.
    fn problem(seed: u64) -> Problem {
        let inputs = example::problem(seed, StartUp::Ignored).inputs().clone();
        let one = &inputs.flows[0];
        let flow = |at: u64| Flow {
            id: FlowId::new(format!("f{at}")).unwrap(),
            weight: 1 + (at as u32 + seed as u32) % 3,
            ..one.clone()
        };
        let flows = (0..4).map(flow).collect();
        let budget = Money::from_usd(0.6 + 0.25 * (seed % 6) as f64).unwrap();
        Problem::new(Inputs { flows, budget, ..inputs }).unwrap()
    }

    #[test]
    fn best_plan_retains_its_candidates() {
        let (mut all, mut retained_of_all) = (0, 0);
        for seed in 0..40 {
            let problem = problem(seed);
            let best = Exhaustive.solve(&problem, &Limits::work(20_000_000)).unwrap();
            let lagrangian = LagrangianSearch { starters: &[], end_games: &[] };
            let survey = lagrangian.survey(&problem, &Limits::work(3_000), Effort::Brief);
            let retained = survey.margins.unwrap().retained(&problem, &survey.found.unwrap());
            for (flow, place) in best.choice_in(&problem).unwrap().into_iter().enumerate() {
                assert!(retained[flow][place], "seed {seed}, flow {flow}");
            }
            all += retained.iter().flatten().count();
            retained_of_all += retained.iter().flatten().filter(|retained| **retained).count();
        }
        assert!(retained_of_all < all / 2, "{retained_of_all} of {all} kept");
    }
}
