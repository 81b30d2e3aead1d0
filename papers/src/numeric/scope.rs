//! `trn-scope` \[TRN\]: the gain of the best relay once TCP is tuned.
//!
//! TRN measured eleven regions of EC2: with one default connection a pair's rate depends on its
//! distance, and the best relay gains more than 1.5x for two pairs in five. With larger windows, or
//! with many connections, every pair reaches the rate of its VM, and nothing is left to gain. Here
//! the rates are the model's: windows over RTTs, connections, limits of each connection, caps of
//! VMs, relays' VMs included.

use std::collections::BTreeSet;

use serde::Deserialize;
use tradewind_model::StartUp;
use tradewind_model::cost::Prices;
use tradewind_output::chart::Scale;
use tradewind_plan::RelayType;
use tradewind_plan::routing::MinMaxPath;
use tradewind_plan::routing::advice::{MIN_GAIN, Settings, completion};
use tradewind_units::{Bandwidth, Bytes, RegionId};

use super::rtts::{Rtts, others};
use crate::harness::seeds::{Threads, each};
use crate::harness::{
    Figure, Finding, Job, NumericError, Random, Record, Row, Runs, ScenarioError, Spot, catalogue,
    from_toml, quantile,
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
    /// The regions; every ordered pair transfers, over each of the others in turn.
    pub regions: Vec<RegionId>,
    /// Volume of a pair's transfer.
    pub volume: Bytes,
    /// Total rates of a VM, a relay's too: a line each.
    pub vm_caps: Vec<Bandwidth>,
    /// The window of an untuned connection.
    pub default_window: Bytes,
    /// Windows of a single connection.
    pub windows: Vec<Bytes>,
    /// Numbers of connections with the default window.
    pub connections: Vec<u32>,
    /// Limits of a connection, with one connection of the largest window.
    pub per_connection: Vec<Bandwidth>,
    /// Least gain that is counted.
    pub gain: f64,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        if let Some(id) = scenario.regions.iter().find(|id| catalogue().region(id).is_none()) {
            return wrong(format!(
                "regions: `{id}` is not in the catalogue{}",
                catalogue().did_you_mean(id.as_str())
            ));
        }
        let different: BTreeSet<&RegionId> = scenario.regions.iter().collect();
        if different.len() < 3 || different.len() < scenario.regions.len() {
            return wrong("regions: three different ones at least, each once".to_owned());
        }
        if !(1.0..=100.0).contains(&scenario.gain) {
            return wrong(format!("gain: {} given, expected 1 to 100", scenario.gain));
        }
        if let Some(count) = scenario.connections.iter().find(|n| !(1..=1000).contains(*n)) {
            return wrong(format!("connections: {count} given, expected 1 to 1000"));
        }
        let [volume, window] = [scenario.volume, scenario.default_window];
        if [volume, window].iter().chain(&scenario.windows).any(|size| size.as_u64() == 0) {
            return wrong("volume, default_window, windows: above zero".to_owned());
        }
        if scenario.vm_caps.is_empty() || scenario.windows.is_empty() {
            return wrong("vm_caps, windows: at least one each".to_owned());
        }
        Ok(scenario)
    }
}

/// Tuning of a transfer between two data centres.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tuning {
    pub(super) window: Bytes,
    pub(super) connections: u32,
    pub(super) per_connection: Option<Bandwidth>,
    pub(super) vm_cap: Bandwidth,
}

impl Tuning {
    pub(super) fn settings(&self, volume: Bytes) -> Settings {
        let relay_type = RelayType {
            capacity: self.vm_cap,
            per_connection: self.per_connection,
            ..RelayType::cloudpilot()
        };
        // The ends' connections are limited as the relays' are: one cap serves for all of them.
        let limit = self.per_connection.map(|each| each.scaled(f64::from(self.connections)));
        let cap = limit.map_or(self.vm_cap, |limit| limit.min(self.vm_cap));
        Settings {
            source: None,
            volume,
            most_relays: 1,
            window: self.window,
            relay_window: self.window,
            last_mile: Some(cap),
            loss: None,
            connections: self.connections,
            relay_type,
            prices: Prices::cloudpilot(),
            destination: None,
            start_up: StartUp::Cold,
        }
    }
}

/// The parameter that is varied: a figure each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sweep {
    Connections,
    Windows,
    PerConnection,
}

/// One case, and its place in the figure.
struct Case {
    sweep: Sweep,
    x: usize,
    x_name: String,
    tuning: Tuning,
}

