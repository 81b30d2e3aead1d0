//! `rt-traffic` `[RT Fig. 11]`: windows at a busy PoP and at one that has probes alone.

use serde::Deserialize;
use tradewind_output::chart::Scale;
use tradewind_units::time::{as_text, parse_duration};
use tradewind_units::{Duration, Segments};

use super::super::pops::pops;
use super::cmax::KERNELS;
use super::sender::{Day, Sender};
use super::traffic::Traffic;
use super::{at, percent, riptide};
use crate::harness::seeds::{Threads, each};
use crate::harness::{
    Figure, Finding, Job, NumericError, Random, Record, Row, Runs, ScenarioError, Spot, from_toml,
    mean, quantile,
};

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Its assumptions, a sentence each.
    #[serde(default)]
    pub assumptions: Vec<String>,
    /// Number of runs, and their seeds.
    pub runs: Runs,
    /// Upper bound of learned windows.
    pub c_max: Segments,
    /// Times for which idle connections stay open: a case each, such as `5 min`.
    pub keep_idle: Vec<String>,
    /// Virtual time in which windows are sampled.
    #[serde(with = "as_text")]
    pub length: Duration,
    /// The same in a quick run.
    #[serde(with = "as_text")]
    pub length_quick: Duration,
    /// Virtual time before that.
    #[serde(with = "as_text")]
    pub warm_up: Duration,
    /// The same in a quick run.
    #[serde(with = "as_text")]
    pub warm_up_quick: Duration,
    /// The requests; the busy PoP has the highest rate.
    pub traffic: Traffic,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        scenario.traffic.check()?;
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        if scenario.keep_idle.is_empty() {
            return wrong("keep_idle: at least one span".to_owned());
        }
        for span in &scenario.keep_idle {
            if let Err(error) = parse_duration(span) {
                return wrong(format!("keep_idle: {error}"));
            }
        }
        Ok(scenario)
    }
}

/// The two PoPs.
const POPS: [&str; 2] = ["probes alone", "busy"];
const PROBES_ALONE: usize = 0;
const BUSY: usize = 1;

/// Percentiles at which distributions are shown.
const PERCENTILES: [u8; 9] = [10, 20, 30, 40, 50, 60, 70, 80, 90];

/// The windows of one run: by kernel, by span of idling, by PoP.
type Found = Vec<Vec<Vec<Vec<f64>>>>;

/// Runs the experiment.
///
/// # Errors
/// When it is stopped.
pub fn run(scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    let quick = job.options.quick;
    let length = if quick { scenario.length_quick } else { scenario.length };
    let warm_up = if quick { scenario.warm_up_quick } else { scenario.warm_up };
    let seeds = scenario.runs.seeds(job.options);
    let runs = each(&scenario.name, &seeds, Threads::All, job, |seed| {
        Ok(one(scenario, length, warm_up, seed))
    })?;
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    if quick {
        let whole = scenario.length;
        record.assumptions.push(format!("quick: {length:?} of virtual time instead of {whole:?}"));
    }
    rows(scenario, &runs, &mut record);
    findings(scenario, &runs, &mut record);
    Ok(record)
}

fn one(scenario: &Scenario, length: Duration, warm_up: Duration, seed: u64) -> Found {
    // Seeds choose the places of the two PoPs, so that no one place decides.
    let all: Vec<_> = pops().all().collect();
    let place = all[Random::new(seed).draw(all.len())];
    let rates = [0.0, scenario.traffic.requests_per_hour[1]];
    let windows = |growth, keep_idle: &String, rate| {
        let day = Day { learn: Some(riptide(scenario.c_max)), growth, warm_up, length };
        let keep_idle = parse_duration(keep_idle).expect("checked when read");
        let traffic = Traffic { keep_idle, ..scenario.traffic.clone() };
        Sender::new(&traffic, place, rate, &mut Random::new(seed)).live(&day)
    };
    let by_idle = |growth, idle| rates.iter().map(|rate| windows(growth, idle, *rate)).collect();
    KERNELS
        .iter()
        .map(|(growth, _)| scenario.keep_idle.iter().map(|idle| by_idle(*growth, idle)).collect())
        .collect()
}

