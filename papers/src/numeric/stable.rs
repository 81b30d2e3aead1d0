//! `trn-day` \[TRN\]: how stable the choice is whether to relay, over a day.
//!
//! TRN asks whether bandwidth between regions varies over time, and finds its most, the cap of a
//! VM, "often stable". Here round trips swell at the busy hours of each pair of regions, and vary
//! by chance; each hour the model chooses anew whether a pair's transfer takes a relay, and which.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tradewind_output::chart::Scale;
use tradewind_plan::routing::Router;
use tradewind_plan::routing::advice::{MIN_GAIN, Settings, completion};
use tradewind_units::{Bandwidth, Bytes, Duration, RegionId};

use super::rtts::{Rtts, others};
use super::scope::Tuning;
use crate::harness::seeds::{Threads, each};
use crate::harness::{
    Figure, Finding, Job, NumericError, Random, Record, Row, Runs, ScenarioError, Spot, catalogue,
    from_toml, mean, quantile,
};

/// Hours of a day.
const HOURS: usize = 24;
/// Share of the day's largest rate from which on its least makes a rate stable. Chosen: TRN's word
/// is "often stable".
const STABLE: f64 = 0.9;
/// Share of the pairs whose choice is to stay for it to count as stable. Chosen: as "often".
const OFTEN: f64 = 90.0;
/// Most that the morning's choice may lose, in per cent. Chosen: what the planner needs to move
/// flows.
const MAX_LOST: f64 = 5.0;

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
    /// Volume of a transfer.
    pub volume: Bytes,
    /// Total rate of a VM, a relay's too.
    pub vm_cap: Bandwidth,
    /// The window of a connection.
    pub window: Bytes,
    /// Numbers of connections: a case each, the tuned one last.
    pub connections: Vec<u32>,
    /// Growth of a round trip at its busiest hour, as a share.
    pub swell: f64,
    /// Standard deviation of the logarithm of round trips by chance, anew each hour.
    pub noise: f64,
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
            let close = catalogue().did_you_mean(id.as_str());
            return wrong(format!("regions: `{id}` is not in the catalogue{close}"));
        }
        let different: BTreeSet<&RegionId> = scenario.regions.iter().collect();
        if different.len() < 3 || different.len() < scenario.regions.len() {
            return wrong("regions: three different ones at least, each once".to_owned());
        }
        let are_counts = scenario.connections.iter().all(|count| (1..=1000).contains(count));
        if scenario.connections.is_empty() || !are_counts {
            return wrong("connections: at least one number, each 1 to 1000".to_owned());
        }
        if [scenario.volume, scenario.window].iter().any(|size| size.as_u64() == 0) {
            return wrong("volume, window: above zero".to_owned());
        }
        for (key, value) in [("swell", scenario.swell), ("noise", scenario.noise)] {
            if !(0.0..=1.0).contains(&value) {
                return wrong(format!("{key}: {value} given, expected 0 to 1"));
            }
        }
        Ok(scenario)
    }

    fn tuning(&self, connections: u32) -> Tuning {
        let (window, vm_cap) = (self.window, self.vm_cap);
        Tuning { window, connections, per_connection: None, vm_cap }
    }
}

/// Round-trip times at one hour.
type Hour = BTreeMap<(RegionId, RegionId), Duration>;

/// Draws the round trips of a day: each pair of regions is busy at a time of its own.
fn day(scenario: &Scenario, random: &mut Random) -> Result<Vec<Hour>, NumericError> {
    let regions: BTreeSet<RegionId> = scenario.regions.iter().cloned().collect();
    let rtts = Rtts::new(None, &regions, random)?;
    let mut hours = vec![Hour::new(); HOURS];
    for from in &regions {
        for to in regions.iter().filter(|to| from < to) {
            let Some(least) = rtts.between(from, to) else { continue };
            let begins = random.fraction() * HOURS as f64;
            for (hour, rtts) in hours.iter_mut().enumerate() {
                let since = (hour as f64 + HOURS as f64 - begins) % HOURS as f64;
                let busy = (std::f64::consts::PI * since / 12.0).sin().max(0.0);
                let chance = (scenario.noise * random.normal()).exp();
                let rtt = least.mul_f64((1.0 + scenario.swell * busy) * chance);
                rtts.insert((from.clone(), to.clone()), rtt);
                rtts.insert((to.clone(), from.clone()), rtt);
            }
        }
    }
    Ok(hours)
}

