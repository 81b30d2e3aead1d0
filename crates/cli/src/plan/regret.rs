//! `tradewind plan regret`: the cost of planning for forecasts, period by period of a log.
//!
//! A packet flow has no log: the same ones exist in each period, forecast or not. Their highest
//! possible cost is reserved from the budget of every plan alike, so they add no regret.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde::Serialize;
use tradewind_demo::executor::Threads;
use tradewind_plan::forecast::{
    PastPeriod, Predictor, Regret, first_testable, past_period, regret_by,
};
use tradewind_plan::solver::{self, Limits, SolveError, Solver};
use tradewind_plan::{Flow, Objective, Problem, Status, verify};
use tradewind_units::{Bytes, Duration, Money};

use super::expected::with_log;
use super::joint::Joint;
use super::packets;
use super::problem::Read;
use super::show::{decimals, dollars, optional, prices};
use super::{AlgorithmArgs, AskedArgs, Begun, usd};
use crate::output::BadFile;
use crate::output::{self, FAILED, Format, Outcome, table};

#[derive(clap::Args)]
pub(super) struct RegretArgs {
    #[command(flatten)]
    asked: AskedArgs,
    /// Number of periods at the log's end to test
    #[arg(
        long,
        value_name = "N",
        default_value_t = 12,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    last: u32,
    /// Plan for expected volumes times this, so that a plan keeps money for more than is expected
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 1.0,
        value_parser = factor,
        allow_negative_numbers = true
    )]
    reserve: f64,
    /// Most that each plan may cost, in dollars, instead of the file's `budget_usd`
    #[arg(long, value_name = "USD", value_parser = usd)]
    budget: Option<Money>,
    #[command(flatten)]
    algorithm: AlgorithmArgs,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

/// Parses a reserve: from half to ten times the expected volume.
fn factor(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|factor| (0.5..=10.0).contains(factor));
    number.ok_or_else(|| "a factor from 0.5 to 10, such as `1.2`".to_owned())
}

/// All periods that were tested.
#[derive(Serialize)]
struct Report {
    schema_version: u32,
    problem: String,
    log: String,
    period_s: f64,
    reserve: f64,
    algorithm: String,
    objective: Objective,
    /// The budget of streams and packet flows together.
    budget_usd: Money,
    #[serde(flatten)]
    beside: Option<BesidePackets>,
    periods: Vec<PeriodReport>,
    mean: Mean,
}

/// The packet flows' reservation from each plan's budget, where there are some.
#[derive(Serialize)]
struct BesidePackets {
    /// Their highest possible cost in each period.
    packets_reserve_usd: Money,
    /// The rest for the streams.
    streams_budget_usd: Money,
}

/// One period. Completion times are sums over its flows; `value`s are of the objective.
#[derive(Serialize)]
struct PeriodReport {
    begins_s: f64,
    predictor: Predictor,
    error_ratio: Option<f64>,
    flows: usize,
    volume_bytes: f64,
    direct_fct_s: Option<f64>,
    /// The result of the plan for the forecast; `None` where a flow could not be carried.
    as_planned: Option<AsPlannedReport>,
    /// The true flows, planned again over the relays of the plan for the forecast.
    rerouted: Carried,
    clairvoyant: Carried,
}

#[derive(Serialize)]
struct Carried {
    total_fct_s: f64,
    cost_usd: Money,
    value: f64,
    regret: f64,
    regret_ratio: Option<f64>,
}

#[derive(Serialize)]
struct AsPlannedReport {
    #[serde(flatten)]
    carried: Carried,
    relayed_flows: usize,
    displaced_flows: usize,
    unplanned_flows: usize,
    late_flows: usize,
}

/// Means over all periods with flows.
#[derive(Serialize)]
struct Mean {
    error_ratio: Option<f64>,
    as_planned_regret_ratio: Option<f64>,
    rerouted_regret_ratio: Option<f64>,
}

