//! `tradewind why-not`, and `tradewind explain` for flows of a running overlay.

use std::process::ExitCode;

use tradewind_control::explain::{OtherPath, PathLeg};
use tradewind_controller::view::Explained;
use tradewind_units::{FlowId, HostId};

use crate::controller::access::{ControllerArgs, TableArgs};
use crate::output::{self, Format, Outcome, table};

#[derive(clap::Args)]
pub(crate) struct WhyNotArgs {
    /// The flow's name
    flow: FlowId,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The columns of the paths that a flow does not take, as CSV.
const COLUMNS: [&str; 5] = ["hosts", "reason", "why", "seconds", "usd_per_day"];

/// Answers why a flow does not go over relays.
pub(crate) fn run(args: &WhyNotArgs) -> Outcome {
    let explained = ask(&args.controller, &args.flow)?;
    args.output.print(&explained, &COLUMNS, &explained.explanation.others, show)?;
    Ok(ExitCode::SUCCESS)
}

fn show(Explained { explanation, .. }: &Explained) -> anyhow::Result<()> {
    let flow = &explanation.flow;
    if explanation.is_over_relays {
        return output::line(format_args!("flow {flow}: it does: {}", explanation.answer));
    }
    output::line(format_args!("flow {flow}: {}", explanation.answer))?;
    others(&explanation.others)
}

/// Explains the path of a flow.
pub(crate) fn explain(controller: &ControllerArgs, flow: &FlowId, form: Format) -> Outcome {
    let explained = ask(controller, flow)?;
    match form {
        Format::Json => output::json(&explained)?,
        Format::Table => {
            let explanation = &explained.explanation;
            output::line(format_args!("flow {flow}: {}", explanation.answer))?;
            output::line(format_args!("  {}", explanation.demand.in_words()))?;
            let legs: Vec<Vec<String>> = explanation.path.legs.iter().map(leg).collect();
            table::print(&["leg", "rate", "method", "RTT ms", "Mbit/s", "age s"], &legs, 3)?;
            others(&explanation.others)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(controller: &ControllerArgs, flow: &FlowId) -> anyhow::Result<Explained> {
    Ok(controller.client()?.get(&format!("/v1/flows/{flow}/explain"))?)
}

fn leg(leg: &PathLeg) -> Vec<String> {
    let number =
        |number: Option<f64>| number.map_or(String::new(), |number| format!("{number:.1}"));
    let rate = match (leg.rate_mbps, leg.is_rate_measured) {
        (None, _) => "",
        (Some(_), true) => "measured",
        (Some(_), false) => "estimated",
    };
    let method = leg.method.and_then(|method| serde_json::to_value(method).ok());
    let method = method.as_ref().and_then(serde_json::Value::as_str).unwrap_or("not measured");
    vec![
        format!("{} > {}", leg.from, leg.to),
        rate.to_owned(),
        method.to_owned(),
        number(leg.rtt_ms),
        number(leg.rate_mbps),
        leg.age_s.map_or(String::new(), |age| age.to_string()),
    ]
}

/// Prints the paths that a flow does not take.
fn others(others: &[OtherPath]) -> anyhow::Result<()> {
    if others.is_empty() {
        return Ok(());
    }
    let row = |other: &OtherPath| {
        let hops: Vec<&str> = other.hosts.iter().map(HostId::as_str).collect();
        let path = if hops.is_empty() { "direct".to_owned() } else { hops.join(" > ") };
        let seconds = other.seconds.map_or(String::new(), |seconds| format!("{seconds:.1}"));
        let usd = other.usd_per_day.map_or(String::new(), |usd| format!("{:.2}", usd.as_usd()));
        vec![path, other.why.clone(), seconds, usd]
    };
    let rows: Vec<Vec<String>> = others.iter().map(row).collect();
    table::print(&["other path", "why not", "seconds", "$ a day"], &rows, 2)
}
