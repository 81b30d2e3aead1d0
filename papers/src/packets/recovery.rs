//! Recovery of losses on wide-area paths by coding, on the lab: `jq-recovery-lab` [JQ 5.2].
//!
//! The paths are those of the simulation `jq-recovery`, drawn from the same seeds. Here relays and
//! gateways are processes, and losses are observed by the applications alone, from the send and
//! arrival times of datagrams. The simulation runs as well, and both must agree within their
//! sampling errors.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use tradewind_lab::LabOptions;
use tradewind_output::chart::Scale;
use tradewind_units::{HostId, Timestamp};

use super::traffic::{self, Pace, Pair, Seen};
use crate::harness::packets::{Attachment, Carriage, Coding, Party};
use crate::harness::process::Service;
use crate::harness::{
    Experiment, ExperimentError, Figure, Finding, LabContext, NumericError, Observer, ProcessError,
    Random, Record, Row, RunOptions, Runs, ScenarioError, Spot, from_toml, repeats, service,
    within,
};
use crate::numeric::packet::recovery::{self, CLASSES, Fate, Loss, Path, recovered, share};

/// The time for which datagrams may be in flight after the last one was sent.
const LAST_ONES: Duration = Duration::from_secs(3);

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    /// The scenario of the simulation.
    network: String,
    /// The names of the groups to use, and the number of paths of each.
    groups: Vec<String>,
    paths_per_group: usize,
    /// The number of groups on the lab at a time; a quick run has only these. The machine bounds
    /// the number of processes that keep time.
    groups_at_once: usize,
    /// The factor by which losses are raised.
    times_the_losses: f64,
    on_s: f64,
    on_quick_s: f64,
    /// The time for which senders send before anything counts.
    settle_s: f64,
    late_ms: f64,
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        within([
            ("groups", scenario.groups.len() as f64, 1.0, 20.0),
            ("paths_per_group", scenario.paths_per_group as f64, 1.0, 20.0),
            ("groups_at_once", scenario.groups_at_once as f64, 1.0, 20.0),
            ("times_the_losses", scenario.times_the_losses, 0.01, 20.0),
            ("on_s", scenario.on_s, 1.0, 3600.0),
            ("on_quick_s", scenario.on_quick_s, 1.0, 3600.0),
            ("settle_s", scenario.settle_s, 0.0, 60.0),
            ("late_ms", scenario.late_ms, 0.1, 100.0),
        ])?;
        Ok(scenario)
    }

    /// Returns the simulation's scenario, reduced to this one's paths and time.
    fn network(&self, text: &str, quick: bool) -> Result<recovery::Scenario, ScenarioError> {
        let mut network = recovery::Scenario::parse(text)?;
        let known = |name: &&String| network.groups.iter().any(|group| group.name == **name);
        if let Some(name) = self.groups.iter().find(|name| !known(name)) {
            let what = format!("groups: {} has no `{name}`", self.network);
            return Err(ScenarioError::Inconsistent { what });
        }
        let many = if quick { self.groups_at_once } else { self.groups.len() };
        let names: Vec<&String> = self.groups.iter().take(many).collect();
        network.groups.retain(|group| names.contains(&&group.name));
        network.groups.iter_mut().for_each(|group| group.paths = self.paths_per_group);
        network.loss_percent =
            network.loss_percent.map(|percent| (percent * self.times_the_losses).min(50.0));
        network.on_s = self.settle_s + if quick { self.on_quick_s } else { self.on_s };
        network.cycles = 1;
        Ok(network)
    }
}

/// The result of a run of the lab or of the simulation: its losses and its number of packets.
struct Run {
    losses: Vec<Loss>,
    packets: usize,
}

/// The lab and the simulation with one seed, with or without repeated copies.
struct Both {
    arq: bool,
    lab: Run,
    simulation: Run,
}

