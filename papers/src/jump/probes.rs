//! `rt-probes` `[RT IV-B2, IV-C, IV-D]`: probes of three sizes between PoPs, with the daemon and
//! without, side by side.
//!
//! Both machines of a probing PoP send the same objects to the same PoPs over paths of the same
//! kind in the same seconds, so each probe has its pair. The first round, in which the daemon has
//! learned nothing yet, does not count.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use tradewind_lab::address::NETWORK_V4;
use tradewind_lab::{LabError, LabOptions};
use tradewind_net::iproute::{self, Tool};
use tradewind_output::chart::Scale;
use tradewind_units::time::{as_millis_f64, as_text};
use tradewind_units::{Bytes, HostId, Ratio, RegionId};

use super::{host, topology};
use crate::harness::exchange::{ConnectionPair, Fetch, FileListener, Over, exchange};
use crate::harness::process::Service;
use crate::harness::{
    Experiment, ExperimentError, Figure, Finding, LabContext, Observer, ProcessError, Random,
    Record, Row, RunOptions, Runs, ScenarioError, Spot, from_toml, mean, quantile, repeats,
};
use crate::numeric::pops::{pops, rtt_between};

/// Share of a round within which its probes begin; the rest is for them to end.
const BEGIN_WITHIN: f64 = 0.5;
/// The paper's classes of round trips, in milliseconds [RT IV-B2].
const CLASSES: [(f64, f64, &str); 4] = [
    (0.0, 50.0, "below 50 ms"),
    (50.0, 100.0, "50 to 100 ms"),
    (100.0, 150.0, "100 to 150 ms"),
    (150.0, f64::INFINITY, "above 150 ms"),
];
/// Gain in round trips above which a probe counts as faster. Chosen: half of a round trip is no
/// jitter.
const FASTER_RTTS: f64 = 0.5;
/// Share of a saved round trip that must be measured: loss and wake-ups take the rest.
const A_ROUND_TRIP: f64 = 0.9;
/// Relative difference up to which times count as the same.
const SAME: f64 = 0.05;
/// Percentiles at which gains are shown [RT Figs. 15, 16].
const PERCENTILES: [u8; 10] = [5, 15, 25, 35, 45, 55, 65, 75, 85, 95];

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    europe: RegionId,
    #[serde(rename = "north-america")]
    north_america: RegionId,
    probes: Vec<Bytes>,
    rounds: u32,
    rounds_quick: u32,
    #[serde(with = "as_text")]
    round: Duration,
    loss: Ratio,
    persistent_share: Ratio,
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        for place in [&scenario.europe, &scenario.north_america] {
            if !pops().all().any(|pop| pop == place) {
                let why = "is none of the 34 PoPs (papers/scenarios/rt-pops.toml)";
                return wrong(format!("`{place}` {why}"));
            }
        }
        if scenario.rounds < 2 || scenario.rounds_quick < 2 {
            return wrong("rounds, rounds_quick: at least 2, the first does not count".to_owned());
        }
        if scenario.probes.is_empty()
            || scenario.probes.iter().any(|size| size.as_u64() > 3_000_000)
        {
            return wrong("probes: at least one, each of at most 3 MB".to_owned());
        }
        Ok(scenario)
    }

    /// Returns the probing PoPs, with a name for each.
    fn probing(&self) -> [(&RegionId, &'static str); 2] {
        [(&self.europe, "EU"), (&self.north_america, "NA")]
    }

    /// Returns the topology: one host for each PoP, which fetches, and two for each probing PoP,
    /// which serve.
    fn topology(&self, seed: u64) -> String {
        let mut text = format!("seed = {seed}\n[default.host]\ncongestion_control = \"cubic\"\n");
        text += &format!("[default.pair]\nloss = {}\n", self.loss.as_f64());
        for pop in pops().all() {
            text += &format!(
                "[[site]]\nregion = \"{pop}\"\n[[host]]\nid = \"{pop}\"\nsite = \"{pop}\"\n"
            );
        }
        for (pop, name) in self.probing() {
            for machine in MACHINES {
                text += &format!("[[host]]\nid = \"{name}-{machine}\"\nsite = \"{pop}\"\n");
            }
        }
        text
    }
}

/// The machines of a probing PoP: the control first.
const MACHINES: [&str; 2] = ["control", "riptide"];

/// A pair of probes: its kind, and milliseconds without and with the daemon.
#[derive(Debug, Clone, Copy)]
struct Probe {
    /// Index of the probing PoP; 0: Europe.
    pop: usize,
    /// Index of the size.
    size: usize,
    rtt_ms: f64,
    /// True if both went over a new connection.
    new: bool,
    ms: [f64; 2],
    retransmitted: [u32; 2],
}

