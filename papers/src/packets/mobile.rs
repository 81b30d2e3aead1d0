//! A call from a phone with a narrow uplink to one that is far from its relay: `jq-mobile` [JQ
//! 5.5].
//!
//! The paper asks whether mobile hosts can afford packet services: copies take the uplink from
//! other transfers, and long paths to relays delay recovery. Here a call uses the direct path,
//! copies of all packets, or bounded copies of marked ones, while the same phone uploads a file.
//! The results are the packets that arrive within a budget, and the time of the file.

use std::thread;
use std::time::Duration;

use serde::Deserialize;
use tradewind_lab::LabOptions;
use tradewind_units::{Bandwidth, Bytes, HostId};
use tradewind_wan::Topology;

use super::traffic::{self, Marks, Pace, Pair, Seen};
use crate::harness::checked::Checked;
use crate::harness::fetch::{File, FileServer};
use crate::harness::packets::{Attachment, Carriage, Coding, Copies, Party};
use crate::harness::process::Service;
use crate::harness::{
    Experiment, ExperimentError, Finding, LabContext, Observer, ProcessError, Record, Row,
    RunOptions, Runs, ScenarioError, catalogue, fetch, from_toml, quantile, repeats, service,
    within,
};

/// The port of the file server.
const FILE_PORT: u16 = 8000;
/// Longest silence of the file transfer. Chosen: several time-outs of TCP in a row.
const QUIET: Duration = Duration::from_secs(30);
/// The code point by which the application marks important packets (expedited forwarding).
const MARK: u8 = 46;
/// Labs at a time. Chosen: each carries few Mbit/s.
const AT_ONCE: usize = 2;

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    settle_s: f64,
    call_s: f64,
    call_s_quick: f64,
    interval_ms: f64,
    packet_bytes: usize,
    chosen_each: usize,
    budget_ms: f64,
    direct_ms: f64,
    between_relays_ms: f64,
    jitter_ms: f64,
    loss: f64,
    burst_enter: f64,
    burst_leave: f64,
    file: Bytes,
    file_quick: Bytes,
    server_ms: f64,
    phone: Vec<Phone>,
}

/// A phone's access network.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Phone {
    name: String,
    uplink: Bandwidth,
    relay_ms: f64,
    /// The bound on the call and its copies on the uplink when only marked packets are copied.
    copies: Bandwidth,
}

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arm {
    /// No call: the file is alone.
    None,
    Direct,
    AllCopied,
    ChosenCopied,
}