/// Runs the experiment.
///
/// # Errors
/// When the scenario is inconsistent, the lab or a process on it fails, or the run is stopped.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let text = experiment.beside(options, &scenario.network)?;
    let network = experiment.read(options, |_| scenario.network(&text, options.quick))?;
    let seeds = scenario.runs.seeds(options);
    let cases: Vec<(u64, bool)> =
        seeds.iter().flat_map(|seed| [(*seed, false), (*seed, true)]).collect();
    let step = "carry packets";
    let completed = repeats::each(step, &cases, 1, options, observer, |(seed, arq), checked| {
        let settle = Duration::from_secs_f64(scenario.settle_s);
        let simulated = simulate(&network, settle, *arq, *seed)?;
        let (lab, reasons) = on_lab(&scenario, &network, options, *arq, *seed)?;
        checked.add(&format!("{}, seed {seed}", with(*arq)), reasons);
        Ok::<_, ExperimentError>(Both { arq: *arq, lab, simulation: simulated })
    })?;
    Ok(completed.record(|all, options| record(&scenario, &network, options, all)))
}

/// Returns the packets of each path that were sent after the settling time.
fn settled(
    paths: Vec<(Path, Vec<Fate>)>,
    interval: Duration,
    settle: Duration,
) -> Vec<(Path, Vec<Fate>)> {
    let first = (settle.as_secs_f64() / interval.as_secs_f64()) as usize;
    let cut = |(path, mut fates): (Path, Vec<Fate>)| {
        fates.drain(..first.min(fates.len()));
        (path, fates)
    };
    paths.into_iter().map(cut).collect()
}

fn of_paths(paths: &[(Path, Vec<Fate>)]) -> Run {
    let packets = paths.iter().map(|(_, fates)| fates.len()).sum();
    Run { losses: recovery::losses(paths), packets }
}

fn simulate(
    network: &recovery::Scenario,
    settle: Duration,
    arq: bool,
    seed: u64,
) -> Result<Run, NumericError> {
    let paths = recovery::simulate(network, arq, seed)?;
    Ok(of_paths(&settled(paths, network.interval(), settle)))
}

/// Runs all groups on the lab, some at a time; returns the result and the bounds that the lab
/// broke.
fn on_lab(
    scenario: &Scenario,
    network: &recovery::Scenario,
    options: &RunOptions,
    arq: bool,
    seed: u64,
) -> Result<(Run, Vec<String>), ExperimentError> {
    let (paths, topology) =
        recovery::network(network, network.access_share, &mut Random::new(seed))?;
    let (mut fates, mut reasons) = (Vec::new(), Vec::new());
    let groups: Vec<usize> = (0..network.groups.len()).collect();
    for groups in groups.chunks(scenario.groups_at_once) {
        let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
        let context = LabContext::start(&topology, &lab, &options.program, &options.stop)?;
        let of_groups: Vec<(usize, &Path)> =
            paths.iter().enumerate().filter(|(_, path)| groups.contains(&path.group)).collect();
        let (_services, pairs) = start(network, groups, &of_groups, &context, arq)?;
        context.lab.reset_validity().map_err(ProcessError::from)?;
        let seen = traffic::run(&pairs, pace(network), &options.stop)?;
        reasons.extend(context.lab.validity().map_err(ProcessError::from)?.reasons);
        let late = Duration::from_secs_f64(scenario.late_ms / 1e3);
        let of_path = |(seen, (_, path)): (&Seen, &(usize, &Path))| {
            ((*path).clone(), fates_of(seen, path, late))
        };
        fates.extend(seen.iter().zip(&of_groups).map(of_path));
    }
    let settle = Duration::from_secs_f64(scenario.settle_s);
    Ok((of_paths(&settled(fates, network.interval(), settle)), reasons))
}

/// Returns the pace of a path's sender.
fn pace(network: &recovery::Scenario) -> Pace {
    let interval = network.interval();
    let count = (network.on().as_nanos() / interval.as_nanos()) as usize;
    Pace { interval, count, bytes: network.payload_bytes, last_ones: LAST_ONES }
}

/// Returns the fate of a path's packets as the applications observed it: a packet that arrived much
/// later than over the Internet path was lost there.
fn fates_of(seen: &Seen, path: &Path, late: Duration) -> Vec<Fate> {
    let at = |since: Duration| Timestamp::ZERO + since;
    let fate = |(sent, came): (&Duration, &Option<Duration>)| {
        let mut fate = Fate { copied: true, ..Fate::in_flight(at(*sent)) };
        match came {
            Some(came) if came.saturating_sub(*sent) <= path.internet + late => fate.came = true,
            Some(came) => fate.back = Some(at(*came)),
            None => {}
        }
        fate
    };
    seen.sent.iter().zip(&seen.came).map(fate).collect()
}

