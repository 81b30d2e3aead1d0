//! Packets while a relay dies and comes back, and while a gateway that intercepts them hangs or is
//! killed: `packet-failover`.
//!
//! Packet services promise to be no worse than the Internet path: it goes on unchanged while a
//! relay is dead, and recovery resumes soon after the relay is back [JQ 4]. Intercepted packets of
//! unmodified applications return to the direct path soon after the gateway's end, or when it
//! hangs.

use std::net::SocketAddr;
use std::ops::Range;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tradewind_grant::OperatorKey;
use tradewind_lab::{LabError, LabOptions};
use tradewind_net::processes;
use tradewind_units::HostId;
use tradewind_wan::Topology;

use super::traffic::{self, Pace, Pair, Seen};
use crate::harness::checked::Checked;
use crate::harness::packets::{Attachment, Carriage, Coding, Party, Whole};
use crate::harness::process::Service;
use crate::harness::{
    Experiment, ExperimentError, Finding, LabContext, Observer, ProcessError, Record, Row,
    RunOptions, Runs, ScenarioError, catalogue, from_toml, repeats, service, within,
};

/// Labs at a time. Chosen: beside another lab on two cores, gateways may be silent for a second.
const AT_ONCE: usize = 1;
/// The time within which recovery must resume after a relay's return.
const RESUMED_WITHIN_S: f64 = 2.0;
/// The time within which packets must return to the direct path after a gateway's death or halt.
const OPEN_WITHIN_S: f64 = 1.0;
/// The longest silence of an undisturbed Internet path. Chosen: ten packets lost in a row, once in
/// 10^10 at a loss of one in ten.
const MAX_SILENCE: Duration = Duration::from_millis(100);

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    settle_s: f64,
    before_s: f64,
    dead_s: f64,
    after_s: f64,
    watched_s: f64,
    interval_ms: f64,
    packet_bytes: usize,
    budget_ms: f64,
    late_ms: f64,
    loss: f64,
    direct_ms: f64,
    access_ms: f64,
    between_relays_ms: f64,
}

/// The process that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    FirstRelay,
    LastRelay,
    LocalGateway(Attachment),
    RemoteGateway(Attachment),
}

impl Victim {
    const ALL: [Self; 6] = [
        Self::FirstRelay,
        Self::LastRelay,
        Self::LocalGateway(Attachment::Tproxy),
        Self::LocalGateway(Attachment::Tun),
        Self::RemoteGateway(Attachment::Tproxy),
        Self::RemoteGateway(Attachment::Tun),
    ];

    fn name(self) -> String {
        match self {
            Self::FirstRelay => "the first relay".into(),
            Self::LastRelay => "the last relay".into(),
            Self::LocalGateway(attachment) => format!("the local gateway ({})", attachment.name()),
            Self::RemoteGateway(attachment) => {
                format!("the remote gateway ({})", attachment.name())
            }
        }
    }

    const fn is_relay(self) -> bool {
        matches!(self, Self::FirstRelay | Self::LastRelay)
    }

