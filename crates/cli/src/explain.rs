//! `tradewind explain`: the reasons for the path of a flow, of a plan or of a running overlay.

use std::path::PathBuf;
use std::process::ExitCode;

use tradewind_plan::explain;
use tradewind_plan::explain::{Alternative, ExplainedLeg, Explanation, Group, Stop, Verdict};
use tradewind_units::FlowId;

use crate::controller::access::ControllerArgs;
use crate::output::{self, Format, OrBadFile as _, Outcome, table};
use crate::plan::packets::explain as explain_packets;
use crate::plan::show::prices;
use crate::plan::stored_plan::StoredPlan;
use crate::why;

/// Most names of a group's flows in a line. Chosen: they fit.
const FLOWS_SHOWN: usize = 5;

#[derive(clap::Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct ExplainArgs {
    /// A plan, as `tradewind plan --out` wrote it; without one the flow is the running overlay's
    plan: Option<PathBuf>,
    /// The flow's name
    flow: FlowId,
    /// The problem, instead of the one that the plan's file holds
    #[arg(long, value_name = "FILE", requires = "plan")]
    problem: Option<PathBuf>,
    /// Number of other paths and groups to show; the direct path and the one taken are always shown
    #[arg(long, value_name = "N", default_value_t = 10, requires = "plan")]
    alternatives: usize,
    #[command(flatten)]
    controller: ControllerArgs,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