fn rows(scenario: &Scenario, runs: &[Found], record: &mut Record) {
    for (kernel, (_, kernel_name)) in KERNELS.iter().enumerate() {
        record.figures.push(Figure {
            title: format!("windows of open connections, {kernel_name} [RT Fig. 11]"),
            x_label: "percentile of connections".to_owned(),
            y_label: "congestion window (segments)".to_owned(),
            scale: Scale::Names,
        });
        for (idle, span) in scenario.keep_idle.iter().enumerate() {
            for (pop, name) in POPS.iter().enumerate() {
                let line = format!("{name}, kept {span}");
                let values = |of: &dyn Fn(&[f64]) -> f64| -> Vec<f64> {
                    runs.iter().map(|run| of(&run[kernel][idle][pop])).collect()
                };
                for percent in PERCENTILES {
                    let share = f64::from(percent) / 100.0;
                    let x_name = format!("{percent}th");
                    let spot =
                        Spot { figure: kernel, line: line.clone(), x: f64::from(percent), x_name };
                    let case = format!("{percent}th percentile, {line}, {kernel_name}");
                    let values = values(&|windows| quantile(windows, share));
                    record.rows.push(Row::of(&case, None, &values, "segments", "").drawn_at(spot));
                }
                let paper = |of: [Option<f64>; 2]| of[pop];
                let case = |what: &str| format!("{what}, {line}, {kernel_name}");
                let bound = scenario.c_max;
                let most = f64::from(bound.as_u32());
                let shares = [
                    (
                        "median",
                        paper([Some(75.0), None]),
                        values(&|w| quantile(w, 0.5)),
                        "segments",
                    ),
                    (
                        "exactly at c_max",
                        paper([None, Some(44.0)]),
                        values(&|w| percent(w, |x| at(x, bound))),
                        "%",
                    ),
                    ("at c_max or above", None, values(&|w| percent(w, |x| x >= most)), "%"),
                    (
                        "below c_max",
                        paper([Some(99.0), None]),
                        values(&|w| percent(w, |x| x < most)),
                        "%",
                    ),
                ];
                for (what, paper, values, unit) in shares {
                    record.rows.push(Row::of(&case(what), paper, &values, unit, ""));
                }
            }
        }
    }
}

fn findings(scenario: &Scenario, runs: &[Found], record: &mut Record) {
    let of = |kernel: usize, idle: usize, pop: usize, of: &dyn Fn(&[f64]) -> f64| {
        mean(&runs.iter().map(|run| of(&run[kernel][idle][pop])).collect::<Vec<f64>>())
    };
    let most = f64::from(scenario.c_max.as_u32());
    let median = |windows: &[f64]| quantile(windows, 0.5);
    let high = |windows: &[f64]| percent(windows, |window| window >= most);
    let cases: Vec<(usize, usize)> = (0..KERNELS.len())
        .flat_map(|kernel| (0..scenario.keep_idle.len()).map(move |idle| (kernel, idle)))
        .collect();
    let describe = |pop: usize, what: &dyn Fn(&[f64]) -> f64, unit: &str| {
        let words: Vec<String> = cases
            .iter()
            .map(|(kernel, idle)| {
                let value = of(*kernel, *idle, pop, what);
                format!(
                    "{value:.0}{unit} ({}, kept {})",
                    KERNELS[*kernel].1, scenario.keep_idle[*idle]
                )
            })
            .collect();
        words.join(", ")
    };
    let larger = cases.iter().all(|(kernel, idle)| {
        of(*kernel, *idle, BUSY, &high) > of(*kernel, *idle, PROBES_ALONE, &high)
    });
    record.findings.push(Finding::new(
        "the PoP with organic traffic has much larger windows: over 44 % at 100",
        larger,
        format!(
            "at 100 or above: {}; with probes alone: {}",
            describe(BUSY, &high, " %"),
            describe(PROBES_ALONE, &high, " %")
        ),
    ));
    let low = |windows: &[f64]| percent(windows, |window| window < most);
    record.findings.push(Finding::new(
        "with probes alone 99 % are below 100",
        (0..scenario.keep_idle.len()).all(|idle| of(0, idle, PROBES_ALONE, &low) >= 99.0),
        format!("{}; judged on the paper's kernel", describe(PROBES_ALONE, &low, " %")),
    ));
    record.findings.push(Finding::new(
        "with probes alone the median is 75",
        (0..scenario.keep_idle.len())
            .any(|idle| (of(0, idle, PROBES_ALONE, &median) - 75.0).abs() <= 7.5),
        format!("{}; judged on the paper's kernel", describe(PROBES_ALONE, &median, "")),
    ));
}
