//! The interface to HiGHS: one run over a formulation.
//!
//! One thread, a fixed seed, no output. Objective and budget are scaled so that the library's
//! absolute tolerances (10^-6) mean less than 10^-10 of the whole.

use std::num::NonZeroU32;

use highs::{Col, HighsModelStatus, HighsSolutionStatus, RowProblem, Sense};
use tradewind_units::{Duration, Money};

use super::formulation::{Column, Formulation};
use crate::solver::SolveError;

/// The scaled value of the largest objective, and of the budget. Chosen: a tolerance of 10^-6 is
/// then 6 * 10^-11 of it, and coefficients stay in the range that HiGHS is made for.
const SCALE: f64 = 16384.0;

/// The objective of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// The score.
    Score,
    /// The cost, over all plans.
    Cost,
    /// The cost, over the plans of at most this score.
    CostWithin(Duration),
}

/// The limits of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunLimits {
    /// The most nodes of the search tree.
    pub(super) nodes: u64,
    /// The time limit by the library's own clock.
    pub(super) time: Option<Duration>,
    /// The columns with integer values.
    pub(super) whole: Whole,
}

/// The choice of columns that must be integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whole {
    /// All of them.
    All,
    /// The counts of relays: a flow may be split over several paths.
    Counts,
    /// None: a linear program.
    Nothing,
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// The values are optimal.
    Optimal,
    /// A limit was reached first.
    Limit,
    /// No values satisfy all rows.
    Infeasible,
}

/// The result of a run.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: Status,
    /// The best values found of all columns, if any.
    pub(super) values: Option<Vec<f64>>,
    /// A lower bound on the goal: nanoseconds above the least score, or nano-dollars.
    pub(super) bound: f64,
    /// Simplex iterations.
    pub(super) iterations: u64,
}

/// Minimises `goal` over the formulation within `budget`, from the values `start` if they are
/// given.
pub(super) fn run(
    formulation: &Formulation,
    goal: Goal,
    budget: Money,
    start: Option<&[f64]>,
    limits: RunLimits,
) -> Result<Answer, SolveError> {
    let failed = |what: &str| SolveError::Backend(format!("HiGHS: {what}"));
    let unit = objective_unit(formulation, goal);
    let program = program(formulation, goal, budget, unit, limits.whole);
    let mut model =
        program.try_optimise(Sense::Minimise).map_err(|_| failed("refused the program"))?;
    model.set_threads(NonZeroU32::MIN);
    let nodes = i32::try_from(limits.nodes).unwrap_or(i32::MAX);
    let options = [("mip_max_nodes", nodes), ("random_seed", 0)];
    let known = options.into_iter().all(|(name, value)| model.try_set_option(name, value).is_ok())
        && model.try_set_option("mip_rel_gap", 0.0).is_ok();
    let timed = limits.time.map(|time| model.try_set_option("time_limit", time.as_secs_f64()));
    if !known || timed.is_some_and(|set| set.is_err()) {
        return Err(failed("does not know an option"));
    }
    if let Some(start) = start {
        // A start that HiGHS rejects costs time, not correctness.
        let _ = model.try_set_solution(Some(start), None, None, None);
    }
    let solved = model.try_solve().map_err(|_| failed("failed"))?;
    let status = ended(solved.status())?;
    let found = solved.primal_solution_status() == HighsSolutionStatus::Feasible;
    let bound = solved.double_info_value(c"mip_dual_bound").unwrap_or(0.0).max(0.0);
    Ok(Answer {
        status,
        values: found.then(|| solved.get_solution().columns().to_vec()),
        bound: if bound.is_finite() { bound * unit } else { 0.0 },
        iterations: u64::try_from(solved.simplex_iteration_count()).unwrap_or(0),
    })
}

/// Returns weights from 0 to 1 of items that add up to at most one in each pattern (a list of
/// items' indexes) and maximise their sum weighted by these values; none where HiGHS finds none.
pub(super) fn heaviest_weights(values: &[f64], patterns: &[Vec<usize>]) -> Option<Vec<f64>> {
    let mut program = RowProblem::default();
    let columns: Vec<Col> =
        values.iter().map(|value| program.add_column(*value, 0.0..=1.0)).collect();
    for pattern in patterns {
        program.add_row(..=1.0, pattern.iter().map(|at| (columns[*at], 1.0)));
    }
    let mut model = program.try_optimise(Sense::Maximise).ok()?;
    model.set_threads(NonZeroU32::MIN);
    let solved = model.try_solve().ok()?;
    let is_best = solved.status() == HighsModelStatus::Optimal;
    is_best.then(|| solved.get_solution().columns().to_vec())
}