fn cases(scenario: &Scenario) -> Vec<Case> {
    let mut cases = Vec::new();
    for vm_cap in &scenario.vm_caps {
        let plain = Tuning {
            window: scenario.default_window,
            connections: 1,
            per_connection: None,
            vm_cap: *vm_cap,
        };
        let mut push = |sweep, x: usize, x_name: String, tuning| {
            cases.push(Case { sweep, x, x_name, tuning });
        };
        for (x, connections) in scenario.connections.iter().enumerate() {
            let tuning = Tuning { connections: *connections, ..plain };
            push(Sweep::Connections, x, connections.to_string(), tuning);
        }
        for (x, window) in scenario.windows.iter().enumerate() {
            push(Sweep::Windows, x, window.to_string(), Tuning { window: *window, ..plain });
        }
        let window = scenario.windows.iter().copied().max().unwrap_or(scenario.default_window);
        for (x, limit) in scenario.per_connection.iter().enumerate() {
            let tuning = Tuning { window, per_connection: Some(*limit), ..plain };
            push(Sweep::PerConnection, x, limit.to_string(), tuning);
        }
    }
    cases
}

/// Results of a case in a run.
struct Sample {
    least_mbps: f64,
    most_mbps: f64,
    median_gain: f64,
    /// Share of the pairs that gain at least the counted gain, in per cent.
    counted: f64,
    /// Share of the pairs to which the planner advises a relay, in per cent.
    advised: f64,
}

fn sample(scenario: &Scenario, rtts: &Rtts<'_>, tuning: &Tuning) -> Result<Sample, NumericError> {
    let settings = tuning.settings(scenario.volume);
    let (mut rates, mut gains) = (Vec::new(), Vec::new());
    for from in &scenario.regions {
        for to in scenario.regions.iter().filter(|to| *to != from) {
            let router = rtts.router(from, to, &others(&scenario.regions, from, to));
            let seconds = |path: &MinMaxPath| completion(path, &settings).total().as_secs_f64();
            let direct = router.path(&[]).map(|path| seconds(&path));
            let fastest = (router.best(1, usize::MAX).iter().map(seconds)).min_by(f64::total_cmp);
            if let Some((direct, fastest)) = direct.zip(fastest) {
                rates.push(scenario.volume.as_u64() as f64 * 8.0 / 1e6 / direct);
                gains.push(direct / fastest);
            }
        }
    }
    if gains.is_empty() {
        let what = "no pair of `regions` has a known RTT and a relay".to_owned();
        return Err(NumericError::Nothing { what });
    }
    let above = |least: f64| {
        100.0 * gains.iter().filter(|gain| **gain >= least).count() as f64 / gains.len() as f64
    };
    Ok(Sample {
        least_mbps: quantile(&rates, 0.0),
        most_mbps: quantile(&rates, 1.0),
        median_gain: quantile(&gains, 0.5),
        counted: above(scenario.gain),
        advised: above(MIN_GAIN),
    })
}

/// Runs the experiment.
///
/// # Errors
/// When no pair's RTT is known, or the run is stopped.
pub fn run(scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    let cases = cases(scenario);
    let table = job.table.take();
    // A table leaves nothing to draw: all runs are the same.
    let seeds = scenario.runs.seeds(job.options);
    let seeds = if table.is_some() { &seeds[..1] } else { &seeds[..] };
    let regions: BTreeSet<RegionId> = scenario.regions.iter().cloned().collect();
    let step = format!("{}: {} cases", scenario.name, cases.len());
    let runs = each(&step, seeds, Threads::All, job, |seed| {
        let rtts = Rtts::new(table.as_ref(), &regions, &mut Random::new(seed))?;
        cases.iter().map(|case| sample(scenario, &rtts, &case.tuning)).collect()
    })?;
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    if table.is_some() {
        // In place of the statement on seeds and runs.
        record.assumptions.pop();
        record.assumptions.push("one run: a table leaves nothing to draw".to_owned());
    }
    super::add_rtt_assumption(&mut record, table.is_some());
    record.figures = figures(scenario);
    for (index, case) in cases.iter().enumerate() {
        let runs: Vec<&Sample> = runs.iter().map(|run: &Vec<Sample>| &run[index]).collect();
        record.rows.extend(rows(scenario, case, &runs));
    }
    findings(scenario, &cases, &runs, &mut record);
    Ok(record)
}

fn figures(scenario: &Scenario) -> Vec<Figure> {
    let figure = |title: &str, x_label: &str| Figure {
        title: title.to_owned(),
        x_label: x_label.to_owned(),
        y_label: format!("pairs that gain {}x or more (%)", scenario.gain),
        scale: Scale::Names,
    };
    let window = scenario.default_window;
    vec![
        figure("more connections", &format!("connections with windows of {window}")),
        figure("larger windows", "window of one connection"),
        figure("a limit of each connection", "limit of one connection with the largest window"),
    ]
}

/// TRN's figures of one default connection.
const PAPER_COUNTED: f64 = 40.0;
const PAPER_LEAST_MBPS: f64 = 20.0;
const PAPER_MOST_MBPS: f64 = 398.0;

/// Returns whether this is the case that TRN began with: one default connection.
fn untuned(scenario: &Scenario, case: &Case) -> bool {
    let Tuning { window, connections, .. } = case.tuning;
    case.sweep == Sweep::Connections && connections == 1 && window == scenario.default_window
}

