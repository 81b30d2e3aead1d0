//! `cp-real` `[CP VII-C]`: the demo, as often as asked.

use super::{Experiment, ExperimentError, Record, Row, RunOptions, SCHEMA_VERSION, distinct};
use crate::demo::{self, DemoOptions, Observer};
use crate::report::DemoReport;

pub(super) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let mut reports = Vec::new();
    let scenario = experiment.read_lab(options)?;
    for repeat in 0..options.repeat.unwrap_or(1).max(1) {
        let scenario = scenario.clone();
        let seed = options.seed.map(|first| first.wrapping_add(repeat.into()));
        let options = DemoOptions {
            scenario,
            quick: options.quick,
            // Without a first seed the repeats count on from the topology's, which the first report tells.
            seed: seed.or_else(|| next_seed(&reports)),
            program: options.program.clone(),
            stop: options.stop.clone(),
        };
        reports.push(demo::run(&options, observer)?);
    }
    Ok(record(&reports))
}

fn next_seed(reports: &[DemoReport]) -> Option<u64> {
    reports.last().map(|report| report.seed.wrapping_add(1))
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
    let invalid_because = distinct(reports.iter().flat_map(|report| &report.invalid_because));
    Record {
        schema_version: SCHEMA_VERSION,
        name: reports.first().map_or_else(|| "cp-real".to_owned(), |report| report.name.clone()),
        assumptions: reports.first().map(|report| report.assumptions.clone()).unwrap_or_default(),
        valid: reports.iter().all(|report| report.valid),
        invalid_because,
        rows,
        figures: Vec::new(),
        findings: Vec::new(),
    }
}