impl Arm {
    const ALL: [Self; 4] = [Self::None, Self::Direct, Self::AllCopied, Self::ChosenCopied];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "no call",
            Self::Direct => "direct",
            Self::AllCopied => "caching, all copied",
            Self::ChosenCopied => "caching, chosen ones copied",
        }
    }
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        within([
            ("settle_s", scenario.settle_s, 1.0, 600.0),
            ("call_s", scenario.call_s, 1.0, 3600.0),
            ("call_s_quick", scenario.call_s_quick, 1.0, 3600.0),
            ("interval_ms", scenario.interval_ms, 1.0, 1000.0),
            ("packet_bytes", scenario.packet_bytes as f64, 8.0, 1300.0),
            ("chosen_each", scenario.chosen_each as f64, 1.0, 1000.0),
            ("budget_ms", scenario.budget_ms, 1.0, 60_000.0),
            ("direct_ms", scenario.direct_ms, 1.0, 1e4),
            ("between_relays_ms", scenario.between_relays_ms, 1.0, 1e4),
            ("jitter_ms", scenario.jitter_ms, 0.0, 1000.0),
            ("loss", scenario.loss, 0.0, 0.5),
            ("burst_enter", scenario.burst_enter, 0.0, 0.5),
            ("burst_leave", scenario.burst_leave, 0.01, 1.0),
            ("server_ms", scenario.server_ms, 1.0, 1e4),
            ("phone", scenario.phone.len() as f64, 1.0, 8.0),
        ])?;
        Ok(scenario)
    }

    /// Returns the topology: caller and callee with their relays, and the host that fetches the
    /// file.
    fn topology(&self, phone: &Phone) -> String {
        let (jitter, relay) = (self.jitter_ms, phone.relay_ms);
        let lossy = format!(
            "loss = {}\nburst_loss = {{ enter = {}, leave = {} }}\n",
            self.loss, self.burst_enter, self.burst_leave
        );
        let pair = |between: &str, rtt: f64, jitter: f64, more: &str| {
            format!(
                "[[pair]]\nbetween = {between}\nrtt = \"{rtt} ms\"\njitter = \"{jitter} ms\"\n\
                 {more}"
            )
        };
        [
            format!("[default.pair]\nrtt = \"{} ms\"\n", self.direct_ms),
            ["caller", "callee", "near", "remote", "fetcher"]
                .map(|site| format!("[[site]]\nid = \"{site}\"\n"))
                .concat(),
            format!(
                "[[host]]\nid = \"caller\"\nsite = \"caller\"\negress = \"{}\"\n\
                 cap = \"tail-drop\"\n",
                phone.uplink
            ),
            pair("[\"caller\", \"callee\"]", self.direct_ms, jitter, &lossy),
            pair("[\"caller\", \"near\"]", relay, jitter, ""),
            pair("[\"callee\", \"remote\"]", relay, jitter, ""),
            pair("[\"near\", \"remote\"]", self.between_relays_ms, 0.0, ""),
            pair("[\"caller\", \"fetcher\"]", self.server_ms, jitter, ""),
        ]
        .concat()
    }

    fn pace(&self, quick: bool) -> Pace {
        let call_s = if quick { self.call_s_quick } else { self.call_s };
        let interval = Duration::from_secs_f64(self.interval_ms / 1e3);
        let count = ((self.settle_s + call_s) / interval.as_secs_f64()) as usize;
        let last_ones = Duration::from_secs_f64(2.0 * self.budget_ms / 1e3);
        Pace { interval, count, bytes: self.packet_bytes, last_ones }
    }

    fn file(&self, options: &RunOptions) -> File {
        let size = if options.quick { self.file_quick } else { self.file };
        File { bytes: size.as_u64(), seed: 1 }
    }
}

/// The result of a run: packets that did not arrive within the budget, in per cent of all and of
/// the marked ones, and the file's time.
struct Run {
    phone: usize,
    arm: Arm,
    missing: Option<[f64; 2]>,
    file_s: f64,
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
    let seeds = scenario.runs.seeds(options);
    let phones = 0..scenario.phone.len();
    let runs: Vec<(usize, Arm)> =
        phones.flat_map(|phone| Arm::ALL.map(|arm| (phone, arm))).collect();
    let cases: Vec<(u64, (usize, Arm))> =
        seeds.iter().flat_map(|seed| runs.iter().map(move |run| (*seed, *run))).collect();
    let step = "call and fetch";
    let work = |(seed, (phone, arm)): &(u64, (usize, Arm)), checked: &mut Checked| {
        let name = format!("{}, {}, seed {seed}", scenario.phone[*phone].name, arm.name());
        checked.in_time(options, &name, || on_lab(&scenario, options, *seed, (*phone, *arm)))
    };
    let completed = repeats::each(step, &cases, AT_ONCE, options, observer, work)?;
    Ok(completed.record(|all, options| record(&scenario, options, all)))
}

fn on_lab(
    scenario: &Scenario,
    options: &RunOptions,
    seed: u64,
    (place, arm): (usize, Arm),
) -> Result<(Run, Vec<String>), ProcessError> {
    let phone = &scenario.phone[place];
    let topology = Topology::parse(&scenario.topology(phone), catalogue()).map_err(|error| {
        ProcessError::Program { name: "network".into(), why: error.to_string() }
    })?;
    let options_of_lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let context = LabContext::start(&topology, &options_of_lab, &options.program, &options.stop)?;
    let caller = HostId::new("caller".to_owned())?;
    let server = FileServer::start(&context, &caller, FILE_PORT)?;
    let (_services, pairs) = start(scenario, phone, &context, arm)?;
    let settle = Duration::from_secs_f64(scenario.settle_s);
    let (seen, fetched) = thread::scope(|scope| {
        let call =
            scope.spawn(|| traffic::run(&pairs, scenario.pace(options.quick), &context.stop));
        let fetched = context.wait(settle).and_then(|()| {
            context.lab.reset_validity()?;
            let fetcher = HostId::new("fetcher".to_owned())?;
            fetch::fetch(&context, &fetcher, server.address, scenario.file(options), QUIET)
        });
        (call.join().expect("a call does not panic"), fetched)
    });
    let (seen, fetched) = (seen?, fetched?);
    let mut reasons = context.lab.validity()?.reasons;
    if !fetched.content_ok {
        reasons.push(format!("{}: the file came with other content", arm.name()));
    }
    let missing = seen.first().map(|seen| missing(scenario, seen));
    let file_s = fetched.fct.as_secs_f64();
    Ok((Run { phone: place, arm, missing, file_s }, reasons))
}