/// Starts the relays of groups, then the gateways and applications of each of their paths, which
/// are given with their indices.
fn start(
    network: &recovery::Scenario,
    groups: &[usize],
    paths: &[(usize, &Path)],
    context: &LabContext,
    arq: bool,
) -> Result<(Vec<Service>, Vec<Pair>), ProcessError> {
    let operator = service::operator()?;
    let (mut services, mut pairs) = (Vec::new(), Vec::new());
    let coding = Coding {
        cross_stream: network.cross_stream,
        in_stream: network.in_stream,
        across_gateways: true,
    };
    let mut relays = BTreeMap::new();
    for group in groups {
        let party = |name: String| Party::new(context, HostId::new(name)?);
        let (ingress, egress) = (party(format!("in-{group}"))?, party(format!("out-{group}"))?);
        services.push(ingress.relay(context, &operator, &[], coding)?);
        services.push(egress.relay(context, &operator, &[ingress.stop().identity], coding)?);
        relays.insert(*group, [ingress.stop(), egress.stop()]);
    }
    for (index, path) in paths {
        context.stop.check()?;
        let (near, remote) = ends(context, *index)?;
        let relays = &relays[&path.group];
        services.push(remote.remote_gateway(context, &operator, &[relays[1].identity], None)?);
        let carriage = Carriage {
            service: "coding",
            relays,
            remote: &remote,
            repeat_copies: arq,
            budget: None,
            copies: None,
            uplink: None,
        };
        let (gateway, listener) =
            near.near_gateway(context, &operator, &carriage, Attachment::Port)?;
        services.push(gateway);
        let to = (&remote.host, remote.application());
        pairs.push(Pair::open(context, (&near.host, listener), to, path.phase)?);
    }
    Ok((services, pairs))
}

/// Returns the parties at both ends of a path.
fn ends(context: &LabContext, index: usize) -> Result<(Party, Party), ProcessError> {
    let party = |name: String| Party::new(context, HostId::new(name)?);
    Ok((party(format!("s{index}"))?, party(format!("r{index}"))?))
}

/// The recovered share of losses in per cent, with its standard error: a burst is one sample,
/// because its packets share their fate.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    percent: f64,
    error: f64,
}

fn estimate(losses: &[Loss]) -> Option<Estimate> {
    let percent = recovered(losses.iter())?;
    let part = percent / 100.0;
    let mut deviations: Vec<f64> = Vec::new();
    let mut last = None;
    for loss in losses {
        if last != Some(loss.burst) {
            deviations.push(0.0);
            last = Some(loss.burst);
        }
        let deviation = deviations.last_mut().expect("one for each burst");
        *deviation += f64::from(loss.is_recovered()) - part;
    }
    let count = losses.len() as f64;
    let squares: f64 = deviations.iter().map(|deviation| deviation * deviation).sum();
    // When all or none are recovered the variance is zero: the error is at least that of one
    // deviating sample.
    let error = squares.sqrt().max(1.0) / count;
    Some(Estimate { percent, error: 100.0 * error })
}

/// Returns whether two estimates agree with 95 % confidence.
fn agree(one: Estimate, other: Estimate) -> bool {
    (one.percent - other.percent).abs() <= 1.96 * one.error.hypot(other.error)
}

/// Collects the losses of several runs; bursts of different runs stay separate.
fn together<'a>(runs: impl Iterator<Item = &'a Run>) -> Vec<Loss> {
    let mut all = Vec::new();
    for run in runs {
        let before = all.last().map_or(0, |loss: &Loss| loss.burst + 1);
        all.extend(run.losses.iter().map(|loss| Loss { burst: before + loss.burst, ..*loss }));
    }
    all
}

