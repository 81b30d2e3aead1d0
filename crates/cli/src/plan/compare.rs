//! `tradewind plan compare`: all algorithms on one problem, each with the packet flows over the
//! relays of its plan.

use std::process::ExitCode;

use serde::Serialize;
use tradewind_plan::answer::gap;
use tradewind_plan::solver;
use tradewind_plan::{Answer, Objective, Status};
use tradewind_units::Money;

use super::joint::{self, JointCost};
use super::show::{decimals, dollars, objective_heading, optional, percent, prices, times};
use super::{AskedArgs, Begun, solve, usd};
use crate::output::{self, FAILED, Format, Outcome, table};

#[derive(clap::Args)]
pub(super) struct CompareArgs {
    #[command(flatten)]
    asked: AskedArgs,
    /// Most that the plan may cost, in dollars, instead of the file's `budget_usd`
    #[arg(long, value_name = "USD", value_parser = usd)]
    budget: Option<Money>,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

/// The results of all algorithms on one problem.
#[derive(Serialize)]
struct Comparison {
    schema_version: u32,
    objective: Objective,
    /// The budget of streams and packet flows together.
    #[serde(serialize_with = "tradewind_plan::answer::limit::serialize")]
    budget_usd: Money,
    /// The streams' part of it after the packet flows, to which the bounds apply; left out where
    /// there are no packet flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    streams_budget_usd: Option<Money>,
    /// The best bounds that any algorithm proved.
    bound_s: Option<f64>,
    bound_cost_usd: Option<Money>,
    algorithms: Vec<Row>,
}

/// One algorithm; `gap` is relative to the best bound of all.
#[derive(Serialize)]
struct Row {
    algorithm: &'static str,
    /// As in a plan, or `not-served` when the algorithm does not support such an objective.
    status: &'static str,
    reason: Option<String>,
    /// The value of the objective: seconds, weighted or of the last flow, or dollars.
    value: Option<f64>,
    total_fct_s: Option<f64>,
    acceleration: Option<f64>,
    /// Cost of the streams.
    cost_usd: Option<Money>,
    #[serde(flatten)]
    joint: Option<JointCost>,
    relays: Option<usize>,
    bound_s: Option<f64>,
    bound_cost_usd: Option<Money>,
    gap: Option<f64>,
    solve_s: Option<f64>,
}

pub(super) fn run(args: &CompareArgs) -> Outcome {
    let begun = Begun::now();
    let read = args.asked.read(args.budget)?;
    let (problem, joint) = match joint::problem(&read)? {
        Ok(made) => made,
        Err(reason) => return Ok(read.refuse(Status::Infeasible, reason)),
    };
    let budget = problem.budget();
    let left = match joint.left_of(budget) {
        Ok(left) => left,
        Err(error) => return Ok(read.refuse(Status::Limited, error)),
    };
    let problem = problem.with_budget(left);
    let each = begun.left_of(args.asked.deadline);
    let mut answers: Vec<(&'static str, Result<Answer, String>)> = Vec::new();
    for name in solver::names() {
        let answer = match solve(&problem, name, each) {
            Ok(answer) => Ok(joint.with_packets(&problem, answer)?),
            Err(error) if error.is::<solver::SolveError>() => Err(error.to_string()),
            // The verifier found a violation.
            Err(error) => return Err(error),
        };
        answers.push((name, answer));
    }
    let budgets = (budget, joint.reserve().map(|_| left));
    let comparison = compared(problem.objective(), budgets, &answers);
    match args.output {
        Format::Json => output::json(&comparison)?,
        Format::Table => {
            show(&comparison)?;
            prices(&read.file.inputs.prices, &read.file.inputs.regions)?;
        }
    }
    let any = answers.iter().any(|(_, answer)| {
        answer.as_ref().is_ok_and(|a| matches!(a.status, Status::Optimal | Status::Feasible))
    });
    Ok(if any { ExitCode::SUCCESS } else { FAILED.into() })
}

fn compared(
    objective: Objective,
    (budget, streams_budget): (Money, Option<Money>),
    answers: &[(&'static str, Result<Answer, String>)],
) -> Comparison {
    let all = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let bound = all().filter_map(|answer| answer.bound).max();
    let bound_cost = all().filter_map(|answer| answer.bound_cost).max();
    let least = all().filter_map(Answer::least_value).max_by(f64::total_cmp);
    let gap_of = |answer: &Answer| gap(answer.value()?, least?);
    let rows = answers.iter().map(|(name, answer)| match answer {
        Ok(answer) => Row {
            algorithm: name,
            status: answer.status.as_str(),
            reason: answer.reason.clone(),
            value: answer.value(),
            total_fct_s: answer.total_fct.map(|total| total.as_secs_f64()),
            acceleration: answer.acceleration,
            cost_usd: answer.cost,
            joint: JointCost::of(answer),
            relays: answer.cost.map(|_| answer.relays.iter().map(|group| group.count).sum()),
            bound_s: answer.bound.map(|bound| bound.as_secs_f64()),
            bound_cost_usd: answer.bound_cost,
            gap: gap_of(answer),
            solve_s: Some(answer.solve.as_secs_f64()),
        },
        Err(reason) => Row {
            algorithm: name,
            status: "not-served",
            reason: Some(reason.clone()),
            value: None,
            total_fct_s: None,
            acceleration: None,
            cost_usd: None,
            joint: None,
            relays: None,
            bound_s: None,
            bound_cost_usd: None,
            gap: None,
            solve_s: None,
        },
    });
    Comparison {
        schema_version: 1,
        objective,
        budget_usd: budget,
        streams_budget_usd: streams_budget,
        bound_s: bound.map(|bound| bound.as_secs_f64()),
        bound_cost_usd: bound_cost,
        algorithms: rows.collect(),
    }
}

fn show(comparison: &Comparison) -> anyhow::Result<()> {
    let by_cost = comparison.objective == Objective::Cost;
    let differs = comparison.algorithms.iter().any(|row| row.value != row.total_fct_s);
    let objective = objective_heading(comparison.objective, differs);
    let has_packets = comparison.streams_budget_usd.is_some();
    let row = |row: &Row| {
        let mut cells = vec![row.algorithm.to_owned(), row.status.to_owned()];
        cells.extend(objective.map(|_| optional(row.value.map(decimals))));
        cells.extend([
            optional(row.total_fct_s.map(decimals)),
            optional(row.acceleration.map(times)),
            optional(row.cost_usd.map(dollars)),
            optional(row.relays.map(|relays| relays.to_string())),
        ]);
        if has_packets {
            cells.extend(JointCost::cells(row.joint.as_ref()));
        }
        cells.extend([
            optional(if by_cost {
                row.bound_cost_usd.map(dollars)
            } else {
                row.bound_s.map(decimals)
            }),
            optional(row.gap.map(percent)),
            optional(row.solve_s.map(decimals)),
        ]);
        cells
    };
    let rows: Vec<Vec<String>> = comparison.algorithms.iter().map(row).collect();
    let mut heading = vec!["algorithm", "status"];
    heading.extend(objective);
    heading.extend(["total FCT s", "acceleration", "cost $", "relays"]);
    if has_packets {
        heading.extend(JointCost::HEADINGS);
    }
    heading.extend([if by_cost { "bound $" } else { "bound s" }, "gap %", "time s"]);
    table::print(&heading, &rows, 2)
}
