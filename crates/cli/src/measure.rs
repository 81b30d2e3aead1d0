//! `tradewind measure`: what is measured of the legs of an overlay, and measurements of others.

mod atlas;
mod given;
mod import;
mod iperf3;
mod pings;
mod tables;

use std::process::ExitCode;

use serde::Serialize;
use tradewind_controller::store::MeasuredOnce;
use tradewind_controller::view::{History, Measurements};
use tradewind_grant::date::Date;
use tradewind_model::measurement::{LegMeasurement, Method};
use tradewind_stream::clock::unix_now;
use tradewind_units::{SiteId, time};

use crate::controller::access::{ControllerArgs, TableArgs};
use crate::output::{self, Outcome, csv, table};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct MeasureArgs {
    #[command(subcommand)]
    command: Option<MeasureCommand>,
    /// Show the legs of one place
    place: Option<SiteId>,
    /// Show the leg from that place to this one, as it was measured in the last week
    to: Option<SiteId>,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

#[derive(clap::Subcommand)]
enum MeasureCommand {
    /// Take in what another tool has measured, by its own time
    ///
    /// The planner uses it as it uses measurements of agents of that age. A leg that agents measure
    /// has their figures again with their next probe. Files, and the keys that are read of them:
    /// docs/how-to/measure.md.
    Import(import::ImportArgs),
    /// Print all measurements of the last week as CSV, which `import` reads
    Export {
        #[command(flatten)]
        controller: ControllerArgs,
    },
}

/// The columns of measurements as CSV, which are also those that `import` reads.
const COLUMNS: [&str; 10] = [
    "src",
    "dst",
    "unix_ms",
    "rtt_ms",
    "median_ms",
    "spread_ms",
    "samples",
    "mbps",
    "connections",
    "method",
];

/// A measurement of a leg in one row.
#[derive(Serialize)]
struct Row {
    src: SiteId,
    dst: SiteId,
    unix_ms: Option<u64>,
    rtt_ms: f64,
    median_ms: f64,
    spread_ms: f64,
    samples: Option<u32>,
    mbps: Option<f64>,
    connections: Option<u32>,
    method: Method,
}

impl Row {
    fn of_leg(leg: &LegMeasurement) -> Self {
        let ms = time::as_millis_f64;
        Self {
            src: leg.source.clone(),
            dst: leg.destination.clone(),
            unix_ms: leg.measured_at_unix_ms,
            rtt_ms: ms(leg.rtt.min),
            median_ms: ms(leg.rtt.median),
            spread_ms: ms(leg.rtt.spread),
            samples: Some(leg.rtt.count),
            mbps: leg.rate.map(|rate| rate.rate.as_mbps()),
            connections: leg.rate.map(|rate| rate.connections),
            method: leg.method,
        }
    }

    fn of_history(history: &History, once: &MeasuredOnce) -> Self {
        Self {
            src: history.from.clone(),
            dst: history.to.clone(),
            unix_ms: Some(once.unix_ms),
            rtt_ms: once.rtt_min_ms,
            median_ms: once.rtt_median_ms,
            spread_ms: once.rtt_spread_ms,
            samples: None,
            mbps: once.rate_mbps,
            connections: once.connections,
            method: once.method,
        }
    }
}

pub(crate) fn run(args: MeasureArgs) -> Outcome {
    match args.command {
        Some(MeasureCommand::Import(import)) => return import::run(&import),
        Some(MeasureCommand::Export { controller }) => export(&controller)?,
        None => match (&args.place, &args.to) {
            (Some(from), Some(to)) => history(&args, from, to)?,
            (place, _) => newest(&args, place.as_ref())?,
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn newest(args: &MeasureArgs, place: Option<&SiteId>) -> anyhow::Result<()> {
    let mut measured: Measurements = args.controller.client()?.get("/v1/measurements")?;
    measured.legs.retain(|leg| place.is_none_or(|it| leg.source == *it || leg.destination == *it));
    let rows: Vec<Row> = measured.legs.iter().map(Row::of_leg).collect();
    args.output.print(&measured, &COLUMNS, &rows, |_| {
        if rows.is_empty() {
            return output::line("nothing is measured yet: `tradewind hosts` shows who could");
        }
        let now_ms = unix_now().as_nanos() / 1_000_000;
        let age = |at: u64| format!("{} s", now_ms.saturating_sub(at) / 1000);
        let cells = |row: &Row| {
            let mut cells = vec![row.src.to_string(), row.dst.to_string()];
            cells.extend(figures(row));
            cells.push(row.unix_ms.map_or(String::new(), age));
            cells
        };
        let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
        let heading = ["from", "to", "method", "RTT ms", "median", "spread", "Mbit/s", "age"];
        table::print(&heading, &rows, 3)
    })
}

fn history(args: &MeasureArgs, from: &SiteId, to: &SiteId) -> anyhow::Result<()> {
    let client = args.controller.client()?;
    let history: History = client.get(&format!("/v1/measurements/{from}/{to}"))?;
    let rows: Vec<Row> =
        history.measured.iter().map(|once| Row::of_history(&history, once)).collect();
    args.output.print(&history, &COLUMNS, &rows, |_| {
        if rows.is_empty() {
            return output::line(format_args!("{from} > {to}: not measured in the last week"));
        }
        let cells = |row: &Row| {
            let mut cells = vec![Date(row.unix_ms.unwrap_or_default() / 1000).to_string()];
            cells.extend(figures(row));
            cells
        };
        let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
        table::print(&["time", "method", "RTT ms", "median", "spread", "Mbit/s"], &rows, 2)
    })
}

/// Returns method, round-trip times and rate in words.
fn figures(row: &Row) -> [String; 5] {
    let method = serde_json::to_value(row.method).ok();
    let method = method.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default();
    let rate = match (row.mbps, row.connections) {
        (Some(mbps), Some(connections)) if connections > 1 => format!("{mbps:.1} by {connections}"),
        (Some(mbps), _) => format!("{mbps:.1}"),
        (None, _) => String::new(),
    };
    let ms = |ms: f64| format!("{ms:.1}");
    [method.to_owned(), ms(row.rtt_ms), ms(row.median_ms), ms(row.spread_ms), rate]
}

fn export(controller: &ControllerArgs) -> anyhow::Result<()> {
    let client = controller.client()?;
    let measured: Measurements = client.get("/v1/measurements")?;
    let mut rows = Vec::new();
    for leg in &measured.legs {
        let (from, to) = (&leg.source, &leg.destination);
        let history: History = client.get(&format!("/v1/measurements/{from}/{to}"))?;
        rows.extend(history.measured.iter().map(|once| Row::of_history(&history, once)));
    }
    csv::print(&COLUMNS, &rows)
}