fn record(
    scenario: &Scenario,
    network: &recovery::Scenario,
    options: &RunOptions,
    all: &[Both],
) -> Record {
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    for arq in [false, true] {
        let such: Vec<&Both> = all.iter().filter(|both| both.arq == arq).collect();
        compare(arq, &such, &mut rows, &mut findings);
    }
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(format!(
        "{} paths between {} pairs of regions, {} s each, {} times the losses; {}",
        network.groups.iter().map(|group| group.paths).sum::<usize>(),
        network.groups.len(),
        network.on_s - scenario.settle_s,
        scenario.times_the_losses,
        scenario.runs.describe(options),
    ));
    let tables = Record::of_tables(&scenario.name, assumptions, (rows, findings));
    let figure = Figure {
        title: "losses recovered within one round trip".to_owned(),
        x_label: "burst, ARQ".to_owned(),
        y_label: "recovered (%)".to_owned(),
        scale: Scale::Names,
    };
    Record { figures: vec![figure], ..tables }
}

/// The name, the unit and the function of a compared value.
type Measure<'a> = (&'a str, &'a str, Box<dyn Fn(&Run) -> Option<f64>>);

fn measures() -> Vec<Measure<'static>> {
    let of_losses = "% of losses";
    let lost = |run: &Run| Some(100.0 * run.losses.len() as f64 / run.packets.max(1) as f64);
    let soon = |run: &Run| {
        let back = run.losses.iter().filter(|loss| loss.is_recovered());
        share(back.map(|loss| loss.after.is_some_and(|after| after <= 0.5)))
    };
    let mut all: Vec<Measure<'static>> = vec![
        ("lost on the Internet", "% of packets", Box::new(lost)),
        ("recovered within one RTT", of_losses, Box::new(|run| recovered(run.losses.iter()))),
        ("of these within 0.5 RTT", "% of recovered", Box::new(soon)),
    ];
    for (class, (length, ..)) in CLASSES.iter().enumerate() {
        let of_class =
            move |run: &Run| recovered(run.losses.iter().filter(move |loss| loss.class == class));
        all.push((length, of_losses, Box::new(of_class)));
    }
    all
}

/// Returns the position of the recovered share for bursts of one length: the lengths without ARQ,
/// then the same with it.
fn spot(place: &str, length: usize, with: &str) -> Spot {
    let x = if with == "with ARQ" { length + CLASSES.len() } else { length };
    let x_name = format!("{}, {with}", CLASSES[length].0);
    Spot { figure: 0, line: place.to_owned(), x: x as f64, x_name }
}

const fn with(arq: bool) -> &'static str {
    if arq { "with ARQ" } else { "without ARQ" }
}

