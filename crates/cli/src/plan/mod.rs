//! `tradewind plan`: a problem file in, a verified plan out.

mod compare;
mod configure;
mod expected;
mod front;
mod joint;
pub(crate) mod packets;
pub(crate) mod problem;
mod regret;
pub(crate) mod show;
pub(crate) mod stored_plan;
pub(crate) mod suggested;
mod sweep;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::builder::{PossibleValue, PossibleValuesParser};
use tradewind_demo::executor::Threads;
use tradewind_plan::solver::{self, Limits};
use tradewind_plan::{Answer, Plan, Problem, Status, verify};
use tradewind_units::{Money, UnitError, time::parse_duration};

use crate::controller::access::{ControllerArgs, TableArgs};
use crate::output::file::write_whole;
use crate::output::{self, BadFile, FAILED, Outcome, TableFormat};
use problem::Read;

#[derive(clap::Args)]
pub(crate) struct PlanCommand {
    #[command(subcommand)]
    command: Option<PlanSubcommand>,
    #[command(flatten)]
    args: PlanArgs,
}

#[derive(clap::Subcommand)]
enum PlanSubcommand {
    /// Solve one problem by every algorithm, side by side
    ///
    /// Packet flows are planned over the relays of each algorithm's plan; their cost, and the total
    /// cost, stand beside it.
    Compare(compare::CompareArgs),
    /// Solve one problem for many budgets: what does more money buy?
    ///
    /// Each budget is that of streams and packet flows together; budgets that are too small for the
    /// packet flows are reported.
    Sweep(sweep::SweepArgs),
    /// Show the controller's plans for several budgets: what does more money buy?
    ///
    /// From no relay to all that helps, each with dollars and seconds saved a day. They are
    /// computed of what is measured now, and kept until that changes.
    Front(front::FrontArgs),
    /// Compare plans for forecasts of a log's past periods with clairvoyant plans
    ///
    /// Each of the last periods is forecast from those before it and planned for; then its true
    /// flows take the paths planned between their sites, or go direct; and, besides, are planned
    /// for again over the same relays. Both are compared with the plan for the true flows. The
    /// highest possible cost of packet flows is reserved from each plan's budget; they are the same
    /// in each period, and no figure includes their cost. See docs/how-to/forecast.md.
    Regret(regret::RegretArgs),
    /// Write the configurations of a plan's gateways and relays: routes and leg profiles
    ///
    /// The inventory (TOML, see docs/reference/inventory.md) adds what the plan leaves open: the
    /// addresses of its relays, and the destinations of its flows.
    Configure(configure::ConfigureArgs),
}

#[derive(clap::Args)]
#[command(mut_arg("problem", |problem| problem.required(false)))]
struct PlanArgs {
    #[command(flatten)]
    asked: AskedArgs,
    /// Most that the plan may cost, in dollars, instead of the file's `budget_usd`
    #[arg(long, value_name = "USD", value_parser = usd, requires = "problem")]
    budget: Option<Money>,
    #[command(flatten)]
    algorithm: AlgorithmArgs,
    /// File for the plan (JSON) with the problem that it answers, for `tradewind explain`
    #[arg(long, value_name = "FILE", requires = "problem")]
    out: Option<PathBuf>,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The columns of the flows of a plan, as CSV.
const COLUMNS: [&str; 6] = ["id", "path", "direct_fct_s", "fct_s", "cost_usd", "move_usd"];

/// The time when a command, or a period of it, began.
#[derive(Clone, Copy)]
struct Begun(Instant);

impl Begun {
    fn now() -> Self {
        Self(Instant::now())
    }

    /// Returns the rest of a deadline; zero once it has passed.
    fn left_of(self, deadline: Duration) -> Duration {
        deadline.saturating_sub(self.0.elapsed())
    }
}

/// The arguments of every planning command.
#[derive(clap::Args)]
struct AskedArgs {
    /// The problem (TOML, see docs/reference/problem.md)
    #[arg(long, value_name = "FILE", required = true)]
    problem: Option<PathBuf>,
    /// Wall-clock time for each run of an algorithm, reading and building the problem included;
    /// then its best plan so far counts
    #[arg(long, value_name = "SPAN", default_value = "10 s", requires = "problem",
        value_parser = parse_duration)]
    deadline: Duration,
    #[command(flatten)]
    expected: expected::ExpectedArgs,
}

impl AskedArgs {
    /// Reads the problem, and prints the basis of its figures.
    fn read(&self, budget: Option<Money>) -> Result<Read, BadFile> {
        let read = self.expected.read(self.file(), budget)?;
        read.note_basis();
        Ok(read)
    }

    fn file(&self) -> &Path {
        // It is absent only with a subcommand in its place, which clap ensures.
        self.problem.as_deref().unwrap_or(Path::new(""))
    }
}

#[derive(clap::Args)]
struct AlgorithmArgs {
    /// Algorithm that makes the plan
    #[arg(
        long,
        value_name = "NAME",
        default_value = solver::DEFAULT,
        requires = "problem",
        value_parser = PossibleValuesParser::new(named_algorithms())
    )]
    algorithm: String,
}

