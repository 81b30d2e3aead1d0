//! `rt-cmax` `[RT Fig. 10]`: congestion windows with different upper bounds, and without Riptide.

use std::collections::BTreeMap;

use serde::Deserialize;
use tradewind_output::chart::Scale;
use tradewind_units::{Duration, Segments, time::as_text};

use super::super::pops::pops;
use super::connection::Growth;
use super::sender::{Day, Sender};
use super::traffic::Traffic;
use super::{at, percent, riptide};
use crate::harness::seeds::{Threads, each};
use crate::harness::{
    Figure, Finding, Job, NumericError, Random, Record, Row, Runs, ScenarioError, Spot,
    correlation, from_toml, mean, quantile,
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
    /// Upper bounds of learned windows.
    pub c_max: Vec<Segments>,
    /// PoPs that send: the first of each continent's in turn.
    pub senders: usize,
    /// The same in a quick run.
    pub senders_quick: usize,
    /// Virtual time in which windows are sampled.
    #[serde(with = "as_text")]
    pub length: Duration,
    /// The same in a quick run.
    #[serde(with = "as_text")]
    pub length_quick: Duration,
    /// Virtual time before that.
    #[serde(with = "as_text")]
    pub warm_up: Duration,
    /// The requests.
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
        let most = pops().all().count();
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        for (key, senders) in
            [("senders", scenario.senders), ("senders_quick", scenario.senders_quick)]
        {
            if !(1..=most).contains(&senders) {
                return wrong(format!("{key}: {senders}, there are {most} PoPs"));
            }
        }
        if scenario.c_max.len() < 3 || !scenario.c_max.is_sorted() {
            return wrong("c_max: at least three bounds, from the least on".to_owned());
        }
        Ok(scenario)
    }
}

/// The kernels that are compared.
pub(super) const KERNELS: [(Growth, &str); 2] =
    [(Growth::WhileFull, "Linux to 3.15"), (Growth::WhileHalfUsed, "Linux since 3.16")];

/// Percentiles at which distributions are shown.
const PERCENTILES: [u8; 9] = [10, 20, 30, 40, 50, 60, 70, 80, 90];

/// The windows of one run: by kernel, then by setting (the control first).
type Found = Vec<Vec<Vec<f64>>>;

/// Runs the experiment.
///
/// # Errors
/// When it is stopped.
pub fn run(scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    let quick = job.options.quick;
    let senders = if quick { scenario.senders_quick } else { scenario.senders };
    let length = if quick { scenario.length_quick } else { scenario.length };
    let seeds = scenario.runs.seeds(job.options);
    let runs = each(&scenario.name, &seeds, Threads::All, job, |seed| {
        Ok(one(scenario, senders, length, seed))
    })?;
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    if quick {
        let (all, whole) = (scenario.senders, scenario.length);
        record.assumptions.push(format!(
            "quick: {senders} PoPs instead of {all} send, \
             {length:?} of virtual time instead of {whole:?}"
        ));
    }
    rows(scenario, &runs, &mut record);
    findings(scenario, &runs, &mut record);
    Ok(record)
}

fn one(scenario: &Scenario, senders: usize, length: Duration, seed: u64) -> Found {
    let all: Vec<_> = pops().all().collect();
    // Evenly over the table, so that few senders are not all European.
    let places = (0..senders).map(|index| all[index * all.len() / senders]);
    let mut random = Random::new(seed);
    let [least, most] = scenario.traffic.requests_per_hour;
    let drawn: Vec<_> = places
        .map(|place| {
            let rate = random.log_uniform(least, most);
            (place, rate, (random.fraction() * 1e15) as u64)
        })
        .collect();
    let settings =
        || std::iter::once(None).chain(scenario.c_max.iter().copied().map(riptide).map(Some));
    let day = |growth, learn| Day { learn, growth, warm_up: scenario.warm_up, length };
    let windows = |growth, learn| {
        let day = day(growth, learn);
        let live = |(place, rate, seed): &(&_, f64, u64)| {
            Sender::new(&scenario.traffic, place, *rate, &mut Random::new(*seed)).live(&day)
        };
        drawn.iter().flat_map(live).collect::<Vec<f64>>()
    };
    KERNELS
        .iter()
        .map(|(growth, _)| settings().map(|learn| windows(*growth, learn)).collect())
        .collect()
}

/// Returns the names of the settings, the control first.
fn names(scenario: &Scenario) -> Vec<String> {
    let bounds = scenario.c_max.iter().map(|bound| format!("c_max {}", bound.as_u32()));
    std::iter::once("without Riptide".to_owned()).chain(bounds).collect()
}