/// Converts HiGHS's model status.
fn ended(status: HighsModelStatus) -> Result<Status, SolveError> {
    match status {
        HighsModelStatus::Optimal => Ok(Status::Optimal),
        HighsModelStatus::Infeasible => Ok(Status::Infeasible),
        HighsModelStatus::ReachedTimeLimit
        | HighsModelStatus::ReachedIterationLimit
        | HighsModelStatus::ReachedSolutionLimit
        | HighsModelStatus::ReachedInterrupt => Ok(Status::Limit),
        HighsModelStatus::Unbounded => Err(SolveError::Unbounded),
        other => Err(SolveError::Backend(format!("HiGHS: ended as {other:?}"))),
    }
}

/// Returns the goal's coefficient of a column, in nanoseconds or nano-dollars.
fn weight(column: &Column, goal: Goal) -> f64 {
    match goal {
        Goal::Score => column.score.as_nanos() as f64,
        Goal::Cost | Goal::CostWithin(_) => nano_usd(column.cost),
    }
}

fn nano_usd(money: Money) -> f64 {
    (money.as_usd() * 1e9).round()
}

/// Returns the value of one unit of the scaled objective.
fn objective_unit(formulation: &Formulation, goal: Goal) -> f64 {
    let most = |flow: &Vec<super::formulation::Pick>| {
        let weights = flow.iter().map(|pick| weight(&formulation.columns[pick.column], goal));
        weights.fold(0.0, f64::max)
    };
    let total: f64 = formulation.picks.iter().map(most).sum();
    if total > 0.0 { total / SCALE } else { 1.0 }
}

fn program(
    formulation: &Formulation,
    goal: Goal,
    budget: Money,
    unit: f64,
    whole: Whole,
) -> RowProblem {
    let mut program = RowProblem::default();
    let mut in_part = vec![whole == Whole::Nothing; formulation.columns.len()];
    if whole == Whole::Counts {
        formulation.picks.iter().flatten().for_each(|pick| in_part[pick.column] = true);
    }
    let columns: Vec<Col> = (formulation.columns.iter().zip(in_part))
        .map(|(column, in_part)| {
            let most = if column.cost > budget { 0 } else { column.most };
            let (weight, range) = (weight(column, goal) / unit, 0.0..=most as f64);
            if in_part {
                program.add_column(weight, range)
            } else {
                program.add_integer_column(weight, range)
            }
        })
        .collect();
    for row in &formulation.rows {
        let terms = row.terms.iter().map(|(column, factor)| (columns[*column], *factor));
        program.add_row(row.least..=row.most, terms);
    }
    if budget > Money::ZERO {
        let unit = nano_usd(budget) / SCALE;
        let paid = |column: &Column| nano_usd(column.cost) / unit;
        let paying = formulation.columns.iter().zip(&columns);
        let terms = paying.filter(|(column, _)| column.cost > Money::ZERO && column.cost <= budget);
        program.add_row(..=SCALE, terms.map(|(column, at)| (*at, paid(column))));
    }
    if let Goal::CostWithin(score) = goal {
        let unit = objective_unit(formulation, Goal::Score);
        let score = score.saturating_sub(formulation.least_score).as_nanos() as f64 / unit;
        let weighed = formulation.columns.iter().zip(&columns);
        let terms = weighed.filter(|(column, _)| column.score > Duration::ZERO);
        let factor = |column: &Column| weight(column, Goal::Score) / unit;
        program.add_row(..=score, terms.map(|(column, at)| (*at, factor(column))));
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the status of a program with integer columns of these ranges, each with objective
    /// -1, under these rows of all columns, with this node limit.
    fn end_of(
        ranges: &[std::ops::RangeInclusive<f64>],
        rows: &[std::ops::RangeInclusive<f64>],
        nodes: i32,
    ) -> Result<Status, SolveError> {
        let mut program = RowProblem::default();
        let columns: Vec<Col> =
            ranges.iter().map(|range| program.add_integer_column(-1.0, range.clone())).collect();
        for (at, row) in rows.iter().enumerate() {
            let factor = |place: usize| 1.0 + ((place * 7 + at * 3) % 5) as f64;
            let terms = columns.iter().enumerate().map(|(place, column)| (*column, factor(place)));
            program.add_row(row.clone(), terms);
        }
        let mut model = program.optimise(Sense::Minimise);
        model.set_option("mip_max_nodes", nodes);
        model.set_option("presolve", "off");
        ended(model.solve().status())
    }

    #[test]
    fn solver_statuses_are_distinguished() {
        assert_eq!(end_of(&[0.0..=3.0], &[0.0..=2.0], 100), Ok(Status::Optimal));
        assert_eq!(end_of(&[0.0..=3.0], &[9.0..=9.5], 100), Ok(Status::Infeasible));
        assert_eq!(end_of(&[0.0..=f64::INFINITY], &[], 100), Err(SolveError::Unbounded));
        let many = vec![0.0..=9.0; 30];
        let rows: Vec<_> = (0..12).map(|row| 0.0..=f64::from(101 + 2 * row)).collect();
        assert_eq!(end_of(&many, &rows, 0), Ok(Status::Limit));
    }
}