    const fn attachment(self) -> Attachment {
        match self {
            Self::FirstRelay | Self::LastRelay => Attachment::Port,
            Self::LocalGateway(attachment) | Self::RemoteGateway(attachment) => attachment,
        }
    }
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        within([
            ("settle_s", scenario.settle_s, 1.0, 600.0),
            ("before_s", scenario.before_s, 0.5, 600.0),
            ("dead_s", scenario.dead_s, 0.5, 600.0),
            ("after_s", scenario.after_s, 2.5, 600.0),
            ("watched_s", scenario.watched_s, 1.5, 600.0),
            ("interval_ms", scenario.interval_ms, 1.0, 100.0),
            ("packet_bytes", scenario.packet_bytes as f64, 8.0, 1000.0),
            ("budget_ms", scenario.budget_ms, 1.0, 10_000.0),
            ("late_ms", scenario.late_ms, 1.0, 1000.0),
            ("loss", scenario.loss, 0.01, 0.5),
            ("direct_ms", scenario.direct_ms, 1.0, 1e4),
            ("access_ms", scenario.access_ms, 0.1, 1e4),
            ("between_relays_ms", scenario.between_relays_ms, 0.1, 1e4),
        ])?;
        Ok(scenario)
    }

    fn topology(&self, victim: Victim) -> String {
        let sites = ["caller", "callee", "near", "remote"];
        let pair = |a: &str, b: &str, rtt: f64, loss: f64| {
            format!("[[pair]]\nbetween = [\"{a}\", \"{b}\"]\nrtt = \"{rtt} ms\"\nloss = {loss}\n")
        };
        let loss = if victim.is_relay() { self.loss } else { 0.0 };
        [
            format!("[default.pair]\nrtt = \"{} ms\"\n", self.direct_ms),
            sites.map(|site| format!("[[site]]\nid = \"{site}\"\n")).concat(),
            pair("caller", "callee", self.direct_ms, loss),
            pair("caller", "near", self.access_ms, 0.0),
            pair("callee", "remote", self.access_ms, 0.0),
            pair("near", "remote", self.between_relays_ms, 0.0),
        ]
        .concat()
    }

    fn pace(&self, victim: Victim) -> Pace {
        let hurt_s = if victim.is_relay() {
            self.dead_s + self.after_s
        } else {
            self.watched_s + self.before_s + self.watched_s
        };
        let span_s = self.settle_s + self.before_s + hurt_s;
        let interval = Duration::from_secs_f64(self.interval_ms / 1e3);
        let count = (span_s / interval.as_secs_f64()) as usize;
        let last_ones = Duration::from_secs_f64(2.0 * self.budget_ms / 1e3);
        Pace { interval, count, bytes: self.packet_bytes, last_ones }
    }

    /// Returns the largest delay of a packet delivered by the Internet path.
    fn direct_within(&self) -> Duration {
        Duration::from_secs_f64((self.direct_ms / 2.0 + self.late_ms) / 1e3)
    }

    fn budget(&self) -> Duration {
        Duration::from_secs_f64(self.budget_ms / 1e3)
    }
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
    let cases: Vec<(u64, Victim)> =
        seeds.iter().flat_map(|seed| Victim::ALL.map(|victim| (*seed, victim))).collect();
    let work = |(seed, victim): &(u64, Victim), checked: &mut Checked| {
        let name = format!("{}, seed {seed}", victim.name());
        checked.in_time(options, &name, || on_lab(&scenario, options, *seed, *victim))
    };
    let completed = repeats::each("kill", &cases, AT_ONCE, options, observer, work)?;
    Ok(completed.record(|all, options| record(&scenario, options, all)))
}

/// The result of a case, with its victim.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    victim: Victim,
    outcome: VictimOutcome,
}

#[derive(Debug, Clone, Copy)]
enum VictimOutcome {
    Relay(OfRelay),
    Gateway(OfGateway),
}

/// The times in seconds from a gateway's halt and death until packets took the direct path.
#[derive(Debug, Clone, Copy, PartialEq)]
struct OfGateway {
    halted_s: f64,
    killed_s: f64,
}

/// The effects of a relay's death and return.
#[derive(Debug, Clone, Copy, PartialEq)]
struct OfRelay {
    /// The time from its return until the first lost packet was recovered, in seconds.
    resumed_s: Option<f64>,
    /// The longest time without a packet from the Internet path while it was dead.
    silence_s: f64,
    /// The packets lost on the Internet path later than [`RESUMED_WITHIN_S`] after the return:
    /// their number, and the number of recovered ones.
    lost: [usize; 2],
}

/// The times of a case's events, as instants or relative to the first packet.
#[derive(Debug, Clone, Copy)]
struct Times<T> {
    killed: T,
    /// The restart of a relay.
    returned: Option<T>,
    /// The halt and the resumption of a gateway.
    halted: Option<[T; 2]>,
}

impl Times<Instant> {
    fn since(self, begun: Instant) -> Times<Duration> {
        let since = |at: Instant| at.duration_since(begun);
        Times {
            killed: since(self.killed),
            returned: self.returned.map(since),
            halted: self.halted.map(|both| both.map(since)),
        }
    }
}

