//! `tradewind status`: whether all is well with an overlay, and if not, what to do.

use tradewind_control::record::Step;
use tradewind_controller::view::{Status, StatusProblem};
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

/// Most remedies that are shown. Chosen: with the summary they fit a screen of 24 lines.
const MAX_REMEDIES: usize = 5;

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
        1 => output::line("1 problem")?,
        count => output::line(format_args!("{count} problems"))?,
    }
    output::line(format_args!("hosts: {} of {} well", status.hosts_well, status.hosts))?;
    output::line(format_args!(
        "flows: {}, {} of them over relays",
        status.flows, status.flows_over_relays
    ))?;
    output::line(sentence(&status.settings))?;
    output::line(plan(status))?;
    problems(&status.problems).into_iter().try_for_each(output::line)
}

/// Returns the problems in a few lines: those with the same remedy together, and of many the first.
fn problems(problems: &[StatusProblem]) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for StatusProblem { what, remedy } in problems {
        match groups.iter_mut().find(|(of_group, _)| of_group == remedy) {
            Some((_, whats)) => whats.push(what),
            None => groups.push((remedy, vec![what])),
        }
    }
    let mut lines = Vec::new();
    let (mut shown, mut is_all) = (0, true);
    for (remedy, whats) in groups.iter().take(MAX_REMEDIES) {
        shown += whats.len();
        match whats[..] {
            [first, second] => lines.extend([format!("- {first}"), format!("- {second}")]),
            [first] => lines.push(format!("- {first}")),
            _ => {
                is_all = false;
                let more = whats.len() - 1;
                lines.extend([format!("- {}", whats[0]), format!("  and {more} more like it")]);
            }
        }
        lines.push(format!("    -> {remedy}"));
    }
    if shown < problems.len() {
        is_all = false;
        lines.push(format!("and {} more with other remedies", problems.len() - shown));
    }
    if !is_all {
        lines.push("all of them: tradewind status -o csv".to_owned());
    }
    lines
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_of_one_remedy_are_told_once_and_of_many_the_first() {
        let problem = |what: usize, remedy: usize| StatusProblem {
            what: format!("flow {what}"),
            remedy: format!("remedy {remedy}"),
        };
        assert_eq!(problems(&[]), [""; 0]);
        assert_eq!(
            problems(&[problem(1, 1), problem(2, 2), problem(3, 1)]),
            ["- flow 1", "- flow 3", "    -> remedy 1", "- flow 2", "    -> remedy 2"]
        );
        let many: Vec<StatusProblem> = (0..99).map(|number| problem(number, number % 9)).collect();
        let lines = problems(&many);
        let first = ["- flow 0", "  and 10 more like it", "    -> remedy 0"];
        assert_eq!((&lines[..3], lines.len()), (&first.map(str::to_owned)[..], 17));
        let last = ["and 44 more with other remedies", "all of them: tradewind status -o csv"];
        assert_eq!(lines[15..], last);
    }
}