fn compare(arq: bool, such: &[&Both], rows: &mut Vec<Row>, findings: &mut Vec<Finding>) {
    let with = with(arq);
    let lab: Vec<&Run> = such.iter().map(|both| &both.lab).collect();
    let simulation: Vec<&Run> = such.iter().map(|both| &both.simulation).collect();
    for (name, unit, measure) in measures() {
        for (place, runs) in [("lab", &lab), ("simulation", &simulation)] {
            let values: Vec<f64> = runs.iter().filter_map(|run| measure(run)).collect();
            if values.is_empty() {
                continue;
            }
            let row = Row::of(&format!("{name}, {with}, {place}"), None, &values, unit, "");
            let length = CLASSES.iter().position(|(length, ..)| *length == name);
            rows.push(match length {
                Some(length) => row.drawn_at(spot(place, length, with)),
                None => row,
            });
        }
    }
    let [lab, simulation] = [lab, simulation].map(|runs| together(runs.into_iter()));
    let (Some(ours), Some(theirs)) = (estimate(&lab), estimate(&simulation)) else { return };
    let describe =
        |place: &str, it: Estimate| format!("{place} {:.1} ± {:.1} %", it.percent, 1.96 * it.error);
    let both = format!("{}, {}", describe("lab", ours), describe("simulation", theirs));
    let claim = format!("{with}: simulation and lab agree on the part recovered");
    findings.push(Finding::new(&claim, agree(ours, theirs), both));
    let least = if arq { 95.0 } else { 78.0 };
    let claim = format!("{with}: at least {least} % of all losses recovered within one round trip");
    findings.push(Finding::new(&claim, ours.percent >= least, describe("lab", ours)));
    let back: Vec<&Loss> = lab.iter().filter(|loss| loss.is_recovered()).collect();
    let soon = share(back.iter().map(|loss| loss.after.is_some_and(|after| after <= 0.5)));
    let claim = format!("{with}: at least 95 % of these within half a round trip");
    let soon = soon.unwrap_or(f64::NAN);
    findings.push(Finding::new(&claim, soon >= 95.0, format!("{soon:.1} %")));
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../../scenarios/jq-recovery-lab.toml");
    const NETWORK: &str = include_str!("../../scenarios/jq-recovery.toml");

    fn loss(burst: usize, back: bool) -> Loss {
        let path = Path::plain(Duration::from_millis(50));
        let mut fate = Fate::in_flight(Timestamp::ZERO);
        fate.back = back.then(|| Timestamp::ZERO + Duration::from_millis(70));
        Loss { burst, ..recovery::losses(&[(path, vec![fate])])[0] }
    }

    #[test]
    fn built_in_scenario_is_consistent() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let network = scenario.network(NETWORK, false).unwrap();
        let quick = scenario.network(NETWORK, true).unwrap();
        let paths = |network: &recovery::Scenario| network.groups.iter().map(|it| it.paths).sum();
        let (all, quick): (usize, usize) = (paths(&network), paths(&quick));
        assert_eq!((all, quick), (30, 18));
        assert!(network.loss_percent[2] < 50.0);
        let (before, after) = TEXT.split_once("groups = [").unwrap();
        let none = format!("{before}groups = []{}", after.split_once(']').unwrap().1);
        let error = Scenario::parse(&none).unwrap_err();
        assert!(error.to_string().contains("groups: 0 given, expected 1 to 20"), "{error}");
        let unknown = Scenario::parse(&TEXT.replace("US-OC", "US-XX")).unwrap();
        let error = unknown.network(NETWORK, false).unwrap_err();
        assert!(error.to_string().contains("jq-recovery.toml has no `US-XX`"), "{error}");
    }

    #[test]
    fn late_packet_counts_as_lost_and_recovered() {
        let ms = Duration::from_millis;
        let path = Path::plain(ms(50));
        let seen = Seen {
            sent: vec![ms(0), ms(10), ms(20)],
            came: vec![Some(ms(52)), Some(ms(80)), None],
        };
        let fates = fates_of(&seen, &path, ms(7));
        let arrivals: Vec<_> = fates.iter().map(|fate| (fate.came, fate.back.is_some())).collect();
        assert_eq!(arrivals, [(true, false), (false, true), (false, false)]);
        let losses = recovery::losses(&[(path, fates)]);
        assert_eq!(losses.len(), 2);
        // Due at 60 ms, back at 80: a fifth of the round trip of 100.
        assert!((losses[0].after.unwrap() - 0.2).abs() < 1e-9);
    }

    #[test]
    fn bursts_are_one_sample_each() {
        let alone: Vec<Loss> = (0..40).map(|index| loss(index, index % 2 == 0)).collect();
        let in_bursts: Vec<Loss> =
            (0..40).map(|index| loss(index / 10, index / 10 % 2 == 0)).collect();
        let (alone, in_bursts) = (estimate(&alone).unwrap(), estimate(&in_bursts).unwrap());
        assert_eq!((alone.percent, in_bursts.percent), (50.0, 50.0));
        assert!((alone.error - 7.9).abs() < 0.1, "{alone:?}");
        assert!((in_bursts.error - 25.0).abs() < 0.1, "{in_bursts:?}");
        let near = |percent| Estimate { percent, error: 1.0 };
        assert!(agree(near(90.0), near(92.7)) && !agree(near(90.0), near(92.8)));
    }

    #[test]
    fn bursts_of_two_runs_stay_apart() {
        let run = || Run { losses: vec![loss(0, true), loss(1, true)], packets: 2 };
        let bursts: Vec<usize> =
            together([&run(), &run()].into_iter()).iter().map(|it| it.burst).collect();
        assert_eq!(bursts, [0, 1, 2, 3]);
    }
}
