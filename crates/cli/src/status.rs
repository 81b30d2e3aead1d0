//! `tradewind status`: whether all is well with an overlay, and if not, what to do.

use tradewind_control::record::Step;
use tradewind_controller::view::Status;
use tradewind_stream::clock::unix_now;

use crate::budget::sentence;
use crate::controller::access::{ControllerArgs, TableArgs};
use crate::output::{self, CHECK_FAILED, Outcome};

#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The columns of the problems as CSV: none of them, and all is well.
const COLUMNS: [&str; 2] = ["what", "remedy"];

pub(crate) fn run(args: &StatusArgs) -> Outcome {
    let status: Status = args.controller.client()?.get("/v1/status")?;
    args.output.print(&status, &COLUMNS, &status.problems, show)?;
    let is_well = status.problems.is_empty();
    Ok(if is_well { std::process::ExitCode::SUCCESS } else { CHECK_FAILED.into() })
}

fn show(status: &Status) -> anyhow::Result<()> {
    match status.problems.len() {
        0 if status.hosts_well < status.hosts => {
            let count = match status.hosts - status.hosts_well {
                1 => "1 host has".to_owned(),
                count => format!("{count} hosts have"),
            };
            output::line(format_args!("no problem so far; {count} not reported yet, or changes"))?;
        }
        0 => output::line("all is well")?,
        1 => output::line("1 problem:")?,
        count => output::line(format_args!("{count} problems:"))?,
    }
    for problem in &status.problems {
        output::line(format_args!("  {}\n    -> {}", problem.what, problem.remedy))?;
    }
    output::line(format_args!("hosts: {} of {} well", status.hosts_well, status.hosts))?;
    output::line(format_args!(
        "flows: {}, {} of them over relays",
        status.flows, status.flows_over_relays
    ))?;
    output::line(sentence(&status.settings))?;
    output::line(plan(status))
}

/// Returns the state of plans in a line.
fn plan(status: &Status) -> String {
    let now = match status.plan {
        None => "plan: none in effect, every flow goes direct".to_owned(),
        Some(number) => format!("plan: {number} in effect, {} a day", status.usd_per_day),
    };
    let next = match (status.step, status.rollout_to) {
        (Step::Done, _) => match status.newest_plan.filter(|newest| status.plan != Some(*newest)) {
            None => String::new(),
            Some(newest) => format!("; {newest} is newer (`tradewind apply` shows it)"),
        },
        (Step::Relays, Some(to)) => format!("; relays of plan {to} start{}", awaited(status)),
        (Step::Gateways, Some(to)) => format!("; gateways change to plan {to}"),
        (_, None) => "; relays end".to_owned(),
    };
    now + &next
}

/// Returns the relays that a plan waits for, in words.
fn awaited(status: &Status) -> String {
    let Some((first, others)) = status.awaited.split_first() else { return String::new() };
    let others = match others.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let waited = (unix_now().as_nanos() / 1_000_000).saturating_sub(status.step_since_unix_ms);
    format!("; not ready after {} s: {first}{others}", waited / 1000)
}