pub(super) fn run(args: &RegretArgs) -> Outcome {
    let Some((log, period)) = args.asked.expected.asked() else {
        return Err(BadFile("--flows-from LOG and --period SPAN: both are needed".into()).into());
    };
    let (mut read, history) = with_log(args.asked.file(), log, period, args.budget)?;
    read.note_basis();
    let budget = read.file.inputs.budget;
    let beside = match beside_packets(&read, budget)? {
        Ok(beside) => beside,
        Err(none) => return Ok(none),
    };
    read.file.inputs.budget = beside.as_ref().map_or(budget, |beside| beside.streams_budget_usd);
    let season = args.asked.expected.season();
    let last = usize::try_from(args.last).unwrap_or(usize::MAX);
    let from = first_testable(&history, season).max(history.periods().saturating_sub(last));
    if from >= history.periods() {
        let error = past_period(&history, &read.file.inputs, history.periods(), season).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        return Err(BadFile(format!("{}: {error}", log.display())).into());
    }
    let solver = solver::by_name(&args.algorithm.algorithm).context("an algorithm of the list")?;
    let mut periods = Vec::new();
    for number in from..history.periods() {
        let past = past_period(&history, &read.file.inputs, number, season)
            .map_err(|error| BadFile(format!("{}: {error}", log.display())))?;
        // No flow arrived, so only money could be wasted.
        if past.truth.flows.is_empty() {
            continue;
        }
        let begins = past.begins.as_secs_f64();
        let regret = tested(&past, args.reserve, solver.as_ref(), args.asked.deadline)
            .with_context(|| format!("the period from {begins} s"))?;
        periods.push(report_of(past, &regret));
    }
    let report = Report {
        schema_version: 1,
        problem: read.file.name.clone().unwrap_or_else(|| read.asked.file.clone()),
        log: log.display().to_string(),
        period_s: period.as_secs_f64(),
        reserve: args.reserve,
        algorithm: args.algorithm.algorithm.clone(),
        objective: read.file.inputs.objective,
        budget_usd: budget,
        beside,
        mean: mean_of(&periods),
        periods,
    };
    match args.output {
        Format::Json => output::json(&report)?,
        Format::Table => {
            show(&report)?;
            prices(&read.file.inputs.prices, &read.file.inputs.regions)?;
        }
    }
    Ok(if report.periods.is_empty() { FAILED.into() } else { ExitCode::SUCCESS })
}

/// Returns the packet flows' reservation from the budget, or the exit code after printing why there
/// is no plan.
fn beside_packets(
    read: &Read,
    budget: Money,
) -> Result<Result<Option<BesidePackets>, ExitCode>, BadFile> {
    let joint = match Joint::new(read)? {
        Ok(joint) => joint,
        Err(reason) => return Ok(Err(read.refuse(Status::Infeasible, reason))),
    };
    let Some(reserve) = joint.reserve() else { return Ok(Ok(None)) };
    Ok(match joint.left_of(budget) {
        Ok(left) => {
            Ok(Some(BesidePackets { packets_reserve_usd: reserve, streams_budget_usd: left }))
        }
        Err(error) => Err(read.refuse(Status::Limited, error)),
    })
}

/// Plans for the expected and for the true flows; each plan takes at most `deadline`, building its
/// problem included, and is verified.
fn tested(
    past: &PastPeriod,
    reserve: f64,
    solver: &dyn Solver,
    deadline: Duration,
) -> anyhow::Result<Regret> {
    let mut wrong = None;
    let mut begun = Begun::now();
    let mut solve = |problem: &Problem| {
        let time_left = || begun.left_of(deadline);
        let should_stop = || time_left().is_zero();
        let limits = Limits {
            work: u64::MAX,
            should_stop: &should_stop,
            time_left: Some(&time_left),
            executor: &Threads::available(),
        };
        let plan = match solver::solve(solver, problem, &limits) {
            Err(SolveError::WorkLimit { best: Some(plan), .. }) => *plan,
            answer => answer?,
        };
        wrong = wrong.take().or_else(|| verify(problem, &plan).first().map(ToString::to_string));
        begun = Begun::now();
        Ok(plan)
    };
    let with_reserve = |flow: &Flow| Flow { volume: flow.volume.scaled(reserve), ..flow.clone() };
    let expected = past.expected.iter().map(with_reserve);
    let expected = expected.filter(|flow| flow.volume > Bytes::ZERO).collect();
    let regret = regret_by(&past.truth, expected, &mut solve)?;
    match wrong {
        Some(violation) => bail!("a plan is wrong, which is a bug of ours: {violation}"),
        None => Ok(regret),
    }
}

