//! Copies on a short uplink that they share with what they protect: `packet-uplink`.
//!
//! A host's packets go by each packet service, and by the one that its gateway chooses, over loads,
//! losses and budgets. What did not come in time is counted, and when the others came; `auto` is
//! compared with the best service of each point.

use std::time::Duration;

use serde::Deserialize;
use tradewind_lab::LabOptions;
use tradewind_units::{Bandwidth, Bytes, HostId};
use tradewind_wan::Topology;

use super::traffic::{self, Pace, Pair, Seen};
use crate::harness::checked::Checked;
use crate::harness::packets::{Attachment, Carriage, Coding, Party};
use crate::harness::process::Service;
use crate::harness::{
    Experiment, ExperimentError, Finding, LabContext, Observer, ProcessError, Record, Row,
    RunOptions, Runs, ScenarioError, catalogue, from_toml, quantile, repeats, service, within,
};

/// Labs at a time. Chosen: each carries two Mbit/s at most.
const AT_ONCE: usize = 5;
/// Bytes before those of a packet: seals, numbers, UDP and IPv4.
const AROUND: usize = 79;
/// The services, the chosen one last.
const SERVICES: [&str; 5] = ["direct", "coding", "caching", "forwarding", AUTO];
const AUTO: &str = "auto";
/// By how much `auto` may miss more than the best, in percentage points, and come later, in
/// milliseconds.
const POINT: f64 = 1.0;
const LATER_MS: f64 = 10.0;

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    settle_s: f64,
    warm_s: f64,
    warm_s_quick: f64,
    call_s: f64,
    call_s_quick: f64,
    packet_bytes: usize,
    uplink: Bandwidth,
    queue: Bytes,
    direct_ms: f64,
    relay_ms: f64,
    between_relays_ms: f64,
    loads: Vec<f64>,
    losses: Vec<f64>,
    budgets_ms: Vec<f64>,
    quick: Quick,
}

/// Length of a quick run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quick {
    loads: Vec<f64>,
    losses: Vec<f64>,
    budgets_ms: Vec<f64>,
    services: Vec<String>,
}

/// A point of the sweep.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    load: f64,
    loss: f64,
    budget_ms: f64,
}

impl Point {
    fn name(self) -> String {
        let Self { load, loss, budget_ms } = self;
        format!("load {load}, loss {} %, budget {budget_ms} ms", loss * 100.0)
    }
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        within([
            ("settle_s", scenario.settle_s, 1.0, 600.0),
            ("warm_s", scenario.warm_s, 0.0, 3600.0),
            ("warm_s_quick", scenario.warm_s_quick, 0.0, 3600.0),
            ("call_s", scenario.call_s, 1.0, 3600.0),
            ("call_s_quick", scenario.call_s_quick, 1.0, 3600.0),
            ("packet_bytes", scenario.packet_bytes as f64, 8.0, 1300.0),
            ("direct_ms", scenario.direct_ms, 1.0, 1e4),
            ("relay_ms", scenario.relay_ms, 1.0, 1e4),
            ("between_relays_ms", scenario.between_relays_ms, 1.0, 1e4),
        ])?;
        let Quick { loads, losses, budgets_ms, .. } = &scenario.quick;
        let lists = [
            ("loads", &scenario.loads, loads, (0.01, 10.0)),
            ("losses", &scenario.losses, losses, (0.0, 0.5)),
            ("budgets_ms", &scenario.budgets_ms, budgets_ms, (1.0, 60_000.0)),
        ];
        for (name, all, quick, (least, most)) in lists {
            within(all.iter().chain(quick).map(|value| (name, *value, least, most)))?;
            within([(name, all.len().min(quick.len()) as f64, 1.0, 100.0)])?;
        }
        Ok(scenario)
    }

    fn points(&self, quick: bool) -> Vec<Point> {
        let (loads, losses, budgets) = if quick {
            (&self.quick.loads, &self.quick.losses, &self.quick.budgets_ms)
        } else {
            (&self.loads, &self.losses, &self.budgets_ms)
        };
        let mut points = Vec::new();
        for loss in losses {
            for budget_ms in budgets {
                let of = |load: &f64| Point { load: *load, loss: *loss, budget_ms: *budget_ms };
                points.extend(loads.iter().map(of));
            }
        }
        points
    }

    fn services(&self, quick: bool) -> Vec<&'static str> {
        let is_included =
            |service: &&str| !quick || self.quick.services.iter().any(|it| it == service);
        SERVICES.into_iter().filter(is_included).collect()
    }

    fn topology(&self, point: Point) -> String {
        let pair = |between: &str, rtt: f64, more: &str| {
            format!("[[pair]]\nbetween = {between}\nrtt = \"{rtt} ms\"\n{more}")
        };
        let lossy = format!("loss = {}\n", point.loss);
        [
            format!("[default.pair]\nrtt = \"{} ms\"\n", self.direct_ms),
            ["sender", "receiver", "near", "remote"]
                .map(|site| format!("[[site]]\nid = \"{site}\"\n"))
                .concat(),
            format!(
                "[[host]]\nid = \"sender\"\nsite = \"sender\"\negress = \"{}\"\n\
                 cap = \"tail-drop\"\nburst = \"3 kB\"\nqueue = \"{}\"\n",
                self.uplink, self.queue
            ),
            pair("[\"sender\", \"receiver\"]", self.direct_ms, &lossy),
            pair("[\"sender\", \"near\"]", self.relay_ms, ""),
            pair("[\"receiver\", \"remote\"]", self.relay_ms, ""),
            pair("[\"near\", \"remote\"]", self.between_relays_ms, ""),
        ]
        .concat()
    }

    /// Until packets count, and for how long they do.
    fn spans(&self, quick: bool) -> [f64; 2] {
        if quick {
            [self.settle_s + self.warm_s_quick, self.call_s_quick]
        } else {
            [self.settle_s + self.warm_s, self.call_s]
        }
    }

    fn pace(&self, point: Point, quick: bool) -> Pace {
        let bytes = (self.packet_bytes + AROUND) as f64;
        let interval = bytes / (point.load * self.uplink.as_bytes_per_s());
        let count = (self.spans(quick).iter().sum::<f64>() / interval) as usize;
        Pace {
            interval: Duration::from_secs_f64(interval),
            count,
            bytes: self.packet_bytes,
            last_ones: Duration::from_secs_f64(2.0 * point.budget_ms.max(1000.0) / 1e3),
        }
    }
}