fn on_lab(
    scenario: &Scenario,
    options: &RunOptions,
    seed: u64,
    victim: Victim,
) -> Result<(Outcome, Vec<String>), ProcessError> {
    let topology = Topology::parse(&scenario.topology(victim), catalogue()).map_err(|error| {
        ProcessError::Program { name: "network".into(), why: error.to_string() }
    })?;
    let options_of_lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let context = LabContext::start(&topology, &options_of_lab, &options.program, &options.stop)?;
    let mut stage = Stage::set(scenario, &context, victim)?;
    let pairs = [stage.applications(&context)?];
    let ((begun, seen), times) = thread::scope(|scope| {
        let call = scope.spawn(|| {
            let begun = Instant::now();
            (begun, traffic::run(&pairs, scenario.pace(victim), &context.stop))
        });
        let played = stage.play(scenario, &context);
        (call.join().expect("a call does not panic"), played)
    });
    let times = times?.since(begun);
    let reasons = context.lab.validity()?.reasons;
    let seen = seen?.into_iter().next().unwrap_or_default();
    let outcome = match times.returned {
        Some(returned) => VictimOutcome::Relay(of_relay(scenario, &seen, times.killed, returned)),
        None => VictimOutcome::Gateway(of_gateway(scenario, &seen, times)),
    };
    Ok((Outcome { victim, outcome }, reasons))
}

/// All processes of a case.
struct Stage {
    victim: Victim,
    operator: OperatorKey,
    /// Caller, callee, first and last relay.
    parties: [Party; 4],
    relays: [Option<Service>; 2],
    /// Near and remote gateway.
    gateways: [Option<Service>; 2],
    listener: SocketAddr,
}

impl Stage {
    fn set(
        scenario: &Scenario,
        context: &LabContext,
        victim: Victim,
    ) -> Result<Self, ProcessError> {
        let operator = service::operator()?;
        let party = |name: &str| Party::new(context, HostId::new(name.to_owned())?);
        let parties = [party("caller")?, party("callee")?, party("near")?, party("remote")?];
        let [caller, callee, first, last] = &parties;
        let relays = [first.stop(), last.stop()];
        let whole = Whole { near: caller, replies: None };
        let remote =
            callee.remote_gateway(context, &operator, &[relays[1].identity], Some(whole))?;
        let mut stage = Self {
            victim,
            relays: [None, None],
            gateways: [None, Some(remote)],
            listener: callee.application(),
            operator,
            parties,
        };
        for place in 0..2 {
            stage.start_relay(context, place)?;
        }
        let [caller, callee, ..] = &stage.parties;
        let carriage = Carriage {
            service: "caching",
            relays: &relays,
            remote: callee,
            repeat_copies: true,
            budget: Some(scenario.budget()),
            copies: None,
            uplink: None,
        };
        let (near, listener) =
            caller.near_gateway(context, &stage.operator, &carriage, victim.attachment())?;
        (stage.gateways[0], stage.listener) = (Some(near), listener);
        Ok(stage)
    }

    fn start_relay(&mut self, context: &LabContext, place: usize) -> Result<(), ProcessError> {
        let coding = Coding { cross_stream: [2, 6], in_stream: [1, 5], across_gateways: false };
        let relays = &self.parties[2..];
        let other = relays[1 - place].stop().identity;
        let started = relays[place].relay(context, &self.operator, &[other], coding)?;
        self.relays[place] = Some(started);
        Ok(())
    }

    fn applications(&self, context: &LabContext) -> Result<Pair, ProcessError> {
        let [caller, callee, ..] = &self.parties;
        let to = (&callee.host, callee.application());
        Pair::open(context, (&caller.host, self.listener), to, Duration::ZERO)
    }

