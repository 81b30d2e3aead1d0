//! `rt-model` `[RT II-B, Figs. 3 to 6]`: savings of larger initial windows by the paper's model,
//! which `tradewind jumpstart model` computes for one's own files.

use serde::Deserialize;
use tradewind_jumpstart::figures::{WindowFigures, figures};
use tradewind_output::chart::Scale;
use tradewind_units::time::as_millis_f64;
use tradewind_units::{Bytes, Duration, Segments, time::as_text};

use super::add_rtt_assumption;
use super::pops::pops;
use super::rtts::Rtts;
use super::sizes::{Exceeding, Sizes};
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
    /// Initial windows; the others are compared with the first.
    pub windows: Vec<Segments>,
    /// Payload of a segment.
    pub segment: Bytes,
    /// Files drawn in each run.
    pub files: u32,
    /// Two points of the distribution of sizes.
    pub exceeding: [Exceeding; 2],
    /// Sizes at which the saving is shown [RT Fig. 4].
    pub sizes: Vec<Bytes>,
    /// The file of [RT Fig. 6].
    pub file: Bytes,
    /// The median to which round-trip times are stretched [RT Fig. 5].
    #[serde(with = "as_text")]
    pub rtt_median: Duration,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let wrong = |what: &str| Err(ScenarioError::Inconsistent { what: what.to_owned() });
        if scenario.windows.len() < 2 {
            return wrong("windows: at least two, or there is nothing to compare");
        }
        if scenario.segment == Bytes::ZERO || scenario.files == 0 || scenario.sizes.is_empty() {
            return wrong("segment, files, sizes: above zero, and at least one size");
        }
        if Sizes::through(scenario.exceeding, scenario.segment).is_none() {
            return wrong("exceeding: more segments, fewer files, shares between 0 and 1");
        }
        Ok(scenario)
    }
}

/// Most round trips that [RT Fig. 3] shows.
const MAX_TRIPS: usize = 6;
/// Percentiles of the round-trip times at which [RT Fig. 6] is shown.
const PERCENTILES: [u8; 9] = [10, 20, 30, 40, 50, 60, 70, 80, 90];

/// Results of one run.
struct Found {
    /// By window: the figures over all files.
    files: Vec<WindowFigures>,
    /// By kind of round-trip times (as they are, stretched), by window, by percentile:
    /// milliseconds.
    times: [Vec<Vec<f64>>; 2],
    /// Median round-trip time, in milliseconds, as it is.
    rtt_ms: f64,
}

fn one(scenario: &Scenario, rtts: &[Duration], random: &mut Random) -> Found {
    let sizes = Sizes::through(scenario.exceeding, scenario.segment).expect("checked when read");
    let drawn: Vec<Bytes> = (0..scenario.files).map(|_| sizes.draw(random)).collect();
    let millis: Vec<f64> = rtts.iter().map(|rtt| as_millis_f64(*rtt)).collect();
    let rtt_ms = quantile(&millis, 0.5);
    let stretch = as_millis_f64(scenario.rtt_median) / rtt_ms;
    let times = [1.0, stretch].map(|factor| {
        let at = PERCENTILES.map(|percent| {
            let ms = quantile(&millis, f64::from(percent) / 100.0) * factor;
            Duration::from_secs_f64(ms / 1e3)
        });
        let at = at.map(|rtt| of_files(scenario, &[scenario.file], &[rtt]));
        let windows = 0..scenario.windows.len();
        windows.map(|window| at.iter().map(|all| all[window].time_ms_p50).collect()).collect()
    });
    Found { files: of_files(scenario, &drawn, rtts), times, rtt_ms }
}

fn of_files(scenario: &Scenario, sizes: &[Bytes], rtts: &[Duration]) -> Vec<WindowFigures> {
    // One round-trip time stands for all where only the number of trips counts.
    let rtts = if sizes.len() > 1 { &rtts[..1] } else { rtts };
    figures(&scenario.windows, sizes, rtts, scenario.segment)
}