fn report_of(past: PastPeriod, regret: &Regret) -> PeriodReport {
    let best = regret.values.best;
    let carried = |total: Duration, cost: Money, value: f64| Carried {
        total_fct_s: total.as_secs_f64(),
        cost_usd: cost,
        value,
        regret: value - best,
        regret_ratio: (best > 0.0).then(|| (value - best) / best),
    };
    let as_planned = regret.as_planned.as_ref().zip(regret.values.as_planned);
    let clairvoyant = &regret.clairvoyant;
    PeriodReport {
        begins_s: past.begins.as_secs_f64(),
        predictor: past.predictor,
        error_ratio: past.error_ratio,
        flows: past.truth.flows.len(),
        volume_bytes: past.truth.flows.iter().map(|flow| flow.volume.as_u64() as f64).sum(),
        direct_fct_s: clairvoyant.total_fct_direct().map(|direct| direct.as_secs_f64()),
        as_planned: as_planned.map(|(by, value)| AsPlannedReport {
            carried: carried(by.total_fct(), by.cost, value),
            relayed_flows: by.relayed,
            displaced_flows: by.displaced,
            unplanned_flows: by.unplanned,
            late_flows: by.late,
        }),
        rerouted: carried(regret.applied.total_fct, regret.applied_cost(), regret.values.applied),
        clairvoyant: carried(clairvoyant.total_fct, clairvoyant.cost, regret.values.clairvoyant),
    }
}

fn mean_of(periods: &[PeriodReport]) -> Mean {
    let mean = |of: &dyn Fn(&PeriodReport) -> Option<f64>| {
        let all: Vec<f64> = periods.iter().filter_map(of).collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    };
    Mean {
        error_ratio: mean(&|period| period.error_ratio),
        as_planned_regret_ratio: mean(&|period| period.as_planned.as_ref()?.carried.regret_ratio),
        rerouted_regret_ratio: mean(&|period| period.rerouted.regret_ratio),
    }
}

fn show(report: &Report) -> anyhow::Result<()> {
    let percent = |ratio: Option<f64>| optional(ratio.map(|ratio| format!("{:.1}", ratio * 100.0)));
    let row = |period: &PeriodReport| {
        let by = period.as_planned.as_ref();
        vec![
            period.begins_s.to_string(),
            period.predictor.to_string(),
            percent(period.error_ratio),
            optional(period.direct_fct_s.map(decimals)),
            optional(by.map(|by| decimals(by.carried.total_fct_s))),
            decimals(period.rerouted.total_fct_s),
            decimals(period.clairvoyant.total_fct_s),
            percent(by.and_then(|by| by.carried.regret_ratio)),
            percent(period.rerouted.regret_ratio),
            optional(by.map(|by| dollars(by.carried.cost_usd))),
            dollars(period.clairvoyant.cost_usd),
        ]
    };
    let heading = [
        "from s",
        "predictor",
        "wrong %",
        "direct s",
        "as planned s",
        "rerouted s",
        "clairvoyant s",
        "regret %",
        "rerouted %",
        "cost $",
        "clairvoyant $",
    ];
    table::print(&heading, &report.periods.iter().map(row).collect::<Vec<_>>(), 2)?;
    let mean = &report.mean;
    output::line(format_args!(
        "mean over {}: forecast {} % wrong; regret {} % as planned, \
         {} % rerouted over the same relays",
        output::periods(report.periods.len()),
        percent(mean.error_ratio),
        percent(mean.as_planned_regret_ratio),
        percent(mean.rerouted_regret_ratio)
    ))?;
    report.beside.as_ref().map_or(Ok(()), |beside| {
        output::line(format_args!(
            "packet flows: the same in each period; the ${} that they cost at most are kept \
             of each plan's budget, and in no cost above",
            packets::dollars(beside.packets_reserve_usd)
        ))
    })
}