/// Figures of one case in a run.
struct Sample {
    /// Pairs whose choice whether to relay is the same at all hours, in per cent.
    stays: f64,
    /// Changes of that choice in a pair and day.
    changes: f64,
    /// Pairs with a relay, in per cent, by hour.
    relayed: Vec<f64>,
    /// Least over largest direct rate of the day, median of the pairs.
    evenness: f64,
    /// Time that the first hour's choice takes all day beyond each hour's own, in per cent.
    lost: f64,
}

/// The time of a transfer directly and over each relay, at one hour.
struct Times {
    direct: f64,
    over: Vec<f64>,
}

impl Times {
    /// Returns the relay to take, if one is worth it.
    fn choice(&self) -> Option<usize> {
        let best = (0..self.over.len()).min_by(|a, b| self.over[*a].total_cmp(&self.over[*b]))?;
        (self.direct / self.over[best] >= MIN_GAIN).then_some(best)
    }

    fn of(&self, choice: Option<usize>) -> f64 {
        choice.map_or(self.direct, |relay| self.over[relay])
    }
}

fn times(
    hour: &Hour,
    (from, to): (&RegionId, &RegionId),
    relays: &[RegionId],
    settings: &Settings,
) -> Option<Times> {
    let rtt = |a: &RegionId, b: &RegionId| hour.get(&(a.clone(), b.clone())).copied();
    let router = Router::new(from, to, relays, rtt);
    let seconds = |relays: &[usize]| {
        router.path(relays).map(|path| completion(&path, settings).total().as_secs_f64())
    };
    let over = (0..relays.len()).filter_map(|relay| seconds(&[relay])).collect();
    Some(Times { direct: seconds(&[])?, over })
}

fn sample(scenario: &Scenario, hours: &[Hour], connections: u32) -> Sample {
    let settings = scenario.tuning(connections).settings(scenario.volume);
    let (mut stays, mut changes, mut evenness) = (Vec::new(), Vec::new(), Vec::new());
    let mut relayed = vec![0.0; HOURS];
    let (mut kept, mut anew) = (0.0, 0.0);
    for from in &scenario.regions {
        for to in scenario.regions.iter().filter(|to| *to != from) {
            let relays = others(&scenario.regions, from, to);
            let day: Vec<Times> = hours
                .iter()
                .filter_map(|hour| times(hour, (from, to), &relays, &settings))
                .collect();
            let choices: Vec<Option<usize>> = day.iter().map(Times::choice).collect();
            let pairs = choices.windows(2);
            let count = pairs.filter(|two| two[0].is_some() != two[1].is_some()).count();
            stays.push(if count == 0 { 100.0 } else { 0.0 });
            changes.push(count as f64);
            for (hour, choice) in relayed.iter_mut().zip(&choices) {
                *hour += if choice.is_some() { 100.0 } else { 0.0 };
            }
            let direct: Vec<f64> = day.iter().map(|times| times.direct).collect();
            evenness.push(quantile(&direct, 0.0) / quantile(&direct, 1.0));
            let first = choices.first().copied().flatten();
            kept += day.iter().map(|times| times.of(first)).sum::<f64>();
            anew += day.iter().zip(&choices).map(|(times, it)| times.of(*it)).sum::<f64>();
        }
    }
    let pairs = stays.len() as f64;
    relayed.iter_mut().for_each(|hour| *hour /= pairs);
    Sample {
        stays: mean(&stays),
        changes: mean(&changes),
        relayed,
        evenness: quantile(&evenness, 0.5),
        lost: 100.0 * (kept / anew - 1.0),
    }
}