fn rows(scenario: &Scenario, runs: &[Found], record: &mut Record) {
    for (kernel, (_, kernel_name)) in KERNELS.iter().enumerate() {
        record.figures.push(Figure {
            title: format!("windows of open connections, {kernel_name} [RT Fig. 10]"),
            x_label: "percentile of connections".to_owned(),
            y_label: "congestion window (segments)".to_owned(),
            scale: Scale::Names,
        });
        for (setting, name) in names(scenario).iter().enumerate() {
            for percent in PERCENTILES {
                let of = |run: &Found| quantile(&run[kernel][setting], f64::from(percent) / 100.0);
                let values: Vec<f64> = runs.iter().map(of).collect();
                let x_name = format!("{percent}th");
                let spot =
                    Spot { figure: kernel, line: name.clone(), x: f64::from(percent), x_name };
                let case = format!("{percent}th percentile, {name}, {kernel_name}");
                record.rows.push(Row::of(&case, None, &values, "segments", "").drawn_at(spot));
            }
        }
        for (setting, bound) in scenario.c_max.iter().enumerate() {
            let bound_name = format!("c_max {}, {kernel_name}", bound.as_u32());
            let paper = (bound.as_u32() == 50).then_some(100.0);
            let gains: Vec<f64> =
                runs.iter().map(|run| median_gain(run, kernel, setting + 1)).collect();
            let case = format!("median against none, {bound_name}");
            record.rows.push(Row::of(&case, paper, &gains, "%", "more"));
            let shares =
                |run: &Found| percent(&run[kernel][setting + 1], |window| at(window, *bound));
            let shares: Vec<f64> = runs.iter().map(shares).collect();
            let case = format!("exactly at the bound, {bound_name}");
            record.rows.push(Row::of(&case, None, &shares, "%", "of connections"));
        }
    }
}

/// Returns by how many per cent the median is above that without Riptide.
fn median_gain(run: &Found, kernel: usize, setting: usize) -> f64 {
    let median = |setting: usize| quantile(&run[kernel][setting], 0.5);
    100.0 * (median(setting) / median(0) - 1.0)
}

/// Returns the window that most connections have, in whole segments.
fn mode(windows: &[f64]) -> u32 {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for window in windows {
        *counts.entry(*window as u32).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(window, _)| window)
}

/// Adds the paper's statements on its lines, judged on its kernel, which is the first one.
fn findings(scenario: &Scenario, runs: &[Found], record: &mut Record) {
    let lines = Lines { bounds: scenario.c_max.iter().map(|bound| bound.as_u32()).collect(), runs };
    record.findings.extend([
        lines.median_doubles(),
        lines.knee(),
        lines.modes(),
        lines.lowest_alike(),
        lines.linear(),
    ]);
}

/// The windows with the paper's kernel, a line for each bound.
struct Lines<'a> {
    bounds: Vec<u32>,
    runs: &'a [Found],
}

impl Lines<'_> {
    /// Returns a figure of each bound's line, the mean over the runs; `of` receives the run and the
    /// setting.
    fn each(&self, of: impl Fn(&Found, usize) -> f64) -> Vec<f64> {
        let runs = |setting| self.runs.iter().map(|run| of(run, setting)).collect::<Vec<f64>>();
        (1..=self.bounds.len()).map(|setting| mean(&runs(setting))).collect()
    }

    fn describe(&self, values: &[f64], unit: &str) -> String {
        let pairs = self.bounds.iter().zip(values);
        pairs
            .map(|(bound, value)| format!("{value:.0}{unit} at {bound}"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    fn gains(&self) -> Vec<f64> {
        self.each(|run, setting| median_gain(run, 0, setting))
    }

    fn median_doubles(&self) -> Finding {
        let gains = self.gains();
        Finding::new(
            "the least bound raises the median by 100 %",
            (50.0..=200.0).contains(&gains[0]),
            format!("by {}; the paper's conclusion says 200 %", self.describe(&gains, " %")),
        )
    }

    fn knee(&self) -> Finding {
        let steps: Vec<f64> = self.gains().windows(2).map(|pair| pair[1] - pair[0]).collect();
        let words: Vec<String> = steps.iter().map(|step| format!("{step:.0}")).collect();
        Finding::new(
            "a knee at 100: more brings little",
            steps[1..].iter().all(|step| *step < steps[0] / 2.0),
            format!("the median rises by {} points from bound to bound", words.join(", ")),
        )
    }

    fn modes(&self) -> Finding {
        let of = |setting: usize| {
            let all = self.runs.iter().flat_map(|run| run[0][setting].iter().copied());
            f64::from(mode(&all.collect::<Vec<f64>>()))
        };
        let modes: Vec<f64> = (1..=self.bounds.len()).map(of).collect();
        Finding::new(
            "each bound's line has a mode at its value",
            modes.iter().zip(&self.bounds).all(|(mode, bound)| *mode as u32 == *bound),
            format!("the most frequent window is {}", self.describe(&modes, "")),
        )
    }

    fn lowest_alike(&self) -> Finding {
        let lowest = self.each(|run, setting| quantile(&run[0][setting], 0.1));
        let most = lowest.iter().copied().fold(0.0, f64::max);
        let least = lowest.iter().copied().fold(f64::MAX, f64::min);
        Finding::new(
            "the smallest 10 % have similar windows whatever the bound",
            most <= 1.25 * least,
            format!("the 10th percentile is {}", self.describe(&lowest, "")),
        )
    }

    fn linear(&self) -> Finding {
        let linear = self.each(|run, setting| {
            let shares = (1..=16).map(|step| f64::from(step) / 20.0);
            let points = shares.map(|share| (share, quantile(&run[0][setting], share)));
            correlation(&points.collect::<Vec<_>>())
        });
        let pairs = || self.bounds.iter().zip(&linear);
        let words: Vec<String> =
            pairs().map(|(bound, value)| format!("{value:.2} at {bound}")).collect();
        Finding::new(
            "for 100 and above, the lower 80 % rise linearly",
            pairs().filter(|(bound, _)| **bound >= 100).all(|(_, value)| *value >= 0.95),
            format!("correlation of percentile and window: {}", words.join(", ")),
        )
    }
}
