//! `tradewind packet`: the state of the packet flows of a running gateway.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use tradewind_node::PacketReport;
use tradewind_node::status::{Direction, FlowStatus, RefusalStatus};
use tradewind_units::{Bytes, address};

use crate::netcheck::{page, read_config};
use crate::output::{self, BadFile, Format, Outcome, table};

#[derive(clap::Subcommand)]
pub(crate) enum PacketCommand {
    /// Show each flow of a running gateway: its service and the reason, recovered, late and lost
    /// packets
    Status(StatusArgs),
}

#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    /// The gateway's configuration; the gateway is queried at its `metrics` address
    #[arg(short, long, value_name = "FILE", required_unless_present = "gateway")]
    config: Option<PathBuf>,
    /// Query the gateway whose metrics are at this address instead
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address::parse)]
    gateway: Option<SocketAddr>,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

pub(crate) fn run(command: &PacketCommand) -> Outcome {
    match command {
        PacketCommand::Status(args) => status(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let address = match (args.gateway, &args.config) {
        (Some(address), _) => address,
        (None, Some(file)) => {
            let named = read_config(file)?.metrics.filter(|address| address.port() != 0);
            let place = file.display();
            named.ok_or_else(|| {
                BadFile(format!("{place}: `metrics` names no port to ask at; --gateway does"))
            })?
        }
        (None, None) => return Err(BadFile("--config or --gateway is needed".to_owned()).into()),
    };
    let asked = || format!("gateway at {address}");
    let page = page(address, "/packets").with_context(asked)?;
    let report: PacketReport = serde_json::from_str(&page)
        .context("the answer is no report of packets")
        .with_context(asked)?;
    match args.output {
        Format::Json => output::json(&report),
        Format::Table => print(&report),
    }
}

fn print(report: &PacketReport) -> anyhow::Result<()> {
    let rows: Vec<_> = report.flows.iter().map(row).collect();
    let heading = [
        "flow",
        "service",
        "why",
        "packets",
        "copies",
        "cached",
        "in-stream",
        "cross-stream",
        "late",
        "lost",
        "billed",
        "$ an hour",
    ];
    table::print(&heading, &rows, 3)?;
    print_members(report)?;
    if report.foreign_sources > 0 {
        let count = report.foreign_sources;
        output::note(format_args!(
            "{count} packets were dropped, since their sender's grant does not cover their source"
        ));
    }
    for refusal in &report.refusals {
        let RefusalStatus { remote, what, by, reason } = refusal;
        output::note(format!("refused: the {what} to {remote}, by {by}: {reason}"));
    }
    output::note(
        "cached, in-stream, cross-stream: recovered packets, by means; of flows that are sent, \
         as their receivers tell",
    );
    Ok(())
}

/// Prints the relays whose distance the gateway measures, then the endpoints that it knows as
/// members.
fn print_members(report: &PacketReport) -> anyhow::Result<()> {
    let shown = |round_trip: Option<f64>| {
        round_trip.map_or_else(|| "-".to_owned(), |millis| format!("{millis:.1} ms"))
    };
    let short = |identity: &str| identity.chars().take(14).collect::<String>();
    if !report.relays.is_empty() {
        let rows: Vec<_> = report
            .relays
            .iter()
            .map(|relay| {
                let nearest = if relay.is_nearest { "nearest" } else { "" };
                let address = relay.address.to_string();
                vec![short(&relay.identity), address, shown(relay.round_trip_ms), nearest.into()]
            })
            .collect();
        table::print(&["relay", "address", "round trip", ""], &rows, 2)?;
    }
    if !report.endpoints.is_empty() {
        let rows: Vec<_> = report
            .endpoints
            .iter()
            .map(|endpoint| {
                let nearest = endpoint.nearest.as_deref().map_or_else(|| "-".to_owned(), short);
                let address = endpoint.address.to_string();
                vec![endpoint.id.clone(), address, nearest, shown(endpoint.round_trip_ms)]
            })
            .collect();
        table::print(&["endpoint", "address", "its relay", "round trip"], &rows, 3)?;
    }
    Ok(())
}

fn row(flow: &FlowStatus) -> Vec<String> {
    let shown =
        |address: Option<SocketAddr>| address.map_or_else(|| "?".to_owned(), |a| a.to_string());
    let remote: String = flow.remote.chars().take(14).collect();
    let (here, there) = match flow.listen {
        Some(_) => (shown(flow.listen), shown(flow.to)),
        None => ("here".to_owned(), remote),
    };
    let name = match flow.direction {
        Direction::Sent => format!("{here} > {there}"),
        Direction::Received => format!("{here} < {there}"),
    };
    let mut row = vec![name, flow.service.clone(), flow.why.clone()];
    row.extend([flow.packets, flow.copies].map(|count| count.to_string()));
    let statistics = flow.statistics.map(|statistics| {
        [
            statistics.recovered_cache,
            statistics.recovered_in_stream,
            statistics.recovered_cross_stream,
            statistics.late,
            statistics.lost,
        ]
    });
    match statistics {
        Some(counts) => row.extend(counts.map(|count| count.to_string())),
        None => row.extend(std::iter::repeat_n("-".to_owned(), 5)),
    }
    let unknown = || "-".to_owned();
    row.push(flow.billed.map_or_else(unknown, |billed| Bytes::new(billed.bytes).to_string()));
    let an_hour = flow.billed.and_then(|billed| billed.usd_per_hour);
    row.push(an_hour.map_or_else(unknown, dollars));
    row
}

/// Formats dollars with six decimals; a smaller amount above zero is shown as such.
fn dollars(usd: f64) -> String {
    const MIN: f64 = 1e-6;
    if usd > 0.0 && usd < MIN { format!("<{MIN:.6}") } else { format!("{usd:.6}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_amounts_are_not_shown_as_zero() {
        for (usd, expected) in [(0.0, "0.000000"), (1e-9, "<0.000001"), (0.0125, "0.012500")] {
            assert_eq!(dollars(usd), expected);
        }
    }
}
