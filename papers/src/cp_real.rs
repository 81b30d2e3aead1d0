//! `cp-real` `[CP VII-C]`: the demo, repeated as often as asked.

use std::io;
use std::path::Path;

use tradewind_demo::report::DemoReport;
use tradewind_demo::scenario::Scenario;
use tradewind_demo::{self as demo, DemoError, DemoOptions};

use crate::harness::checked::Checked;
use crate::harness::{
    Experiment, ExperimentError, Observer, Record, Row, RunOptions, read_text, repeats,
};

pub(super) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = read(experiment, options)?;
    let count = options.repeat.unwrap_or(1).max(1) as usize;
    let completed = repeats::in_turn(count, options, observer, |before, checked, observer| {
        let options = DemoOptions {
            scenario: scenario.clone(),
            quick: options.quick,
            // Without a first seed the repeats count on from the topology's, which the first report
            // states.
            seed: before.last().map(next_seed).or(options.seed),
            program: options.program.clone(),
            stop: options.stop.clone(),
        };
        let report = demo::run(&options, observer)?;
        checked.add(&format!("seed {}", report.seed), report.invalid_because.clone());
        Ok::<_, DemoError>(report)
    })?;
    Ok(completed.record(|reports, _| record(reports)))
}

/// Reads the scenario; its topology lies beside a given file.
fn read(experiment: &Experiment, options: &RunOptions) -> Result<Scenario, ExperimentError> {
    let Some(file) = &options.scenario else { return Ok(Scenario::cp_real()?) };
    let beside = file.parent().unwrap_or(Path::new("."));
    let load = |name: &str| read_text(&beside.join(name)).map_err(io::Error::other);
    experiment.read(options, |text| Scenario::parse(text, load))
}

fn next_seed((report, _): &(DemoReport, Checked)) -> u64 {
    report.seed.wrapping_add(1)
}

fn record(reports: &[DemoReport]) -> Record {
    let values = |of: fn(&DemoReport) -> f64| reports.iter().map(of).collect::<Vec<f64>>();
    let hashes = reports.iter().flat_map(|report| &report.flows).all(|flow| flow.sha256_ok);
    let content = if hashes { "all hashes right" } else { "WRONG CONTENT" };
    let rows = vec![
        Row::of("acceleration", None, &values(|r| r.acceleration), "x", content),
        Row::of("acceleration predicted", None, &values(|r| r.acceleration_predicted), "x", ""),
        Row::of(
            "prediction error, median over transfers",
            None,
            &values(|r| r.prediction_error_median * 100.0),
            "%",
            "the paper: very close",
        ),
        Row::of("cost", Some(6.0), &values(|r| r.cost_usd), "$", "the paper's is the budget"),
    ];
    let name = reports.first().map_or("cp-real", |report| report.name.as_str());
    let assumptions = reports.first().map(|report| report.assumptions.clone()).unwrap_or_default();
    Record::of_tables(name, assumptions, (rows, Vec::new()))
}