/// Starts the relays, gateways and sockets of the call, if there is one.
fn start(
    scenario: &Scenario,
    phone: &Phone,
    context: &LabContext,
    arm: Arm,
) -> Result<(Vec<Service>, Vec<Pair>), ProcessError> {
    if arm == Arm::None {
        return Ok((Vec::new(), Vec::new()));
    }
    let operator = service::operator()?;
    let party = |name: &str| Party::new(context, HostId::new(name.to_owned())?);
    let (caller, callee, near, remote) =
        (party("caller")?, party("callee")?, party("near")?, party("remote")?);
    let relays = [near.stop(), remote.stop()];
    let coding = Coding { cross_stream: [2, 6], in_stream: [1, 5], across_gateways: true };
    let mut services = vec![
        near.relay(context, &operator, &[relays[1].identity], coding)?,
        remote.relay(context, &operator, &[relays[0].identity], coding)?,
        callee.remote_gateway(context, &operator, &[relays[1].identity], None)?,
    ];
    let marked = Copies { dscp: vec![MARK], ..Copies::default() };
    let are_chosen = arm == Arm::ChosenCopied;
    let carriage = Carriage {
        service: if arm == Arm::Direct { "direct" } else { "caching" },
        relays: &relays,
        remote: &callee,
        repeat_copies: true,
        budget: Some(Duration::from_secs_f64(scenario.budget_ms / 1e3)),
        copies: are_chosen.then_some(&marked),
        uplink: are_chosen.then_some(phone.copies),
    };
    let (gateway, listener) =
        caller.near_gateway(context, &operator, &carriage, Attachment::Port)?;
    services.push(gateway);
    let to = (&callee.host, callee.application());
    let pair = Pair::open(context, (&caller.host, listener), to, Duration::ZERO)?;
    let marks = Marks { each: scenario.chosen_each, dscp: MARK };
    Ok((services, vec![pair.marked(marks)]))
}

/// Returns the packets of the call that did not arrive within the budget, in per cent of all and of
/// the marked ones.
fn missing(scenario: &Scenario, seen: &Seen) -> [f64; 2] {
    let (settle, budget) = (scenario.settle_s, scenario.budget_ms / 1e3);
    [1, scenario.chosen_each].map(|each| {
        let packets = seen.sent.iter().zip(&seen.came).step_by(each);
        let counted: Vec<bool> = packets
            .filter(|(sent, _)| sent.as_secs_f64() >= settle)
            .map(|(sent, came)| {
                came.is_none_or(|came| came.saturating_sub(*sent).as_secs_f64() > budget)
            })
            .collect();
        let missing = counted.iter().filter(|is_missing| **is_missing).count();
        100.0 * missing as f64 / counted.len().max(1) as f64
    })
}

fn record(scenario: &Scenario, options: &RunOptions, all: &[Run]) -> Record {
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    for (place, phone) in scenario.phone.iter().enumerate() {
        let of = |arm: Arm| -> Vec<&Run> {
            all.iter().filter(|run| run.phone == place && run.arm == arm).collect()
        };
        for arm in Arm::ALL {
            add_rows(&phone.name, arm, &of(arm), &mut rows);
        }
        compare(&phone.name, of, &mut findings);
    }
    let mut assumptions = scenario.assumptions.clone();
    let Pace { count, .. } = scenario.pace(options.quick);
    assumptions.push(format!("{count} packets a call; {}", scenario.runs.describe(options)));
    Record::of_tables(&scenario.name, assumptions, (rows, findings))
}

fn files(runs: &[&Run]) -> Vec<f64> {
    runs.iter().map(|run| run.file_s).collect()
}