impl Probe {
    fn saved_rtts(&self) -> f64 {
        (self.ms[0] - self.ms[1]) / self.rtt_ms
    }
}

/// Results of one run.
#[derive(Default)]
struct Found {
    probes: Vec<Probe>,
    /// Congestion windows of all open connections at the end, by machine.
    windows: [Vec<f64>; 2],
}

/// Runs the experiment.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let rounds = if options.quick { scenario.rounds_quick } else { scenario.rounds };
    let seeds = scenario.runs.seeds(options);
    observer.begin("rounds of probes", u64::from(rounds) * seeds.len() as u64);
    let completed =
        repeats::in_turn(seeds.len(), options, observer, |before, checked, observer| {
            let (seed, before) = (seeds[before.len()], before.len() as u64 * u64::from(rounds));
            let done = |done| observer.advance_to(before + done);
            let (found, reasons) = once(&scenario, rounds, seed, options, done)?;
            checked.add(&format!("seed {seed}"), reasons);
            Ok::<_, ProcessError>(found)
        })?;
    Ok(completed.record(|all, options| {
        let Scenario { name, assumptions, runs, round: shown, .. } = &scenario;
        let mut record = Record::of_runs(name, assumptions, runs, options);
        record.assumptions.push(format!("{rounds} rounds of {shown:?} each; the paper: 20 hours"));
        rows(&scenario, all, &mut record);
        record
    }))
}

/// Runs a repeat; returns the lab's reasons against it, too.
fn once(
    scenario: &Scenario,
    rounds: u32,
    seed: u64,
    options: &RunOptions,
    mut done: impl FnMut(u64),
) -> Result<(Found, Vec<String>), ProcessError> {
    let topology = topology(&scenario.topology(seed), &scenario.name)?;
    let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let context = LabContext::start(&topology, &lab, &options.program, &options.stop)?;
    for (_, name) in scenario.probing() {
        for machine in MACHINES {
            one_route(&context, &host(&format!("{name}-{machine}")))?;
        }
    }
    let _daemons: Vec<Service> = scenario
        .probing()
        .iter()
        .map(|(_, name)| start_daemon(&context, &host(&format!("{name}-{}", MACHINES[1]))))
        .collect::<Result<_, ProcessError>>()?;
    let mut field = Field::new(scenario, &context, seed)?;
    let mut found = Found::default();
    context.lab.reset_validity()?;
    for round in 0..rounds {
        let probes = field.round()?;
        if round > 0 {
            found.probes.extend(probes);
        }
        done(u64::from(round) + 1);
    }
    found.windows = field.windows()?;
    Ok((found, context.lab.validity()?.reasons))
}

/// Gives `host` one route to all others, as machines have: the lab's own routes, one to each other
/// host, are foreign to the daemon, which leaves them alone.
fn one_route(context: &LabContext, host: &HostId) -> Result<(), ProcessError> {
    let lab = &context.lab;
    let own = lab.address_v4(host)?;
    let mut lines = vec![format!("route add {NETWORK_V4}/16 dev {DEVICE} src {own}")];
    for other in lab.hosts().filter(|other| *other != host) {
        lines.push(format!("route del {}/32 dev {DEVICE}", lab.address_v4(other)?));
    }
    let namespace = lab.namespace(host)?;
    Ok(iproute::batch(&namespace, Tool::Ip, &lines).map_err(LabError::from)?)
}

/// The lab's interface on each of its hosts.
const DEVICE: &str = "wan0";

/// Configuration of the daemon: as the paper's, it has no control share; the control is a machine
/// of its own.
const CONFIG: &str = "[learn]\ncontrol_share = 0\n";

/// Starts the daemon as any user would, except for that and for the path of its socket.
fn start_daemon(context: &LabContext, host: &HostId) -> Result<Service, ProcessError> {
    let name = format!("jumpstart-{host}");
    let socket = context.scratch.write(&format!("{name}.sock"), "")?;
    // The daemon creates it anew.
    let _ = std::fs::remove_file(&socket);
    let mut command = context.lab.command(host, &context.program)?;
    command
        .args(["jumpstart", "run", "--config"])
        .arg(context.scratch.write("jumpstart.toml", CONFIG)?);
    command.arg("--socket").arg(socket);
    Ok(Service::start(command, &name, &context.scratch)?.0)
}

