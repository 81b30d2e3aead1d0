//! `tradewind plan sweep`: the effect of more budget. A budget is that of streams and packet flows
//! together.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tradewind_output::chart::{self, Chart, Line, Scale};
use tradewind_plan::{Answer, Objective, Plan, Problem, Status};
use tradewind_units::Money;

use super::joint::{self, Joint, JointCost};
use super::problem::Read;
use super::show::{decimals, dollars, objective_heading, optional, percent, prices, times};
use super::{AlgorithmArgs, AskedArgs, Begun, check, solve, usd, write};
use crate::output::BadFile;
use crate::output::{self, FAILED, Format, Outcome, file::Form, table};

/// Most budgets in a sweep. Chosen: more than a plot can show.
const MAX_STEPS: u32 = 1_000;

#[derive(clap::Args)]
pub(super) struct SweepArgs {
    #[command(flatten)]
    asked: AskedArgs,
    /// The least budget, in dollars
    #[arg(long, value_name = "USD", value_parser = usd)]
    from: Money,
    /// The largest budget, in dollars
    #[arg(long, value_name = "USD", value_parser = usd)]
    to: Money,
    /// Number of budgets, both ends included
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(2..=i64::from(MAX_STEPS))
    )]
    steps: u32,
    #[command(flatten)]
    algorithm: AlgorithmArgs,
    /// File for the plot (.svg or .html) or the figures (.json)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

/// The figures of all budgets.
#[derive(Serialize)]
struct Sweep {
    schema_version: u32,
    problem: String,
    algorithm: String,
    objective: Objective,
    points: Vec<Point>,
}

/// The figures of one budget.
#[derive(Serialize)]
struct Point {
    budget_usd: Money,
    /// The streams' part of it after the packet flows; left out where there are none, and where
    /// they cost more than the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    streams_budget_usd: Option<Money>,
    status: Status,
    /// Reason why there is no plan.
    reason: Option<String>,
    /// The value of the objective: seconds, weighted or of the last flow, or dollars.
    value: Option<f64>,
    total_fct_s: Option<f64>,
    direct_fct_s: Option<f64>,
    acceleration: Option<f64>,
    /// Cost of the streams.
    cost_usd: Option<Money>,
    #[serde(flatten)]
    joint: Option<JointCost>,
    relays: Option<usize>,
    bound_s: Option<f64>,
    gap: Option<f64>,
    solve_s: f64,
    /// True if no other point costs at most as much, packet flows included, and takes less time.
    pareto: bool,
    /// Time that stars and the plot use: the objective, or the sum of completion times where the
    /// objective is cost.
    #[serde(skip)]
    time_s: Option<f64>,
    /// The same time if all flows went direct.
    #[serde(skip)]
    direct_s: Option<f64>,
}

impl Point {
    /// Returns the cost of streams and packet flows together.
    fn all_costs(&self) -> Option<Money> {
        self.joint.as_ref().map_or(self.cost_usd, |joint| Some(joint.joint_cost_usd))
    }
}

pub(super) fn run(args: &SweepArgs) -> Outcome {
    if args.to <= args.from {
        let (from, to) = (args.from.as_usd(), args.to.as_usd());
        return Err(BadFile(format!("--to: more than --from, {from}, not {to}")).into());
    }
    let form = args.out.as_deref().map(Form::of).transpose().map_err(BadFile)?;
    let begun = Begun::now();
    let read = args.asked.read(Some(args.from))?;
    let (problem, joint) = match joint::problem(&read)? {
        Ok(made) => made,
        Err(reason) => return Ok(read.refuse(Status::Infeasible, reason)),
    };
    let each = begun.left_of(args.asked.deadline);
    let sweep = swept(&read, (problem, &joint), args, each)?;
    note_small_budgets(&joint, &sweep);
    if let (Some(out), Some(form)) = (&args.out, form) {
        write(out, &render(form, &sweep)?)?;
    }
    match args.output {
        Format::Json => output::json(&sweep)?,
        Format::Table => {
            show(&sweep, &joint)?;
            prices(&read.file.inputs.prices, &read.file.inputs.regions)?;
        }
    }
    let any = sweep.points.iter().any(|point| point.total_fct_s.is_some());
    Ok(if any { ExitCode::SUCCESS } else { FAILED.into() })
}