/// Result of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Outcome {
    /// Packets that did not come within the budget, in per cent, and those that did not come at
    /// all.
    missed: f64,
    lost: f64,
    /// Of those that came.
    median_ms: f64,
}

struct Run {
    point: Point,
    service: &'static str,
    outcome: Outcome,
}

/// Runs the experiment.
///
/// # Errors
/// When the scenario makes no sense, the lab or what runs on it fails, or the run is stopped.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let services = scenario.services(options.quick);
    let mut cases = Vec::new();
    for seed in scenario.runs.seeds(options) {
        for point in scenario.points(options.quick) {
            cases.extend(services.iter().map(|service| (seed, (point, *service))));
        }
    }
    let work = |(seed, (point, service)): &(u64, (Point, &'static str)), checked: &mut Checked| {
        let name = format!("{}, {service}, seed {seed}", point.name());
        checked.in_time(options, &name, || on_lab(&scenario, options, *seed, (*point, service)))
    };
    let completed = repeats::each("send", &cases, AT_ONCE, options, observer, work)?;
    Ok(completed.record(|all, options| record(&scenario, options, all)))
}

fn on_lab(
    scenario: &Scenario,
    options: &RunOptions,
    seed: u64,
    (point, service): (Point, &'static str),
) -> Result<(Run, Vec<String>), ProcessError> {
    let topology = Topology::parse(&scenario.topology(point), catalogue()).map_err(|error| {
        ProcessError::Program { name: "network".into(), why: error.to_string() }
    })?;
    let options_of_lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let context = LabContext::start(&topology, &options_of_lab, &options.program, &options.stop)?;
    let (_services, pair) = start(point, &context, service)?;
    context.lab.reset_validity()?;
    let seen = traffic::run(&[pair], scenario.pace(point, options.quick), &context.stop)?;
    let reasons = context.lab.validity()?.reasons;
    let [begins, _] = scenario.spans(options.quick);
    let outcome = outcome(&seen[0], begins, point.budget_ms);
    Ok((Run { point, service, outcome }, reasons))
}

/// Starts relays and gateways.
fn start(
    point: Point,
    context: &LabContext,
    service: &'static str,
) -> Result<(Vec<Service>, Pair), ProcessError> {
    let operator = service::operator()?;
    let party = |name: &str| Party::new(context, HostId::new(name.to_owned())?);
    let (sender, receiver, near, remote) =
        (party("sender")?, party("receiver")?, party("near")?, party("remote")?);
    let relays = [near.stop(), remote.stop()];
    let coding = Coding { cross_stream: [2, 6], in_stream: [1, 5], across_gateways: true };
    let mut services = vec![
        near.relay(context, &operator, &[relays[1].identity], coding)?,
        remote.relay(context, &operator, &[relays[0].identity], coding)?,
        receiver.remote_gateway(context, &operator, &[relays[1].identity], None)?,
    ];
    let carriage = Carriage {
        service,
        relays: &relays,
        remote: &receiver,
        repeat_copies: true,
        budget: Some(Duration::from_secs_f64(point.budget_ms / 1e3)),
        copies: None,
        uplink: None,
    };
    let (gateway, listener) =
        sender.near_gateway(context, &operator, &carriage, Attachment::Port)?;
    services.push(gateway);
    let to = (&receiver.host, receiver.application());
    Ok((services, Pair::open(context, (&sender.host, listener), to, Duration::ZERO)?))
}

/// Fate of the packets that were sent from `begins` on.
fn outcome(seen: &Seen, begins: f64, budget_ms: f64) -> Outcome {
    let packets = seen.sent.iter().zip(&seen.came);
    let delays: Vec<Option<f64>> = packets
        .filter(|(sent, _)| sent.as_secs_f64() >= begins)
        .map(|(sent, came)| came.map(|came| came.saturating_sub(*sent).as_secs_f64() * 1e3))
        .collect();
    let share = |is_counted: &dyn Fn(&Option<f64>) -> bool| {
        let counted = delays.iter().filter(|delay| is_counted(delay)).count();
        100.0 * counted as f64 / delays.len().max(1) as f64
    };
    let came: Vec<f64> = delays.iter().flatten().copied().collect();
    Outcome {
        missed: share(&|delay| delay.is_none_or(|delay| delay > budget_ms)),
        lost: share(&|delay| delay.is_none()),
        median_ms: quantile(&came, 0.5),
    }
}

fn record(scenario: &Scenario, options: &RunOptions, all: &[Run]) -> Record {
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    for point in scenario.points(options.quick) {
        let mut means = Vec::new();
        for service in scenario.services(options.quick) {
            let of = |run: &&Run| run.point == point && run.service == service;
            let outcome: Vec<Outcome> = all.iter().filter(of).map(|run| run.outcome).collect();
            let mean = mean(&outcome);
            let note = format!("lost {:.2} %, median delay {:.1} ms", mean.lost, mean.median_ms);
            let missed: Vec<f64> = outcome.iter().map(|outcome| outcome.missed).collect();
            let case = format!("{}: missed, {service}", point.name());
            rows.push(Row::of(&case, None, &missed, "%", &note));
            means.push((service, mean));
        }
        findings.extend(compare(point, &means));
    }
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(scenario.runs.describe(options));
    Record::of_tables(&scenario.name, assumptions, (rows, findings))
}

fn mean(all: &[Outcome]) -> Outcome {
    let of =
        |value: fn(&Outcome) -> f64| all.iter().map(value).sum::<f64>() / all.len().max(1) as f64;
    Outcome {
        missed: of(|outcome| outcome.missed),
        lost: of(|outcome| outcome.lost),
        median_ms: of(|outcome| outcome.median_ms),
    }
}

/// Checks that the chosen service fares as the best does.
fn compare(point: Point, means: &[(&'static str, Outcome)]) -> Option<Finding> {
    let (_, auto) = means.iter().find(|(service, _)| *service == AUTO)?;
    let fixed = || means.iter().filter(|(service, _)| *service != AUTO);
    let least = fixed().map(|(_, outcome)| outcome.missed).fold(f64::INFINITY, f64::min);
    let (service, best) = fixed()
        .filter(|(_, outcome)| outcome.missed <= least + POINT)
        .min_by(|one, other| one.1.median_ms.total_cmp(&other.1.median_ms))?;
    let describe =
        |outcome: &Outcome| format!("{:.2} %, {:.1} ms", outcome.missed, outcome.median_ms);
    Some(Finding::new(
        &format!(
            "{}: auto misses at most a point more than the best service, at most 10 ms later",
            point.name()
        ),
        auto.missed <= best.missed + POINT && auto.median_ms <= best.median_ms + LATER_MS,
        format!("{}; {service} {}", describe(auto), describe(best)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../../scenarios/packet-uplink.toml");

    #[test]
    fn built_in_scenario_is_consistent() {
        let scenario = Scenario::parse(TEXT).unwrap();
        for point in scenario.points(false).into_iter().chain(scenario.points(true)) {
            let topology = Topology::parse(&scenario.topology(point), catalogue()).unwrap();
            assert_eq!(topology.hosts.len(), 4);
        }
        assert_eq!(scenario.services(true), ["direct", "forwarding", "auto"]);
        let error = Scenario::parse(&TEXT.replace("[0.01, 0.03]", "[0.01, 3]")).unwrap_err();
        assert!(error.to_string().contains("losses: 3 given"), "{error}");
    }

    #[test]
    fn late_and_lost_packets_are_distinguished() {
        let at = |ms: u64| Duration::from_millis(ms);
        let sent: Vec<Duration> = (0..10).map(|second| at(1000 * second)).collect();
        let mut came: Vec<Option<Duration>> =
            sent.iter().map(|sent| Some(*sent + at(50))).collect();
        came[1] = None;
        came[5] = None;
        came[6] = Some(sent[6] + at(151));
        let outcome = outcome(&Seen { sent, came }, 2.0, 150.0);
        assert_eq!(outcome, Outcome { missed: 25.0, lost: 12.5, median_ms: 50.0 });
    }

    #[test]
    fn auto_is_compared_with_the_best_service() {
        let point = Point { load: 0.7, loss: 0.01, budget_ms: 400.0 };
        let outcome = |missed, median_ms| Outcome { missed, lost: missed, median_ms };
        let holds = |auto: Outcome| {
            let fixed = [("direct", outcome(1.0, 50.0)), ("caching", outcome(0.2, 300.0))];
            let all: Vec<_> = fixed.into_iter().chain([(AUTO, auto)]).collect();
            compare(point, &all).unwrap().holds
        };
        assert!(holds(outcome(1.9, 59.0)));
        assert!(!holds(outcome(2.1, 50.0)), "it misses too much");
        assert!(!holds(outcome(0.2, 300.0)), "it is late for less than a point");
    }
}