/// A path from a machine of a probing PoP to another PoP, with its idle connections.
struct ProbedPath {
    pop: usize,
    machine: usize,
    to: HostId,
    rtt: Duration,
    idle: Vec<ConnectionPair>,
}

/// All probing machines, and their paths.
struct Field<'a> {
    scenario: &'a Scenario,
    context: &'a LabContext,
    /// Listeners by PoP and machine.
    file_listeners: Vec<FileListener>,
    /// Paths; those of the two machines of a PoP towards one other PoP are neighbours here.
    paths: Vec<ProbedPath>,
    random: Random,
}

impl<'a> Field<'a> {
    fn new(
        scenario: &'a Scenario,
        context: &'a LabContext,
        seed: u64,
    ) -> Result<Self, ProcessError> {
        let (mut file_listeners, mut paths) = (Vec::new(), Vec::new());
        for (pop, (place, name)) in scenario.probing().into_iter().enumerate() {
            for machine in MACHINES {
                file_listeners.push(FileListener::open(
                    context,
                    &host(&format!("{name}-{machine}")),
                    None,
                )?);
            }
            for other in pops().all().filter(|other| *other != place) {
                let rtt = rtt_between(place, other).unwrap_or_default();
                let to = host(other.as_str());
                let path =
                    |machine| ProbedPath { pop, machine, to: to.clone(), rtt, idle: Vec::new() };
                paths.extend([path(0), path(1)]);
            }
        }
        Ok(Self { scenario, context, file_listeners, paths, random: Random::new(seed) })
    }

    /// Runs a round: every PoP fetches every size from every machine at once. Returns the pairs of
    /// probes, of which both went over a new connection, or both over an idle one.
    fn round(&mut self) -> Result<Vec<Probe>, ProcessError> {
        let begun = std::time::Instant::now();
        let sizes = self.scenario.probes.clone();
        let phases: Vec<Duration> = self
            .paths
            .chunks(2)
            .map(|_| self.scenario.round.mul_f64(BEGIN_WITHIN * self.random.fraction()))
            .collect();
        let (mut fetches, mut idle_for) = (Vec::new(), Vec::new());
        for (index, path) in self.paths.iter_mut().enumerate() {
            let idle = std::mem::take(&mut path.idle);
            // Both machines' idle connections serve the same sizes.
            if index % 2 == 0 {
                idle_for = vec![false; sizes.len()];
                for place in self.random.permutation(sizes.len()).into_iter().take(idle.len()) {
                    idle_for[place] = true;
                }
            }
            let mut idle = idle.into_iter();
            for (size, is_idle) in sizes.iter().zip(&idle_for) {
                let file_listener = &self.file_listeners[2 * path.pop + path.machine];
                let idle_link = if *is_idle { idle.next() } else { None };
                let over = idle_link.map_or(Over::New(&path.to, file_listener), Over::Idle);
                fetches.push(Fetch {
                    at: phases[index / 2],
                    over,
                    bytes: size.as_u64(),
                    paced: None,
                });
            }
        }
        let mut done = exchange(self.context, fetches, Duration::ZERO, None)?;
        let mut probes = Vec::new();
        for (index, pair) in self.paths.chunks(2).enumerate() {
            for size in 0..sizes.len() {
                let at = |machine: usize| &done[(2 * index + machine) * sizes.len() + size];
                let [without, with] = [at(0), at(1)];
                probes.push(Probe {
                    pop: pair[0].pop,
                    size,
                    rtt_ms: as_millis_f64(pair[0].rtt),
                    new: without.new && with.new,
                    ms: [as_millis_f64(without.fct), as_millis_f64(with.fct)],
                    retransmitted: [without.retransmitted, with.retransmitted],
                });
            }
        }
        // Both machines keep the same connections for the next round.
        for pair in self.paths.chunks_mut(2).rev() {
            let first = done.len() - 2 * sizes.len();
            let mut both: Vec<_> = done.drain(first..).map(|done| Some(done.link)).collect();
            for place in 0..sizes.len() {
                if self.random.fraction() < self.scenario.persistent_share.as_f64() {
                    pair[0].idle.extend(both[place].take());
                    pair[1].idle.extend(both[sizes.len() + place].take());
                }
            }
        }
        let left = self.scenario.round.saturating_sub(begun.elapsed());
        std::thread::sleep(left);
        self.context.stop.check()?;
        Ok(probes)
    }