/// Returns the algorithms for `--help`.
fn named_algorithms() -> impl Iterator<Item = PossibleValue> {
    solver::algorithms().iter().map(|known| PossibleValue::new(known.name).help(known.about))
}

/// Parses dollars from the command line.
fn usd(text: &str) -> Result<Money, UnitError> {
    let refused = || UnitError::new("money", "dollars such as `6` or `0.5`", text);
    text.parse().map_err(|_| refused()).and_then(Money::from_usd)
}

pub(crate) fn run(command: &PlanCommand) -> Outcome {
    match &command.command {
        Some(PlanSubcommand::Compare(args)) => compare::run(args),
        Some(PlanSubcommand::Sweep(args)) => sweep::run(args),
        Some(PlanSubcommand::Front(args)) => front::run(args),
        Some(PlanSubcommand::Regret(args)) => regret::run(args),
        Some(PlanSubcommand::Configure(args)) => configure::run(args),
        None => one(&command.args),
    }
}

fn one(args: &PlanArgs) -> Outcome {
    if args.asked.problem.is_none() {
        return suggested::run(&args.controller, &args.output);
    }
    let begun = Begun::now();
    let read = args.asked.read(args.budget)?;
    let mut answer = planned(args, &read, begun)?;
    answer.forecast.clone_from(&read.forecast);
    answer.set_prices(&read.file.inputs);
    note_unpaid_hours(&read, &answer);
    if let Some(out) = &args.out {
        let with_problem = Answer { problem: Some(read.asked.clone()), ..answer.clone() };
        write(out, &serde_json::to_string_pretty(&with_problem)?)?;
    }
    let table = |answer: &Answer| show::answer(&read, answer);
    args.output.print(&answer, &COLUMNS, &answer.flows, table)?;
    if args.output.output == TableFormat::Csv {
        show::reason(&read, &answer);
    }
    Ok(exit_code(&answer))
}

/// Warns when a plan takes longer than its machines are paid for.
fn note_unpaid_hours(read: &Read, answer: &Answer) {
    let Some((hours, last)) = read.file.paid_hours.zip(answer.makespan) else { return };
    let needed = last.as_secs().div_ceil(3600);
    if needed > hours && !answer.relays.is_empty() {
        output::note(format_args!(
            "note: the last flow takes {needed} h, but machines are paid for {hours} h: state \
             `period = \"{needed} h\"`"
        ));
    }
}

/// Returns the answer to a problem within its budget, packet flows included.
fn planned(args: &PlanArgs, read: &Read, begun: Begun) -> anyhow::Result<Answer> {
    let algorithm = &args.algorithm.algorithm;
    let (problem, joint) = match joint::problem(read)? {
        Ok(made) => made,
        Err(reason) => return Ok(read.infeasible(algorithm, reason)),
    };
    let budget = problem.budget();
    let left = match joint.left_of(budget) {
        Ok(left) => left,
        Err(error) => return Ok(joint.unaffordable(algorithm, budget, &error)),
    };
    let problem = problem.with_budget(left);
    let mut answer = solve(&problem, algorithm, begun.left_of(args.asked.deadline))?;
    answer.set_origins(&problem, &read.file.origins);
    joint.with_packets(&problem, answer)
}

/// Runs one algorithm for at most `deadline`, and verifies its plan.
fn solve(problem: &Problem, algorithm: &str, deadline: Duration) -> anyhow::Result<Answer> {
    let chosen =
        solver::by_name(algorithm).with_context(|| format!("no algorithm `{algorithm}`"))?;
    if problem.flows().is_empty() {
        return Ok(Answer::new(problem, algorithm, Ok(Plan::nothing()), Duration::ZERO)?);
    }
    let start = Begun::now();
    let time_left = || start.left_of(deadline);
    let should_stop = || time_left().is_zero();
    let limits = Limits {
        work: u64::MAX,
        should_stop: &should_stop,
        time_left: Some(&time_left),
        executor: &Threads::available(),
    };
    let outcome = solver::solve(chosen.as_ref(), problem, &limits);
    let answer = Answer::new(problem, algorithm, outcome, start.0.elapsed())?;
    check(problem, &answer)?;
    Ok(answer)
}

/// Refuses a plan that violates the verifier's checks.
fn check(problem: &Problem, answer: &Answer) -> anyhow::Result<()> {
    let violations = answer.plan().map(|plan| verify(problem, &plan)).unwrap_or_default();
    if let Some(first) = violations.first() {
        let (algorithm, count) = (&answer.algorithm, violations.len());
        bail!(
            "the plan of `{algorithm}` is wrong in {count} points, which is a bug of ours: {first}"
        );
    }
    Ok(())
}

fn exit_code(answer: &Answer) -> ExitCode {
    match answer.status {
        Status::Optimal | Status::Feasible => ExitCode::SUCCESS,
        Status::Infeasible | Status::Limited => FAILED.into(),
    }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    write_whole(file, text)?;
    output::note(format_args!("wrote {}", file.display()));
    Ok(())
}