/// Plans for all budgets, the least first. A plan within a smaller budget is valid for a larger
/// one, so the better of both counts: more budget never makes it worse, with any algorithm. Each
/// run takes at most `deadline`.
fn swept(
    read: &Read,
    (mut problem, joint): (Problem, &Joint<'_>),
    args: &SweepArgs,
    deadline: Duration,
) -> anyhow::Result<Sweep> {
    let mut points = Vec::new();
    let mut best: Option<Plan> = None;
    for step in 0..args.steps {
        let share = f64::from(step) / f64::from(args.steps - 1);
        let (from, to) = (args.from.as_usd(), args.to.as_usd());
        let budget =
            Money::from_usd(from + share * (to - from)).context("a budget of the sweep")?;
        let left = match joint.left_of(budget) {
            Ok(left) => left,
            Err(error) => {
                let answer = joint.unaffordable(&args.algorithm.algorithm, budget, &error);
                points.push(point(&problem, &answer));
                continue;
            }
        };
        problem = problem.with_budget(left);
        let mut answer = solve(&problem, &args.algorithm.algorithm, deadline)?;
        if let Some(before) = &best {
            answer = better(&problem, before, answer)?;
        }
        best = answer.plan().or(best);
        let answer = joint.with_packets(&problem, answer)?;
        let streams_budget_usd = joint.reserve().map(|_| left);
        points.push(Point { budget_usd: budget, streams_budget_usd, ..point(&problem, &answer) });
    }
    mark_pareto(&mut points);
    Ok(Sweep {
        schema_version: 1,
        problem: read.file.name.clone().unwrap_or_else(|| read.asked.file.clone()),
        algorithm: args.algorithm.algorithm.clone(),
        objective: problem.objective(),
        points,
    })
}

/// Prints the number of budgets that are too small for the packet flows, if there are some.
fn note_small_budgets(joint: &Joint<'_>, sweep: &Sweep) {
    let Some(reserve) = joint.reserve() else { return };
    let too_small = sweep.points.iter().filter(|point| point.budget_usd < reserve).count();
    if too_small > 0 {
        output::note(format_args!(
            "note: budgets below ${} do not afford the packet flows, which may cost so much: \
             {too_small} of {}",
            reserve.as_usd(),
            sweep.points.len()
        ));
    }
}

/// Returns the answer, or the plan of a smaller budget if that is better.
fn better(problem: &Problem, before: &Plan, answer: Answer) -> anyhow::Result<Answer> {
    let plan = answer.plan();
    if plan.as_ref().is_some_and(|plan| plan.rank(problem) <= before.rank(problem)) {
        return Ok(answer);
    }
    // Bounds belong to this budget: those of a smaller one would claim too much.
    let bound = plan.as_ref().map_or_else(Default::default, |plan| plan.bound);
    let bound_cost = plan.as_ref().map_or(Money::ZERO, |plan| plan.bound_cost);
    let bound = bound.min(before.rank(problem).0);
    let retained = Plan { bound, bound_cost: bound_cost.min(before.cost), ..before.clone() };
    let retained = Answer::new(problem, &answer.algorithm, Ok(retained), answer.solve)?;
    check(problem, &retained)?;
    Ok(retained)
}

fn point(problem: &Problem, answer: &Answer) -> Point {
    let total = answer.total_fct.map(|total| total.as_secs_f64());
    let direct = answer.direct_fct.map(|direct| direct.as_secs_f64());
    let (time_s, direct_s) = match answer.objective {
        Objective::Cost => (total, direct),
        Objective::TotalFct | Objective::Makespan => {
            let fcts: Option<Vec<_>> = answer.flows.iter().map(|flow| flow.direct_fct).collect();
            let value = |fcts: Vec<_>| problem.value(fcts.into_iter(), Money::ZERO);
            (answer.value(), total.and(fcts).map(value))
        }
    };
    Point {
        budget_usd: answer.budget,
        streams_budget_usd: None,
        status: answer.status,
        reason: answer.reason.clone(),
        value: answer.value(),
        total_fct_s: total,
        direct_fct_s: direct,
        acceleration: answer.acceleration,
        cost_usd: answer.cost,
        joint: JointCost::of(answer),
        relays: answer.cost.map(|_| answer.relays.iter().map(|group| group.count).sum()),
        bound_s: answer.bound.map(|bound| bound.as_secs_f64()),
        gap: answer.gap,
        solve_s: answer.solve.as_secs_f64(),
        pareto: false,
        time_s,
        direct_s,
    }
}

fn mark_pareto(points: &mut [Point]) {
    let figures: Vec<Option<(Money, f64)>> =
        points.iter().map(|point| point.all_costs().zip(point.time_s)).collect();
    for (index, point) in points.iter_mut().enumerate() {
        let Some((cost, time)) = figures[index] else { continue };
        let dominates = |(other, figure): (usize, &Option<(Money, f64)>)| {
            figure.is_some_and(|(c, t)| {
                let equal = c == cost && t == time;
                c <= cost && t <= time && (!equal || other < index)
            })
        };
        point.pareto = !figures.iter().enumerate().filter(|(i, _)| *i != index).any(dominates);
    }
}

fn show(sweep: &Sweep, joint: &Joint<'_>) -> anyhow::Result<()> {
    let has_packets = joint.reserve().is_some();
    let differs = sweep.points.iter().any(|point| point.value != point.total_fct_s);
    let objective = objective_heading(sweep.objective, differs);
    let rows: Vec<Vec<String>> = (sweep.points.iter())
        .map(|point| {
            let mut cells = vec![
                if point.pareto { "*" } else { "" }.to_owned(),
                point.status.as_str().to_owned(),
                dollars(point.budget_usd),
                optional(point.cost_usd.map(dollars)),
            ];
            cells.extend(objective.map(|_| optional(point.value.map(decimals))));
            cells.extend([
                optional(point.total_fct_s.map(decimals)),
                optional(point.acceleration.map(times)),
                optional(point.relays.map(|relays| relays.to_string())),
            ]);
            if has_packets {
                cells.extend(JointCost::cells(point.joint.as_ref()));
            }
            cells.extend([optional(point.gap.map(percent)), decimals(point.solve_s)]);
            cells
        })
        .collect();
    let mut heading = vec!["Pareto", "status", "budget $", "cost $"];
    heading.extend(objective);
    heading.extend(["total FCT s", "acceleration", "relays"]);
    if has_packets {
        heading.extend(JointCost::HEADINGS);
    }
    heading.extend(["gap %", "time s"]);
    table::print(&heading, &rows, 2)
}

fn render(form: Form, sweep: &Sweep) -> anyhow::Result<String> {
    let chart = chart_of(sweep);
    Ok(match form {
        Form::Svg => chart.svg(),
        Form::Html => chart::page(&chart),
        Form::Json => serde_json::to_string_pretty(sweep)?,
    })
}

/// Charts the objective's completion times over budget, beside those of going direct.
fn chart_of(sweep: &Sweep) -> Chart {
    let line = |name: &str, value: fn(&Point) -> Option<f64>| {
        let points = sweep.points.iter();
        let points =
            points.filter_map(|point| Some((point.budget_usd.as_usd(), value(point)?).into()));
        Line { name: name.to_owned(), points: points.collect() }
    };
    let differs = sweep.points.iter().any(|point| point.time_s != point.total_fct_s);
    let y_label = match sweep.objective {
        Objective::Makespan => "last completion time in seconds",
        Objective::TotalFct if differs => "weighted completion time in seconds",
        Objective::TotalFct | Objective::Cost => "total completion time in seconds",
    };
    Chart {
        title: format!("{}: what a budget buys ({})", sweep.problem, sweep.algorithm),
        x_label: "budget in dollars".to_owned(),
        y_label: y_label.to_owned(),
        scale: Scale::Linear,
        lines: vec![line("plan", |point| point.time_s), line("direct", |point| point.direct_s)],
    }
}