    /// Halts a gateway for a while, kills the victim, and restarts a relay.
    fn play(
        &mut self,
        scenario: &Scenario,
        context: &LabContext,
    ) -> Result<Times<Instant>, ProcessError> {
        let wait = |seconds: f64| context.wait(Duration::from_secs_f64(seconds));
        let before = Duration::from_secs_f64(scenario.before_s);
        wait(scenario.settle_s)?;
        context.lab.reset_validity()?;
        wait(scenario.before_s)?;
        let halted = match self.gateway().map(Service::process) {
            Some(gateway) => {
                self.expect_interception(context, before)?;
                let halted = Instant::now();
                processes::pause(gateway).map_err(LabError::from)?;
                wait(scenario.watched_s)?;
                let goes_on = Instant::now();
                processes::resume(gateway).map_err(LabError::from)?;
                wait(scenario.before_s)?;
                self.expect_interception(context, before)?;
                Some([halted, goes_on])
            }
            None => None,
        };
        let killed = Instant::now();
        match self.victim {
            // Dropping a service kills it.
            Victim::FirstRelay => self.relays[0] = None,
            Victim::LastRelay => self.relays[1] = None,
            Victim::LocalGateway(_) => self.gateways[0] = None,
            Victim::RemoteGateway(_) => self.gateways[1] = None,
        }
        let returned = if self.victim.is_relay() {
            wait(scenario.dead_s)?;
            self.start_relay(context, usize::from(self.victim == Victim::LastRelay))?;
            let returned = Instant::now();
            wait(scenario.after_s)?;
            Some(returned)
        } else {
            wait(scenario.watched_s)?;
            None
        };
        Ok(Times { killed, returned, halted })
    }

    /// Waits until the kernel of the caller's host intercepts packets: then `nft` lists sets whose
    /// elements expire. Fails if it does not within `limit`: on a busy machine a gateway may take
    /// its peer for silent a moment.
    fn expect_interception(
        &self,
        context: &LabContext,
        limit: Duration,
    ) -> Result<(), ProcessError> {
        const LOOK: Duration = Duration::from_millis(50);
        let [caller, ..] = &self.parties;
        let failed = |why: String| ProcessError::Program { name: "nft".into(), why };
        let begun = Instant::now();
        loop {
            let mut nft = context.lab.command(&caller.host, "nft")?;
            let listed = nft.args(["list", "sets"]).stdin(Stdio::null()).output();
            let listed = listed.map_err(|error| failed(error.to_string()))?;
            let sets = String::from_utf8_lossy(&listed.stdout);
            if sets.contains("expires") {
                return Ok(());
            }
            if begun.elapsed() > limit {
                let log = context.scratch.file(&format!("gateway-{}.log", caller.host));
                let log = std::fs::read_to_string(log).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default();
                let why = format!(
                    "a gateway has intercepted no packets for {limit:?}; nft ends with {}, the \
                     gateway's log with {last:?}",
                    listed.status
                );
                return Err(failed(why));
            }
            context.wait(LOOK)?;
        }
    }

    /// Returns the gateway that is the victim.
    fn gateway(&self) -> Option<&Service> {
        match self.victim {
            Victim::LocalGateway(_) => self.gateways[0].as_ref(),
            Victim::RemoteGateway(_) => self.gateways[1].as_ref(),
            Victim::FirstRelay | Victim::LastRelay => None,
        }
    }
}

fn of_relay(scenario: &Scenario, seen: &Seen, killed: Duration, returned: Duration) -> OfRelay {
    let packets = || seen.sent.iter().copied().zip(seen.came.iter().copied());
    let is_direct = |sent: Duration, came: Duration| came - sent <= scenario.direct_within();
    let is_back =
        |sent: Duration, came: Duration| !is_direct(sent, came) && came - sent <= scenario.budget();
    let direct = packets().filter_map(|(sent, came)| came.filter(|came| is_direct(sent, *came)));
    let while_dead: Vec<Duration> =
        direct.filter(|came| (killed..=returned).contains(came)).collect();
    let ends = [killed].into_iter().chain(while_dead).chain([returned]).collect::<Vec<_>>();
    let silence = ends.windows(2).map(|two| two[1].saturating_sub(two[0])).max();
    let back = packets().filter_map(|(sent, came)| came.filter(|came| is_back(sent, *came)));
    let resumed = back.filter(|came| *came >= returned).min();
    let later = returned + Duration::from_secs_f64(RESUMED_WITHIN_S);
    let lost: Vec<bool> = packets()
        .filter(|(sent, came)| *sent >= later && came.is_none_or(|came| !is_direct(*sent, came)))
        .map(|(sent, came)| came.is_some_and(|came| is_back(sent, came)))
        .collect();
    OfRelay {
        resumed_s: resumed.map(|at| (at - returned).as_secs_f64()),
        silence_s: silence.unwrap_or_default().as_secs_f64(),
        lost: [lost.len(), lost.iter().filter(|is_back| **is_back).count()],
    }
}

