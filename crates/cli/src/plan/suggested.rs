//! Plans of the controller, as `tradewind plan` and `tradewind apply` show them.

use std::process::ExitCode;

use tradewind_control::packet_flow::PlannedPackets;
use tradewind_controller::view::PlanView;
use tradewind_plan::PlannedFlow;
use tradewind_plan::packets::PlannedPacketFlow;
use tradewind_units::{RelayId, time};

use crate::controller::access::{ControllerArgs, TableArgs};
use crate::output::{self, Outcome, table};

/// The columns of the flows of a plan, as CSV.
const COLUMNS: [&str; 6] = ["id", "path", "fct_direct_s", "fct_s", "egress_usd", "move_usd"];

/// Has the controller make a plan, and prints it.
pub(super) fn run(controller: &ControllerArgs, output: &TableArgs) -> Outcome {
    let plan: PlanView = controller.client()?.post("/v1/plans", &serde_json::json!({}))?;
    output.print(&plan, &COLUMNS, &plan.record.plan.flows, propose)?;
    Ok(ExitCode::SUCCESS)
}

fn propose(plan: &PlanView) -> anyhow::Result<()> {
    show(plan)?;
    if plan.is_applied {
        return Ok(());
    }
    let number = plan.record.number;
    output::line(format_args!("`tradewind apply {number}` puts it into effect"))
}

/// Prints what a plan does, what that costs and gains, and what that rests on.
pub(crate) fn show(view: &PlanView) -> anyhow::Result<()> {
    let record = &view.record;
    let relays = match record.hosts.len() {
        0 => "no relay".to_owned(),
        1 => "1 relay".to_owned(),
        count => format!("{count} relays"),
    };
    let applied = if view.is_applied { "; it is in effect" } else { "" };
    output::line(format_args!(
        "plan {}: {relays}, {} a day{applied}",
        record.number, record.usd_per_day
    ))?;
    let row = |flow: &PlannedFlow| {
        let hops: Vec<&str> = flow.path.iter().map(RelayId::as_str).collect();
        let path = if hops.is_empty() { "direct".to_owned() } else { hops.join(" > ") };
        let seconds = flow.fct.as_secs_f64();
        let direct = flow.fct_direct.map(|direct| direct.as_secs_f64());
        let text = |number: Option<f64>| number.map_or(String::new(), |n| format!("{n:.1}"));
        vec![
            flow.id.to_string(),
            path,
            text(direct),
            text(Some(seconds)),
            text(direct.map(|direct| direct / seconds)),
            format!("{:.2}", flow.egress.as_usd()),
        ]
    };
    let rows: Vec<Vec<String>> = record.plan.flows.iter().map(row).collect();
    let heading = ["flow", "path", "direct s", "planned s", "times as fast", "egress $"];
    table::print(&heading, &rows, 2)?;
    packets(&record.packets)?;
    record.rests_on.iter().try_for_each(|line| output::line(format_args!("rests on: {line}")))
}

/// Prints the packet flows of a plan, if it has some.
fn packets(planned: &PlannedPackets) -> anyhow::Result<()> {
    if planned.flows.is_empty() {
        return Ok(());
    }
    let row = |flow: &PlannedPacketFlow| {
        let relays: Vec<&str> = flow.path.iter().map(RelayId::as_str).collect();
        let millis = |span| format!("{:.0}", time::as_millis_f64(span));
        vec![
            flow.id.to_string(),
            flow.service.to_string(),
            relays.join(" > "),
            millis(flow.delivery),
            millis(flow.budget),
            format!("{:.2}", flow.cost.as_usd()),
        ]
    };
    let rows: Vec<Vec<String>> = planned.plan.flows.iter().map(row).collect();
    let heading = ["packet flow", "service", "relays", "slowest ms", "budget ms", "$ a day"];
    table::print(&heading, &rows, 3)?;
    planned.left_out.iter().try_for_each(|(flow, reason)| {
        output::line(format_args!("packet flow {flow}: the Internet alone: {reason}"))
    })
}