fn missing_of(runs: &[&Run], place: usize) -> Vec<f64> {
    runs.iter().filter_map(|run| run.missing.map(|missing| missing[place])).collect()
}

fn add_rows(phone: &str, arm: Arm, runs: &[&Run], rows: &mut Vec<Row>) {
    let name = arm.name();
    rows.push(Row::of(&format!("{phone}: file, {name}"), None, &files(runs), "s", ""));
    if arm != Arm::None {
        for (place, which) in ["packets", "chosen packets"].into_iter().enumerate() {
            let case = format!("{phone}: {which} late or lost, {name}");
            rows.push(Row::of(&case, None, &missing_of(runs, place), "%", ""));
        }
    }
}

fn compare<'a>(phone: &str, of: impl Fn(Arm) -> Vec<&'a Run>, findings: &mut Vec<Finding>) {
    let missing = |arm: Arm, place: usize| quantile(&missing_of(&of(arm), place), 0.5);
    for (arm, place, which) in
        [(Arm::AllCopied, 0, "packets"), (Arm::ChosenCopied, 1, "chosen packets")]
    {
        let (with, without) = (missing(arm, place), missing(Arm::Direct, place));
        findings.push(Finding::new(
            &format!(
                "{phone}: {}: half of the {which} that are late or lost directly come in time",
                arm.name()
            ),
            with <= without / 2.0,
            format!("{with:.2} % late or lost, directly {without:.2} %"),
        ));
    }
    let file = |arm: Arm| quantile(&files(&of(arm)), 0.5);
    for arm in [Arm::AllCopied, Arm::ChosenCopied] {
        let (with, without) = (file(arm), file(Arm::Direct));
        findings.push(Finding::new(
            &format!(
                "{phone}: {}: the file takes at most a tenth longer than beside a direct call",
                arm.name()
            ),
            with <= 1.1 * without,
            format!(
                "{with:.1} s, beside a direct call {without:.1} s, alone {:.1} s",
                file(Arm::None)
            ),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../../scenarios/jq-mobile.toml");

    #[test]
    fn built_in_scenario_is_consistent() {
        let scenario = Scenario::parse(TEXT).unwrap();
        for phone in &scenario.phone {
            let topology = Topology::parse(&scenario.topology(phone), catalogue()).unwrap();
            assert_eq!(topology.hosts.len(), 5);
        }
        let error = Scenario::parse(&TEXT.replace("budget_ms = 400", "budget_ms = 0")).unwrap_err();
        assert!(error.to_string().contains("budget_ms: 0 given, expected 1 to 60000"), "{error}");
    }

    #[test]
    fn late_packets_count_as_missing_by_mark() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let at = |ms: u64| Duration::from_millis(ms);
        // One packet each second: six before the call counts, then ten; the first of each five is
        // marked.
        let sent: Vec<Duration> = (0..16).map(|second| at(1000 * second)).collect();
        let mut came: Vec<Option<Duration>> =
            sent.iter().map(|sent| Some(*sent + at(75))).collect();
        came[0] = None;
        came[7] = None;
        came[10] = Some(sent[10] + at(401));
        came[12] = Some(sent[12] + at(400));
        let [all, chosen] = missing(&scenario, &Seen { sent, came });
        assert_eq!((all, chosen), (20.0, 50.0), "7 and 10 of 6 to 15; 10 of 10 and 15");
    }

    #[test]
    fn useful_copies_and_slower_file_are_found() {
        let run = |arm: Arm, missing: [f64; 2], file_s: f64| Run {
            phone: 0,
            arm,
            missing: Some(missing),
            file_s,
        };
        let runs = [
            run(Arm::None, [0.0, 0.0], 8.0),
            run(Arm::Direct, [0.9, 0.9], 10.0),
            run(Arm::AllCopied, [0.1, 0.1], 12.0),
            run(Arm::ChosenCopied, [0.8, 0.5], 10.5),
        ];
        let mut findings = Vec::new();
        let of = |arm: Arm| runs.iter().filter(|run| run.arm == arm).collect();
        compare("a phone", of, &mut findings);
        let hold: Vec<bool> = findings.iter().map(|finding| finding.holds).collect();
        assert_eq!(hold, [true, false, false, true]);
    }
}