fn of_gateway(scenario: &Scenario, seen: &Seen, times: Times<Duration>) -> OfGateway {
    let [halted, goes_on] = times.halted.unwrap_or([times.killed; 2]);
    OfGateway {
        halted_s: open_after(scenario, seen, halted..goes_on),
        killed_s: open_after(scenario, seen, times.killed..Duration::MAX),
    }
}

/// Returns the time from the begin of `span` until the last packet sent before its end that did not
/// arrive in its budget; packets in flight at its begin count as well.
fn open_after(scenario: &Scenario, seen: &Seen, span: Range<Duration>) -> f64 {
    let is_lost = |sent: Duration, came: Option<Duration>| {
        came.is_none_or(|came| came - sent > scenario.budget())
    };
    let packets = seen.sent.iter().zip(&seen.came).filter(|(sent, _)| **sent < span.end);
    let lost = packets.filter(|(sent, came)| is_lost(**sent, **came));
    let last = lost.map(|(sent, _)| sent.saturating_sub(span.start)).max();
    last.unwrap_or_default().as_secs_f64()
}

fn record(scenario: &Scenario, options: &RunOptions, all: &[Outcome]) -> Record {
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    for victim in Victim::ALL {
        let name = victim.name();
        let outcomes =
            all.iter().filter(|outcome| outcome.victim == victim).map(|outcome| outcome.outcome);
        let of_relay: Vec<OfRelay> = outcomes
            .clone()
            .filter_map(|outcome| match outcome {
                VictimOutcome::Relay(of_relay) => Some(of_relay),
                VictimOutcome::Gateway(_) => None,
            })
            .collect();
        let of_gateway: Vec<OfGateway> = outcomes
            .filter_map(|outcome| match outcome {
                VictimOutcome::Gateway(of_gateway) => Some(of_gateway),
                VictimOutcome::Relay(_) => None,
            })
            .collect();
        if victim.is_relay() {
            add_relay_rows(&name, &of_relay, &mut rows, &mut findings);
        } else {
            add_gateway_rows(&name, &of_gateway, &mut rows, &mut findings);
        }
    }
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(scenario.runs.describe_medians(options));
    Record::of_tables(&scenario.name, assumptions, (rows, findings))
}

fn add_relay_rows(name: &str, all: &[OfRelay], rows: &mut Vec<Row>, findings: &mut Vec<Finding>) {
    let resumed: Vec<f64> = all.iter().filter_map(|one| one.resumed_s).collect();
    let silences: Vec<f64> = all.iter().map(|one| one.silence_s * 1e3).collect();
    let [lost, back] = [0, 1].map(|place| all.iter().map(|one| one.lost[place]).sum::<usize>());
    let share = 100.0 * back as f64 / lost.max(1) as f64;
    let row = |case: &str, values: &[f64], unit: &str| {
        Row::of_median(&format!("{name} is killed: {case}"), None, values, unit, "")
    };
    rows.push(row("recovery resumes after its return", &resumed, "s"));
    rows.push(row("longest silence of the Internet path meanwhile", &silences, "ms"));
    rows.push(row("lost packets that come back 2 s after its return", &[share], "%"));
    let latest = resumed.iter().copied().fold(f64::NAN, f64::max);
    findings.push(Finding::new(
        &format!("{name} is killed: recovery resumes within {RESUMED_WITHIN_S} s of its return"),
        resumed.len() == all.len() && latest <= RESUMED_WITHIN_S && share >= 90.0,
        format!("{latest:.2} s at the latest; then {back} of {lost} lost packets come back"),
    ));
    let silence = silences.iter().copied().fold(f64::NAN, f64::max);
    findings.push(Finding::new(
        &format!("{name} is killed: the Internet path goes on untouched"),
        silence <= MAX_SILENCE.as_secs_f64() * 1e3,
        format!("silent for {silence:.0} ms at most"),
    ));
}