fn rows(scenario: &Scenario, case: &Case, runs: &[&Sample]) -> Vec<Row> {
    let line = format!("VMs of {}", case.tuning.vm_cap);
    let what = match case.sweep {
        Sweep::Connections => format!("{} connections", case.x_name),
        Sweep::Windows => format!("window {}", case.x_name),
        Sweep::PerConnection => format!("{} a connection", case.x_name),
    };
    let values = |of: fn(&Sample) -> f64| runs.iter().map(|run| of(run)).collect::<Vec<f64>>();
    let paper = |value: f64| untuned(scenario, case).then_some(value);
    let row = |name: &str, paper: Option<f64>, of: fn(&Sample) -> f64, unit: &str| {
        Row::of(&format!("{what}, {line}: {name}"), paper, &values(of), unit, "")
    };
    let counted = format!("pairs that gain {}x or more", scenario.gain);
    let spot = Spot {
        figure: case.sweep as usize,
        line: line.clone(),
        x: case.x as f64,
        x_name: case.x_name.clone(),
    };
    vec![
        row(&counted, paper(PAPER_COUNTED), |s| s.counted, "%").drawn_at(spot),
        row("pairs to which a relay is advised", None, |s| s.advised, "%"),
        row("gain, median", None, |s| s.median_gain, "x"),
        row("direct rate, least", paper(PAPER_LEAST_MBPS), |s| s.least_mbps, "Mbit/s"),
        row("direct rate, most", paper(PAPER_MOST_MBPS), |s| s.most_mbps, "Mbit/s"),
    ]
}

/// Share of the largest rate from which on the least makes rates homogeneous. Chosen: TRN's word is
/// "often homogeneous".
const HOMOGENEOUS: f64 = 0.8;

fn findings(scenario: &Scenario, cases: &[Case], runs: &[Vec<Sample>], record: &mut Record) {
    let mean = |index: usize, of: fn(&Sample) -> f64| {
        crate::harness::mean(&runs.iter().map(|run| of(&run[index])).collect::<Vec<f64>>())
    };
    let all = || cases.iter().enumerate();
    if let Some((index, _)) = all().find(|(_, case)| untuned(scenario, case)) {
        let (least, most) = (mean(index, |s| s.least_mbps), mean(index, |s| s.most_mbps));
        record.findings.push(Finding::new(
            "one default connection: rates differ by more than 12x between near and far pairs",
            most > 12.0 * least,
            format!("{least:.0} to {most:.0} Mbit/s"),
        ));
        let counted = mean(index, |s| s.counted);
        record.findings.push(Finding::new(
            "one default connection: about 40 % of the pairs gain more than 1.5x by the best relay",
            (25.0..=60.0).contains(&counted),
            format!("{counted:.0} % gain {}x or more", scenario.gain),
        ));
    }
    let most = scenario.connections.iter().copied().max();
    let tuned: Vec<usize> = all()
        .filter(|(_, case)| {
            case.sweep == Sweep::Connections && Some(case.tuning.connections) == most
        })
        .map(|(index, _)| index)
        .collect();
    if tuned.is_empty() {
        return;
    }
    let words = |of: fn(&Sample) -> f64, digits: usize| {
        let cap = |index: &usize| cases[*index].tuning.vm_cap;
        let words =
            tuned.iter().map(|index| format!("{:.digits$} at {}", mean(*index, of), cap(index)));
        words.collect::<Vec<String>>().join(", ")
    };
    let even = |s: &Sample| s.least_mbps / s.most_mbps;
    record.findings.push(Finding::new(
        "many connections: the rate is the VM's cap, the same for all pairs",
        tuned.iter().all(|index| mean(*index, even) > HOMOGENEOUS),
        format!("least over largest rate: {}", words(even, 2)),
    ));
    record.findings.push(Finding::new(
        "many connections: little is left for a relay",
        tuned.iter().all(|index| mean(*index, |s| s.counted) < 1.0),
        format!("pairs that gain {}x, in per cent: {}", scenario.gain, words(|s| s.counted, 0)),
    ));
    let windows = all().filter(|(_, case)| case.sweep == Sweep::Windows);
    let largest = scenario.windows.iter().copied().max();
    let left: Vec<(Bandwidth, f64)> = windows
        .filter(|(_, case)| Some(case.tuning.window) == largest)
        .map(|(index, case)| (case.tuning.vm_cap, mean(index, |s| s.counted)))
        .collect();
    let by_cap: Vec<String> =
        left.iter().map(|(cap, share)| format!("{share:.0} % of the pairs at {cap}")).collect();
    record.findings.push(Finding::new(
        "raised windows alone need not reach the cap: case by case",
        left.iter().any(|(_, share)| *share >= 1.0) && left.iter().any(|(_, share)| *share < 1.0),
        format!("with the largest window gain {}x: {}", scenario.gain, by_cap.join(", ")),
    ));
}