/// Runs the experiment.
///
/// # Errors
/// When a region has no place, or the run is stopped.
pub fn run(scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    let seeds = scenario.runs.seeds(job.options);
    let runs = each(&scenario.name, &seeds, Threads::All, job, |seed| {
        let hours = day(scenario, &mut Random::new(seed))?;
        let case = |connections: &u32| sample(scenario, &hours, *connections);
        Ok(scenario.connections.iter().map(case).collect::<Vec<Sample>>())
    })?;
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    record.figures.push(Figure {
        title: "pairs to which a relay is advised".to_owned(),
        x_label: "hour of the day".to_owned(),
        y_label: "pairs (%)".to_owned(),
        scale: Scale::Linear,
    });
    for (index, connections) in scenario.connections.iter().enumerate() {
        let runs: Vec<&Sample> = runs.iter().map(|run| &run[index]).collect();
        rows(*connections, &runs, &mut record);
    }
    findings(scenario, &runs, &mut record);
    Ok(record)
}

fn rows(connections: u32, runs: &[&Sample], record: &mut Record) {
    let line = format!("{connections} connections");
    let values = |of: &dyn Fn(&Sample) -> f64| runs.iter().map(|run| of(run)).collect::<Vec<f64>>();
    for hour in 0..HOURS {
        let x_name = format!("{hour}:00");
        let case = format!("pairs with a relay at {x_name}, {line}");
        let spot = Spot { figure: 0, line: line.clone(), x: hour as f64, x_name };
        let values = values(&|run| run.relayed[hour]);
        record.rows.push(Row::of(&case, None, &values, "%", "").drawn_at(spot));
    }
    let mut push = |case: &str, of: &dyn Fn(&Sample) -> f64, unit: &str| {
        record.rows.push(Row::of(&format!("{case}, {line}"), None, &values(of), unit, ""));
    };
    push("pairs whose choice stays all day", &|run| run.stays, "%");
    push("changes of the choice in a pair and day", &|run| run.changes, "");
    push("least over largest direct rate of the day, median", &|run| run.evenness, "");
    push("lost by the first hour's choice", &|run| run.lost, "%");
}

fn findings(scenario: &Scenario, runs: &[Vec<Sample>], record: &mut Record) {
    let of = |index: usize, of: fn(&Sample) -> f64| {
        mean(&runs.iter().map(|run| of(&run[index])).collect::<Vec<f64>>())
    };
    let last = scenario.connections.len() - 1;
    let even = of(last, |run| run.evenness);
    record.findings.push(Finding::new(
        "the most that two VMs carry between regions is stable over time",
        even >= STABLE,
        format!(
            "with {} connections the least rate of the day is {even:.2} of the largest, \
             with {} {:.2}",
            scenario.connections[last],
            scenario.connections[0],
            of(0, |run| run.evenness)
        ),
    ));
    let words = |figure: fn(&Sample) -> f64| {
        let word = |(index, count): (usize, &u32)| {
            format!("{:.1} with {count} connections", of(index, figure))
        };
        scenario.connections.iter().enumerate().map(word).collect::<Vec<String>>().join(", ")
    };
    record.findings.push(Finding::new(
        "ours: the choice whether to relay stays all day for 9 of 10 pairs",
        (0..=last).all(|index| of(index, |run| run.stays) >= OFTEN),
        format!("per cent of the pairs: {}", words(|run| run.stays)),
    ));
    record.findings.push(Finding::new(
        "ours: the first hour's choice, kept all day, loses less than 5 %",
        (0..=last).all(|index| of(index, |run| run.lost) < MAX_LOST),
        format!("per cent of the time: {}", words(|run| run.lost)),
    ));
}