fn add_gateway_rows(
    name: &str,
    all: &[OfGateway],
    rows: &mut Vec<Row>,
    findings: &mut Vec<Finding>,
) {
    let halted = all.iter().map(|one| one.halted_s).collect();
    let killed = all.iter().map(|one| one.killed_s).collect();
    for (what, open) in [("hangs", halted), ("is killed", killed)] as [(&str, Vec<f64>); 2] {
        let case = format!("{name} {what}: packets take their original path after");
        rows.push(Row::of_median(&case, None, &open, "s", ""));
        let latest = open.iter().copied().fold(f64::NAN, f64::max);
        findings.push(Finding::new(
            &format!("{name} {what}: packets take their original path within {OPEN_WITHIN_S} s"),
            latest <= OPEN_WITHIN_S,
            format!("{latest:.3} s at the latest"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../../scenarios/packet-failover.toml");

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn built_in_scenario_is_consistent() {
        let scenario = Scenario::parse(TEXT).unwrap();
        for victim in Victim::ALL {
            let topology = Topology::parse(&scenario.topology(victim), catalogue()).unwrap();
            assert_eq!(topology.hosts.len(), 4);
        }
        let error = Scenario::parse(&TEXT.replace("after_s = 5", "after_s = 1")).unwrap_err();
        assert!(error.to_string().contains("after_s: 1 given, expected 2.5 to 600"), "{error}");
    }

    /// Returns one packet each 10 ms for ten seconds; `after` returns a packet's delay, if it
    /// arrives.
    fn seen(after: impl Fn(u64) -> Option<u64>) -> Seen {
        let sent: Vec<Duration> = (0..1000).map(|number| ms(10 * number)).collect();
        let came = (0..1000).map(|number| after(10 * number).map(|took| ms(10 * number + took)));
        Seen { came: came.collect(), sent }
    }

    #[test]
    fn recovery_resumes_with_the_first_recovered_packet() {
        let scenario = Scenario::parse(TEXT).unwrap();
        // The Internet path takes 75 ms and loses each tenth packet; the relay is dead from 2 to 5
        // s, and recovers packets from 6 s on.
        let call = seen(|at| match (at % 100, at) {
            (0, 2000..6000) => None,
            (0, _) => Some(150),
            _ => Some(75),
        });
        let of_relay = of_relay(&scenario, &call, ms(2000), ms(5000));
        assert_eq!(of_relay.resumed_s, Some(1.15));
        assert_eq!(of_relay.silence_s, 0.02);
        assert_eq!(of_relay.lost, [30, 30]);
        // While it is dead, every packet is late.
        let late = seen(|at| Some(if (2000..5000).contains(&at) { 300 } else { 75 }));
        let of_relay = super::of_relay(&scenario, &late, ms(2000), ms(5000));
        assert!(of_relay.silence_s > 2.9, "{of_relay:?}");
    }

    #[test]
    fn direct_path_is_open_after_the_last_missing_packet() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let halted = Some([ms(2000), ms(4000)]);
        let times = Times { killed: ms(6005), returned: None, halted };
        let of_gateway = |seen: &Seen| super::of_gateway(&scenario, seen, times);
        // Packets queued in the halted gateway's device arrive, but too late.
        let call = seen(|at| match at {
            2000..=2700 => Some(4075 - at),
            6000..=6340 => None,
            _ => Some(75),
        });
        assert_eq!(of_gateway(&call), OfGateway { halted_s: 0.7, killed_s: 0.335 });
        let untouched = OfGateway { halted_s: 0.0, killed_s: 0.0 };
        assert_eq!(of_gateway(&seen(|_| Some(75))), untouched);
        let shut = seen(|at| (!(2000..4000).contains(&at)).then_some(75));
        assert_eq!(of_gateway(&shut).halted_s, 1.99);
    }
}