    /// Returns the congestion windows of open connections, by machine.
    fn windows(&self) -> Result<[Vec<f64>; 2], ProcessError> {
        let mut windows = [Vec::new(), Vec::new()];
        for path in &self.paths {
            for link in &path.idle {
                let window = link.info()?.congestion_window;
                windows[path.machine].extend(window.map(|window| f64::from(window.as_u32())));
            }
        }
        Ok(windows)
    }
}

/// Returns a run's probes of a PoP and size, in a class if one is given.
fn picked(found: &Found, pop: usize, size: usize, class: Option<usize>) -> Vec<Probe> {
    let within = |probe: &&Probe| {
        let fits = class.is_none_or(|class| {
            let (least, most, _) = CLASSES[class];
            (least..most).contains(&probe.rtt_ms)
        });
        probe.pop == pop && probe.size == size && fits
    };
    found.probes.iter().filter(within).copied().collect()
}

fn median_of(probes: &[Probe], of: impl Fn(&Probe) -> f64) -> f64 {
    quantile(&probes.iter().map(of).collect::<Vec<f64>>(), 0.5)
}

fn rows(scenario: &Scenario, all: &[Found], record: &mut Record) {
    for (pop, (_, name)) in scenario.probing().into_iter().enumerate() {
        for (size, bytes) in scenario.probes.iter().enumerate() {
            for (class, (_, _, class_name)) in CLASSES.iter().enumerate() {
                class_rows(
                    &format!("{name}, {bytes}, {class_name}"),
                    all,
                    (pop, size, class),
                    record,
                );
            }
            let faster = |found: &Found| {
                let probes = picked(found, pop, size, None);
                let faster = probes.iter().filter(|probe| probe.saved_rtts() > FASTER_RTTS).count();
                100.0 * faster as f64 / probes.len().max(1) as f64
            };
            let paper = match bytes.as_u64() {
                10_000 => Some(0.0),
                50_000 => Some(30.0),
                100_000 => Some(78.0),
                _ => None,
            };
            let values: Vec<f64> = all.iter().map(faster).collect();
            let note = "by half a round trip or more; the paper's is over both PoPs";
            record.rows.push(Row::of(
                &format!("{name}, {bytes}: faster"),
                paper,
                &values,
                "%",
                note,
            ));
        }
    }
    gain_rows(scenario, all, record);
    for (machine, name) in MACHINES.iter().enumerate() {
        let medians: Vec<f64> =
            all.iter().map(|found| quantile(&found.windows[machine], 0.5)).collect();
        let case = format!("median window of open connections at the end, {name}");
        record.rows.push(Row::of(&case, None, &medians, "segments", "the kernel's"));
        let again = |found: &Found| {
            100.0
                * f64::from(
                    found.probes.iter().map(|probe| probe.retransmitted[machine]).sum::<u32>(),
                )
                / found.probes.len().max(1) as f64
        };
        let values: Vec<f64> = all.iter().map(again).collect();
        record.rows.push(Row::of(
            &format!("segments sent again for 100 probes, {name}"),
            None,
            &values,
            "",
            "",
        ));
    }
    findings(scenario, all, record);
}

fn class_rows(
    name: &str,
    all: &[Found],
    (pop, size, class): (usize, usize, usize),
    record: &mut Record,
) {
    let of = |what: &dyn Fn(&[Probe]) -> f64| -> Vec<f64> {
        all.iter().map(|found| what(&picked(found, pop, size, Some(class)))).collect()
    };
    if of(&|probes| probes.len() as f64).contains(&0.0) {
        return;
    }
    for (machine, word) in MACHINES.iter().enumerate() {
        let values = of(&|probes| median_of(probes, |probe| probe.ms[machine]));
        record.rows.push(Row::of(&format!("{name}: median, {word}"), None, &values, "ms", ""));
    }
    let values = of(&|probes| median_of(probes, Probe::saved_rtts));
    let probes: usize = all.iter().map(|found| picked(found, pop, size, Some(class)).len()).sum();
    let new: usize = all
        .iter()
        .map(|found| picked(found, pop, size, Some(class)).iter().filter(|probe| probe.new).count())
        .sum();
    let note = format!("{probes} pairs, {new} over new connections");
    record.rows.push(Row::of(&format!("{name}: saved at the median"), None, &values, "RTT", &note));
}

