//! The Pareto front of money and time: the plans of several budgets, from none to more than pays.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_plan::{Plan, Problem};
use tradewind_units::Money;

use crate::what_if::Worth;

/// A budget above all costs, in dollars: with it the plan that takes the least time is found.
const UNLIMITED_USD: f64 = 1e6;
/// The shares of the cost of that plan that are budgets. Chosen: gains diminish, so most of them
/// are small.
const SHARES: [f64; 8] = [0.0, 0.03, 0.06, 0.12, 0.25, 0.5, 0.75, 1.0];

/// Most plans that the front of one problem takes: one for each share, the present budget and the
/// unlimited one.
pub const MAX_PLANS: u32 = SHARES.len() as u32 + 2;

/// The plan of one budget.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// The budget of a day, with the part that is reserved for packet flows.
    pub budget_usd_per_day: Money,
    /// The worth of its plan.
    #[serde(flatten)]
    pub worth: Worth,
}

/// Returns the plans of several budgets, `present` among them, the least first. `solve` makes a
/// plan, and `worth` tells the worth of one within a budget. More money never gives a worse plan:
/// where it is found for less, that one counts.
///
/// # Errors
/// When `solve` finds no plan at all, or `worth` has no figures.
pub fn points(
    problem: Problem,
    present: Money,
    mut solve: impl FnMut(&Problem) -> Result<Plan, String>,
    worth: impl Fn(&Plan, Money) -> Result<Worth, String>,
) -> Result<Vec<Point>, String> {
    let unlimited = Money::from_usd(UNLIMITED_USD).unwrap_or_default();
    let mut problem = problem.with_budget(unlimited);
    let fastest = solve(&problem)?;
    let mut points = Vec::new();
    let mut best: Option<Plan> = None;
    for budget in budgets(fastest.cost, present) {
        problem = problem.with_budget(budget);
        if budget >= fastest.cost {
            best = Some(fastest.clone());
        } else {
            let found = solve(&problem)?;
            let is_better = |best: &Plan| found.rank(&problem) < best.rank(&problem);
            if best.as_ref().is_none_or(is_better) {
                best = Some(found);
            }
        }
        if let Some(best) = &best {
            points.push(Point { budget_usd_per_day: budget, worth: worth(best, budget)? });
        }
    }
    Ok(points)
}

/// Returns budgets in whole cents, up to one that pays the most that helps.
fn budgets(most: Money, present: Money) -> Vec<Money> {
    let cents = |share: f64| (most.as_usd() * share * 100.0).ceil() / 100.0;
    let shares = SHARES.iter().filter_map(|share| Money::from_usd(cents(*share)).ok());
    let mut budgets: Vec<Money> = shares.chain([present]).collect();
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

#[cfg(test)]
mod tests {
    use tradewind_plan::Limits;
    use tradewind_plan::solver::{TwoProxy, solve};

    use super::*;
    use crate::testing::Bench;

    fn usd(usd: f64) -> Money {
        Money::from_usd(usd).unwrap()
    }

    fn by_two_proxy(problem: &Problem) -> Result<Plan, String> {
        solve(&TwoProxy, problem, &Limits::work(100_000)).map_err(|error| error.to_string())
    }

    fn of_streams(plan: &Plan, _: Money) -> Result<Worth, String> {
        Ok(Worth::of(plan))
    }

    #[test]
    fn front_leads_from_no_relay_to_all_that_helps() {
        let bench = Bench::in_service();
        let problem = bench.controller.problem(bench.time()).unwrap();
        let points = points(problem, usd(20.0), by_two_proxy, of_streams).unwrap();
        assert!(points.len() <= MAX_PLANS as usize);
        let (first, last) = (&points[0], &points[points.len() - 1]);
        assert_eq!((first.budget_usd_per_day, first.worth.relays), (Money::ZERO, 0));
        assert_eq!((first.worth.usd_per_day, first.worth.seconds_saved), (Money::ZERO, 0.0));
        assert_eq!((last.worth.relays, last.worth.flows_over_relays), (2, 1));
        for pair in points.windows(2) {
            assert!(pair[0].budget_usd_per_day < pair[1].budget_usd_per_day);
            assert!(pair[0].worth.seconds_saved <= pair[1].worth.seconds_saved, "{points:?}");
        }
        assert!(points.iter().all(|point| point.worth.usd_per_day <= point.budget_usd_per_day));
        // The budget of now is above what pays: it buys nothing more.
        assert_eq!(last.budget_usd_per_day, usd(20.0));
        assert_eq!(points[points.len() - 2].worth, last.worth);
        assert!(last.worth.usd_per_day < usd(20.0));
    }

    #[test]
    fn more_money_never_gives_a_worse_plan() {
        let bench = Bench::in_service();
        let problem = bench.controller.problem(bench.time()).unwrap();
        let half = by_two_proxy(&problem).unwrap().cost.shared_by(2);
        // It finds a plan for little money alone.
        let forgetful = |problem: &Problem| {
            let is_little = problem.budget() > Money::ZERO && problem.budget() <= half;
            let free = problem.clone().with_budget(Money::ZERO);
            by_two_proxy(if is_little || problem.budget() > usd(1000.0) { problem } else { &free })
        };
        let points = points(problem.clone(), Money::ZERO, forgetful, of_streams).unwrap();
        let saved: Vec<f64> = points.iter().map(|point| point.worth.seconds_saved).collect();
        assert!(saved.is_sorted() && points.len() > 4, "{points:?}");
        let failing = |_: &Problem| Err("none".to_owned());
        assert_eq!(
            super::points(problem, Money::ZERO, failing, of_streams),
            Err("none".to_owned())
        );
    }
}
