//! Plans by an algorithm, checked.

use std::time::{Duration, Instant};

use tradewind_demo::executor::Threads;
use tradewind_plan::solver::{best_of, by_name};
use tradewind_plan::{Limits, Plan, Problem, verify};

use super::{ExperimentError, NumericError, Stop};

/// Longest time for one plan. Chosen: ten times of what most problems here need.
const PLANNING_TIME: Duration = Duration::from_millis(500);

/// Returns the plan of an algorithm, checked by the verifier, which shares no code with it.
///
/// # Errors
/// When there is no such algorithm or no plan, the verifier rejects it, or the run is stopped.
pub(crate) fn solve(
    algorithm: &str,
    problem: &Problem,
    stop: &Stop,
) -> Result<Plan, ExperimentError> {
    let solver = by_name(algorithm).ok_or_else(|| NumericError::Nothing {
        what: format!("algorithm `{algorithm}`: there is none of this name"),
    })?;
    let begun = Instant::now();
    let time_left = || PLANNING_TIME.saturating_sub(begun.elapsed());
    let should_stop = || stop.is_set() || time_left().is_zero();
    let limits = Limits {
        work: u64::MAX,
        should_stop: &should_stop,
        time_left: Some(&time_left),
        executor: &Threads::available(),
    };
    let plan = best_of(&[solver.as_ref()], problem, &limits);
    stop.check()?;
    let plan = plan.map_err(|error| NumericError::Solve { solver: algorithm.to_owned(), error })?;
    match verify(problem, &plan).first() {
        None => Ok(plan),
        Some(violation) => Err(NumericError::Unsound {
            solver: algorithm.to_owned(),
            violations: violation.to_string(),
        }
        .into()),
    }
}