pub(crate) fn run(args: &ExplainArgs) -> Outcome {
    let Some(file) = &args.plan else {
        return why::explain(&args.controller, &args.flow, args.output);
    };
    let StoredPlan { read, problem, plan, packets } =
        StoredPlan::read(file, args.problem.as_deref())?;
    let mut of_packets = packets.iter().flat_map(|packets| &packets.flows);
    if let Some(flow) = of_packets.find(|flow| flow.id == args.flow) {
        match args.output {
            Format::Json => output::json(flow)?,
            Format::Table => {
                explain_packets(flow)?;
                prices(&read.file.inputs.prices, &read.file.inputs.regions)?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let explanation = explain(&problem, &plan, &args.flow).or_bad(file)?;
    match args.output {
        Format::Json => output::json(&explanation)?,
        Format::Table => {
            show(&explanation, args.alternatives)?;
            prices(&read.file.inputs.prices, &read.file.inputs.regions)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(explanation: &Explanation, most: usize) -> anyhow::Result<()> {
    let Explanation { flow, path, fct, set_up, start_up, steady, .. } = explanation;
    let types = has_types(explanation);
    output::line(format_args!("flow {flow}: {}, {:.3} s", named(path, types), fct.as_secs_f64()))?;
    output::line(format_args!(
        "  {:.3} s until the first byte, {:.3} s lost to slow start, {:.3} s at full rate",
        set_up.as_secs_f64(),
        start_up.as_secs_f64(),
        steady.as_secs_f64()
    ))?;
    if let Some(deadline) = explanation.deadline {
        let spare = deadline.saturating_sub(*fct).as_secs_f64();
        let deadline = deadline.as_secs_f64();
        output::line(format_args!("  deadline {deadline:.3} s: met with {spare:.3} s to spare"))?;
    }
    output::line(format_args!(
        "  pays ${:.2} of the plan's ${:.2}; {}",
        explanation.cost.as_usd(),
        explanation.plan_cost.as_usd(),
        reason(explanation)
    ))?;
    let legs: Vec<Vec<String>> = explanation.legs.iter().map(leg_row).collect();
    table::print(&["leg", "bound by", "RTT ms", "Mbit/s", ""], &legs, 2)?;
    let rows: Vec<Vec<String>> = (explanation.alternatives.iter().enumerate())
        .filter(|(place, other)| {
            *place < most || other.path.is_empty() || other.verdict == Verdict::Selected
        })
        .map(|(_, other)| alternative_row(other, types))
        .collect();
    table::print(&["path", "why not", "FCT s", "gain s", "more $", "more relays"], &rows, 2)?;
    output::line(
        "Each path is judged alone: this flow moves there, all others stay. Several flows that \
         move together may have another result.",
    )?;
    show_groups(&explanation.groups, most, types)?;
    if let Some(why) = explanation.groups_left_out {
        output::note(format_args!("not all flows that move together are judged: {why}"));
    }
    let hidden = explanation.alternatives.len().saturating_sub(rows.len());
    if hidden > 0 {
        output::note(format_args!("{hidden} other paths not shown (`--alternatives`)"));
    }
    Ok(())
}

/// Prints the effects of moving flows together.
fn show_groups(groups: &[Group], most: usize, types: bool) -> anyhow::Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let rows: Vec<Vec<String>> =
        groups.iter().take(most).map(|one| group_row(one, types)).collect();
    let head = ["together, by one relay", "in place of", "why not", "flows", "gain s", "more $"];
    table::print(&head, &rows, 2)?;
    let hidden = groups.len().saturating_sub(rows.len());
    if hidden > 0 {
        output::note(format_args!("{hidden} other groups not shown (`--alternatives`)"));
    }
    Ok(())
}

fn group_row(group: &Group, types: bool) -> Vec<String> {
    let names: Vec<&str> = group.flows.iter().take(FLOWS_SHOWN).map(|flow| flow.as_str()).collect();
    let more = match group.flows.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    vec![
        named(std::slice::from_ref(&group.relay), types),
        group.instead_of.as_ref().map_or_else(|| "-".to_owned(), |stop| stop.region.to_string()),
        verdict(group.verdict).to_owned(),
        format!("{}{more}", names.join(", ")),
        format!("{:+.3}", group.gain_s),
        format!("{:+.2}", group.extra_cost_usd),
    ]
}

fn leg_row(leg: &ExplainedLeg) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    if leg.slowest {
        notes.push("slowest".to_owned());
    }
    vec![
        format!("{} > {}", leg.from, leg.to),
        leg.bound_by.to_owned(),
        format!("{:.1}", leg.rtt_ms),
        format!("{:.1}", leg.rate_mbps),
        notes.join("; "),
    ]
}

fn alternative_row(other: &Alternative, types: bool) -> Vec<String> {
    let cost = other.extra_cost_usd.map_or_else(|| "-".to_owned(), |usd| format!("{usd:+.2}"));
    vec![
        named(&other.path, types),
        verdict(other.verdict).to_owned(),
        format!("{:.3}", other.fct.as_secs_f64()),
        format!("{:+.3}", other.gain_s),
        cost,
        other.extra_relays.to_string(),
    ]
}

fn named(path: &[Stop], types: bool) -> String {
    if path.is_empty() {
        return "direct".to_owned();
    }
    let stop = |stop: &Stop| {
        if types {
            format!("{} ({})", stop.region, stop.relay_type)
        } else {
            stop.region.to_string()
        }
    };
    let stops: Vec<String> = path.iter().map(stop).collect();
    format!("over {}", stops.join(" > "))
}

/// Returns whether paths differ by relay type and not by region alone.
fn has_types(explanation: &Explanation) -> bool {
    let all = explanation.alternatives.iter().flat_map(|other| &other.path);
    let mut types = all.map(|stop| &stop.relay_type);
    types.next().is_some_and(|first| types.any(|other| other != first))
}

/// Returns the reason why the flow is not faster, in words.
fn reason(explanation: &Explanation) -> String {
    let faster = explanation.alternatives.iter().filter(|other| other.gain_s > 0.0);
    let first = faster.map(|other| other.verdict).find(|verdict| *verdict != Verdict::Selected);
    match first {
        Some(Verdict::Budget) => "the budget keeps it from faster paths".to_owned(),
        Some(Verdict::Capacity) => "its relays' capacity keeps it from faster paths".to_owned(),
        Some(Verdict::Dearer) => "faster paths cost more, and cost is the objective".to_owned(),
        Some(Verdict::Missed) => "a faster path is affordable: the algorithm missed it".to_owned(),
        Some(Verdict::Deadline | Verdict::NoBetter | Verdict::Selected) | None => {
            format!("no path is faster; what binds it: {}", explanation.binding)
        }
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Selected => "selected",
        Verdict::NoBetter => "no better",
        Verdict::Budget => "over the budget",
        Verdict::Capacity => "a relay is too small",
        Verdict::Deadline => "misses the deadline",
        Verdict::Dearer => "costs more",
        Verdict::Missed => "missed",
    }
}