/// Runs the experiment.
///
/// # Errors
/// When the given table knows no pair of PoPs, or the run is stopped.
pub fn run(scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    let table = job.table.take();
    let seeds = scenario.runs.seeds(job.options);
    let runs = each(&scenario.name, &seeds, Threads::All, job, |seed| {
        let mut random = Random::new(seed);
        let rtts = Rtts::new(table.as_ref(), &pops().set(), &mut random)?;
        let all: Vec<_> = pops().all().collect();
        let pairs = all.iter().enumerate().flat_map(|(index, from)| {
            all[..index].iter().filter_map(|to| rtts.between(from, to)).collect::<Vec<_>>()
        });
        let rtts: Vec<Duration> = pairs.collect();
        if rtts.is_empty() {
            let what = "--rtt: no pair of the 34 PoPs (papers/scenarios/rt-pops.toml) is in it";
            return Err(NumericError::Nothing { what: what.to_owned() });
        }
        Ok(one(scenario, &rtts, &mut random))
    })?;
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    add_rtt_assumption(&mut record, table.is_some());
    record.figures = drawn_figures(scenario);
    trip_rows(scenario, &runs, &mut record);
    saving_rows(scenario, &mut record);
    time_rows(scenario, &runs, &mut record);
    findings(scenario, &runs, &mut record);
    Ok(record)
}

fn drawn_figures(scenario: &Scenario) -> Vec<Figure> {
    let figure = |title: String, x_label: &str, y_label: &str| Figure {
        title,
        x_label: x_label.to_owned(),
        y_label: y_label.to_owned(),
        scale: Scale::Names,
    };
    let file = scenario.file;
    vec![
        figure(
            "files that are through [RT Fig. 3]".into(),
            "after round trips",
            "share of files (%)",
        ),
        figure(
            format!(
                "round trips saved against a window of {} [RT Fig. 4]",
                scenario.windows[0].as_u32()
            ),
            "file size",
            "saved (%)",
        ),
        figure(
            format!("time of {file} between 34 PoPs [RT Fig. 6]"),
            "percentile of round-trip times",
            "time (ms)",
        ),
        figure(
            format!(
                "the same, round-trip times stretched to the paper's median, {} ms",
                as_millis_f64(scenario.rtt_median)
            ),
            "percentile of round-trip times",
            "time (ms)",
        ),
    ]
}

fn line(window: &Segments) -> String {
    format!("window {}", window.as_u32())
}

/// Returns the per cent of files that are complete after so many trips.
fn through(found: &Found, window: usize, trips: usize) -> f64 {
    100.0 * found.files[window].through_ratio.get(trips - 1).copied().unwrap_or(1.0)
}

fn trip_rows(scenario: &Scenario, runs: &[Found], record: &mut Record) {
    for (index, window) in scenario.windows.iter().enumerate() {
        for trips in 1..=MAX_TRIPS {
            let values: Vec<f64> = runs.iter().map(|run| through(run, index, trips)).collect();
            // The paper's prose fixes these: 54 % and 15 % need more.
            let paper = match (trips, window.as_u32()) {
                (1, 10) => Some(46.0),
                (1, 100) => Some(85.0),
                _ => None,
            };
            let x_name = if trips == 1 { "1 trip".to_owned() } else { format!("{trips} trips") };
            let spot = Spot { figure: 0, line: line(window), x: trips as f64, x_name };
            let case = format!("through after {trips}, {}", line(window));
            record.rows.push(Row::of(&case, paper, &values, "%", "").drawn_at(spot));
        }
    }
}

fn saving_rows(scenario: &Scenario, record: &mut Record) {
    for (index, window) in scenario.windows.iter().enumerate().skip(1) {
        for (place, size) in scenario.sizes.iter().enumerate() {
            let saved = saving(scenario, *size, index);
            let spot =
                Spot { figure: 1, line: line(window), x: place as f64, x_name: size.to_string() };
            let case = format!("saved at {size}, {}", line(window));
            record.rows.push(Row::of(&case, None, &[saved], "%", "").drawn_at(spot));
        }
    }
}

/// Returns the per cent of round trips saved by a window.
fn saving(scenario: &Scenario, size: Bytes, window: usize) -> f64 {
    100.0 * of_files(scenario, &[size], &[scenario.rtt_median])[window].saved_ratio
}

