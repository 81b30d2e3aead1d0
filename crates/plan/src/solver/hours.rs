//! Problems whose machines are paid for as long as the plan takes: solved for each number of whole
//! hours ([`Problem::paid_for`]), and the best of the plans is selected.
//!
//! Every plan takes some whole number of hours, and is a plan of that number's problem. So the
//! least of the bounds of all these problems holds for it.

use tradewind_units::{Duration, Money};

use super::{Limits, SolveError, Solver, part, registry, unlimited_bound};
use crate::plan::Plan;
use crate::problem::Problem;

/// Returns the best plan that `solver` finds for any number of hours, each within its share of the
/// limits.
///
/// # Errors
/// Those of `solver`, when it has a plan for none of them.
pub(super) fn solve(
    solver: &dyn Solver,
    problem: &Problem,
    limits: &Limits<'_>,
) -> Result<Plan, SolveError> {
    let all = problem.hours();
    let mut found = Found::new(problem);
    for (at, hours) in all.iter().enumerate() {
        let Some(paid) = problem.paid_for(*hours) else { continue };
        let left = all.len() - at;
        let is_limited = limits.work < u64::MAX;
        let work = (limits.work as f64 * left as f64 / all.len() as f64) as u64;
        let rest = limits.with_work(if is_limited { work } else { u64::MAX });
        let share = 1.0 / left as f64;
        found.add(part(&rest, share, |limits| registry::solve(solver, &paid, limits)))?;
    }
    found.best()
}

/// The results for all numbers of hours so far.
struct Found<'a> {
    problem: &'a Problem,
    best: Option<Plan>,
    /// Lower bounds for the plans of all numbers of hours together.
    bound: Duration,
    bound_cost: Money,
    /// Set once some limit was reached.
    is_cut: bool,
    /// The reason why there is no plan for some number of hours.
    obstacle: Option<SolveError>,
}

impl<'a> Found<'a> {
    fn new(problem: &'a Problem) -> Self {
        // A path left out of the candidates may take any number of hours; no plan costs more than
        // the budget.
        let (bound, bound_cost) = if problem.leaves_out() {
            (unlimited_bound(problem), Money::ZERO)
        } else {
            (Duration::MAX, problem.budget())
        };
        Self { problem, best: None, bound, bound_cost, is_cut: false, obstacle: None }
    }

    /// Adds the result for one number of hours.
    fn add(&mut self, outcome: Result<Plan, SolveError>) -> Result<(), SolveError> {
        let (plan, bound) = match outcome {
            Ok(plan) => {
                let bound = plan.bound;
                (Some(plan), bound)
            }
            Err(SolveError::WorkLimit { best, bound }) => {
                self.is_cut = true;
                (best.map(|plan| *plan), bound)
            }
            Err(error @ SolveError::Infeasible(_)) => {
                self.obstacle = Some(error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.bound = self.bound.min(bound);
        self.bound_cost = self.bound_cost.min(plan.as_ref().map_or(Money::ZERO, |p| p.bound_cost));
        // It may take fewer hours than it was made for.
        let Some(plan) = plan.map(|plan| plan.priced_in(self.problem)) else { return Ok(()) };
        let rank = |plan: &Plan| plan.rank(self.problem);
        if self.best.as_ref().is_none_or(|best| rank(&plan) < rank(best)) {
            self.best = Some(plan);
        }
        Ok(())
    }

    fn best(self) -> Result<Plan, SolveError> {
        let Self { problem, bound, bound_cost, is_cut, .. } = self;
        let best = self.best.map(|plan| {
            let (least, cost) = (plan.bounded(problem), plan.cost);
            Plan { bound: bound.min(least), bound_cost: bound_cost.min(cost), ..plan }
        });
        match (best, self.obstacle) {
            (Some(plan), _) if !is_cut => Ok(plan),
            (None, Some(obstacle)) if !is_cut => Err(obstacle),
            (best, _) => {
                let bound = best.as_ref().map_or(bound, |plan| plan.bound);
                Err(SolveError::WorkLimit { best: best.map(Box::new), bound })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::StartUp;

    use super::*;
    use crate::candidates::example;
    use crate::problem::Inputs;
    use crate::solver::Exhaustive;

    /// Returns a problem whose flow takes hours, with half a dollar for each hour of a machine.
    fn problem(seed: u64) -> Problem {
        let mut inputs = example::problem(seed, StartUp::Ignored).inputs().clone();
        for flow in &mut inputs.flows {
            flow.volume = tradewind_units::Bytes::new(3_000_000_000_000);
        }
        let budget = Money::from_usd(2_000.0).unwrap();
        let price = Money::from_usd(0.5).unwrap();
        inputs.hourly.insert(inputs.relay_types[0].id.clone(), price);
        Problem::new(Inputs { budget, ..inputs }).unwrap()
    }

    #[test]
    fn limits_are_shared_by_all_numbers_of_hours() {
        struct Noted(std::sync::Mutex<Vec<u64>>);
        impl Solver for Noted {
            fn name(&self) -> &'static str {
                "noted"
            }

            fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
                self.0.lock().unwrap().push(limits.work);
                Exhaustive.solve(problem, &Limits::work(1_000_000))
            }
        }
        let problem = problem(1);
        let numbers = problem.hours().len() as u64;
        assert!(numbers > 1, "its paths take unequal hours");
        let noted = Noted(std::sync::Mutex::default());
        solve(&noted, &problem, &Limits::work(1_000_000)).unwrap();
        let asked = noted.0.into_inner().unwrap();
        assert_eq!(asked.len() as u64, numbers);
        assert!(asked.iter().all(|work| work.abs_diff(1_000_000 / numbers) <= 1), "{asked:?}");
    }
}