/// Adds gains by percentile, destination by destination, then averaged over them [RT IV-C].
fn gain_rows(scenario: &Scenario, all: &[Found], record: &mut Record) {
    for (size, bytes) in scenario.probes.iter().enumerate() {
        let figure = record.figures.len();
        record.figures.push(Figure {
            title: format!("{bytes}: gain by percentile, mean over destinations [RT Figs. 15, 16]"),
            x_label: "percentile".to_owned(),
            y_label: "faster by (%)".to_owned(),
            scale: Scale::Names,
        });
        for (pop, (_, name)) in scenario.probing().into_iter().enumerate() {
            for percent in PERCENTILES {
                let values: Vec<f64> = all
                    .iter()
                    .map(|found| gain(found, pop, size, f64::from(percent) / 100.0))
                    .collect();
                let x_name = format!("{percent}th");
                let spot = Spot { figure, line: name.to_owned(), x: f64::from(percent), x_name };
                let case = format!("{bytes}, gain at the {percent}th percentile, {name}");
                record.rows.push(Row::of(&case, None, &values, "%", "").drawn_at(spot));
            }
        }
    }
}

fn gain(found: &Found, pop: usize, size: usize, share: f64) -> f64 {
    let mut by_destination: BTreeMap<u64, [Vec<f64>; 2]> = BTreeMap::new();
    for probe in picked(found, pop, size, None) {
        // A destination is identified by its round trip: no two are equally far.
        let ends = by_destination.entry(probe.rtt_ms.to_bits()).or_default();
        ends[0].push(probe.ms[0]);
        ends[1].push(probe.ms[1]);
    }
    let gains: Vec<f64> = by_destination
        .values()
        .map(|[without, with]| 100.0 * (1.0 - quantile(with, share) / quantile(without, share)))
        .collect();
    mean(&gains)
}

/// Adds the required findings, then the paper's statements.
fn findings(scenario: &Scenario, all: &[Found], record: &mut Record) {
    let size_of = |bytes: u64| scenario.probes.iter().position(|size| size.as_u64() == bytes);
    let over = |size: usize, of: &dyn Fn(&[Probe]) -> f64| -> Vec<(String, f64)> {
        let mut values = Vec::new();
        for (pop, (_, name)) in scenario.probing().into_iter().enumerate() {
            for (class, (_, _, class_name)) in CLASSES.iter().enumerate() {
                let runs: Vec<f64> = all
                    .iter()
                    .map(|found| picked(found, pop, size, Some(class)))
                    .filter(|probes| !probes.is_empty())
                    .map(|probes| of(&probes))
                    .collect();
                if !runs.is_empty() {
                    values.push((format!("{name} {class_name}"), mean(&runs)));
                }
            }
        }
        values
    };
    let describe = |values: &[(String, f64)], unit: &str| {
        let words: Vec<String> =
            values.iter().map(|(name, value)| format!("{value:.2}{unit} {name}")).collect();
        words.join(", ")
    };
    let saved = |probes: &[Probe]| median_of(probes, Probe::saved_rtts);
    if let Some(large) = size_of(100_000) {
        let mut remote = over(large, &saved);
        remote.retain(|(name, _)| !name.ends_with(CLASSES[0].2));
        record.findings.push(Finding::new(
            "100 KB beyond 50 ms: at least one round trip faster at the median",
            !remote.is_empty() && remote.iter().all(|(_, rtts)| *rtts >= A_ROUND_TRIP),
            describe(&remote, " RTT"),
        ));
    }
    if let Some(small) = size_of(10_000) {
        // Pair by pair: times over new and over idle connections lie a round trip apart, and a
        // median may fall on either.
        let change = |probes: &[Probe]| median_of(probes, |probe| probe.ms[1] / probe.ms[0] - 1.0);
        let changes = over(small, &change);
        record.findings.push(Finding::new(
            "10 KB: no discernible effect, pair by pair",
            changes.iter().all(|(_, change)| change.abs() <= SAME),
            describe(
                &changes
                    .iter()
                    .map(|(name, change)| (name.clone(), change * 100.0))
                    .collect::<Vec<_>>(),
                " %",
            ),
        ));
    }
    if let (Some(middle), Some(large)) = (size_of(50_000), size_of(100_000)) {
        let share = |size: usize| {
            let probes: Vec<Probe> = all
                .iter()
                .flat_map(|found| [0, 1].map(|pop| picked(found, pop, size, None)).concat())
                .collect();
            100.0 * probes.iter().filter(|probe| probe.saved_rtts() > FASTER_RTTS).count() as f64
                / probes.len().max(1) as f64
        };
        record.findings.push(Finding::new(
            "50 KB is faster for 30 % of connections, 100 KB for 78 %",
            share(large) > share(middle) && share(middle) > 0.0,
            format!("for {:.0} % and {:.0} %", share(middle), share(large)),
        ));
    }
}