fn time_rows(scenario: &Scenario, runs: &[Found], record: &mut Record) {
    for (world, figure) in [(0, 2), (1, 3)] {
        for (index, window) in scenario.windows.iter().enumerate() {
            for (place, percent) in PERCENTILES.iter().enumerate() {
                let values: Vec<f64> =
                    runs.iter().map(|run| run.times[world][index][place]).collect();
                let x_name = format!("{percent}th");
                let spot = Spot { figure, line: line(window), x: f64::from(*percent), x_name };
                let case =
                    format!("{} at the {percent}th percentile, {}", scenario.file, line(window));
                record.rows.push(Row::of(&case, None, &values, "ms", "").drawn_at(spot));
            }
        }
    }
    let medians: Vec<f64> = runs.iter().map(|run| run.rtt_ms).collect();
    let paper = Some(as_millis_f64(scenario.rtt_median));
    let note = "the paper: over 125 ms; stretched, it is this";
    record.rows.push(Row::of("median round-trip time between PoPs", paper, &medians, "ms", note));
    let last = scenario.windows.len() - 1;
    let saved = |percent: u8, world: usize| -> Vec<f64> {
        let place = PERCENTILES.iter().position(|of| *of == percent).expect("one of them");
        let of = |run: &Found| run.times[world][0][place] - run.times[world][last][place];
        runs.iter().map(of).collect()
    };
    for (world, word) in [(0, "as they are"), (1, "stretched")] {
        for (percent, paper) in [(50, 280.0), (90, 290.0)] {
            let case = format!("{} saved at the {percent}th percentile, {word}", scenario.file);
            record.rows.push(Row::of(&case, Some(paper), &saved(percent, world), "ms", ""));
        }
    }
}

fn findings(scenario: &Scenario, runs: &[Found], record: &mut Record) {
    let windows = &scenario.windows;
    let at = |segments: u32| windows.iter().position(|window| window.as_u32() == segments);
    let share =
        |window: usize| mean(&runs.iter().map(|run| through(run, window, 1)).collect::<Vec<f64>>());
    if let (Some(ten), Some(fifty), Some(hundred)) = (at(10), at(50), at(100)) {
        let more = share(fifty) - share(ten);
        record.findings.push(Finding::new(
            "at a window of 50, over 31 % more files end in the first round trip",
            more > 31.0,
            format!("{more:.1} points more; not fitted, so it checks the form of the distribution"),
        ));
        record.findings.push(Finding::new(
            "at 100, all but 15 % do",
            (share(hundred) - 85.0).abs() <= 1.0,
            format!("all but {:.1} %; fitted", 100.0 - share(hundred)),
        ));
        let middle = saving(scenario, Bytes::new(100_000), hundred);
        let ends = [Bytes::new(10_000), Bytes::new(10_000_000)]
            .map(|size| saving(scenario, size, hundred));
        record.findings.push(Finding::new(
            "the primary improvements are between 15 KB and 1000 KB",
            ends.iter().all(|end| *end < middle / 2.0),
            format!(
                "at 100: {:.0} % at 10 kB, {middle:.0} % at 100 kB, {:.0} % at 10 MB",
                ends[0], ends[1]
            ),
        ));
    }
    let value = |case: &str| {
        record.rows.iter().find(|row| row.case == case).map_or(f64::NAN, |row| row.ours)
    };
    let [p50, p90] = [50, 90].map(|percent| {
        value(&format!("{} saved at the {percent}th percentile, stretched", scenario.file))
    });
    record.findings.push(Finding::new(
        "at the median, 100 KB from a window of 10 takes over 280 ms longer than from 100",
        p50 >= 280.0,
        format!(
            "{p50:.0} ms: two round trips of the median that the paper states, 125 ms; \
             280 ms are two of 140 ms"
        ),
    ));
    record.findings.push(Finding::new(
        "at the 90th percentile 290 ms longer, about 100 %",
        (p90 - 290.0).abs() <= 30.0,
        format!(
            "{p90:.0} ms and 200 %: \
             by this model three round trips against one, at every percentile"
        ),
    ));
}
