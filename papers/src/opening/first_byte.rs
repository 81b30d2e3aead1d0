//! Time of a response's first byte: `stream-first-byte`.
//!
//! No round trip is lost on a warm chain: the hop header and the client's first bytes are sent on
//! established connections, and the response takes one end-to-end round trip and the handshake of
//! the leg to the destination. The bar allows the handshakes of both access legs.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use tradewind_desired::LegProfile;
use tradewind_lab::LabOptions;
use tradewind_units::HostId;
use tradewind_units::time::as_millis_f64;
use tradewind_wan::Topology;

use crate::harness::chain::{Carriage, Chain, ClientAttachment, NewChain};
use crate::harness::checked::Checked;
use crate::harness::fetch::{File, FileServer};
use crate::harness::service::LegText;
use crate::harness::{
    Experiment, ExperimentError, Finding, LabContext, Observer, ProcessError, Record, Row,
    RunOptions, Runs, ScenarioError, fetch, from_toml, missing, repeats, round_trip,
};

/// Port of the server.
const SERVER_PORT: u16 = 8000;
/// Sessions after which the lab's timing is checked.
const AT_A_TIME: u32 = 8;
/// Late batches of sessions that a full run may have, for each batch that it needs. Chosen: the lab
/// of a shared machine is late for seconds, not for minutes.
const MAX_LATE: u32 = 2;
/// Longest silence in a session.
const QUIET: Duration = Duration::from_secs(10);

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    topology: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    client: HostId,
    server: HostId,
    /// Relays, from the client on.
    relays: Vec<HostId>,
    /// Sessions before those that count.
    first_sessions: u32,
    sessions: u32,
    sessions_quick: u32,
    /// Pause between two sessions, in seconds.
    pause_s: f64,
    #[serde(rename = "case")]
    cases: Vec<Case>,
}

/// A chain to try.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    attachment: ClientAttachment,
    /// Profile of the gateway's connections to the first relay.
    gateway: Option<LegProfile>,
    /// Profile of the relays' connections.
    relay: Option<LegProfile>,
    #[serde(default)]
    encrypted: bool,
    /// True if the bar applies to it.
    #[serde(default)]
    held: bool,
    /// True if quick runs include it.
    #[serde(default = "yes")]
    quick: bool,
}

const fn yes() -> bool {
    true
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let what = if scenario.relays.is_empty() || scenario.cases.is_empty() {
            "relays, case: at least one of each"
        } else if scenario.sessions == 0 || scenario.sessions_quick == 0 {
            "sessions, sessions_quick: at least 1"
        } else if !(0.0..=60.0).contains(&scenario.pause_s) {
            "pause_s: 0 to 60"
        } else {
            return Ok(scenario);
        };
        Err(ScenarioError::Inconsistent { what: what.to_owned() })
    }

    /// Returns the scenario of a quick run, which states what it leaves out.
    fn quick(mut self) -> Self {
        self.sessions = self.sessions_quick;
        let (quick, left) = self.cases.into_iter().partition(|case| case.quick);
        self.cases = quick;
        let left: Vec<Case> = left;
        let names: Vec<&str> = left.iter().map(|case| case.name.as_str()).collect();
        self.assumptions.push(format!("a quick run leaves out: {}", names.join("; ")));
        self
    }

    fn hosts(&self) -> impl Iterator<Item = &HostId> {
        [&self.client, &self.server].into_iter().chain(&self.relays)
    }

    /// Returns one end-to-end round trip, and the handshakes of the two access legs.
    fn bar(&self, topology: &Topology) -> [Duration; 2] {
        let stops: Vec<&HostId> =
            [&self.client].into_iter().chain(&self.relays).chain([&self.server]).collect();
        let legs: Vec<Duration> =
            stops.windows(2).map(|leg| round_trip(topology, leg[0], leg[1])).collect();
        [legs.iter().sum(), legs[0] + legs[legs.len() - 1]]
    }
}

/// Results of a repeat.
struct Outcome {
    /// Times by case, then by session, in ms.
    times: Vec<Vec<f64>>,
}

/// Runs the experiment.
///
/// # Errors
/// When the scenario makes no sense, the lab or a process on it fails, or the run is stopped.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let mut scenario = experiment.read(options, Scenario::parse)?;
    if options.quick {
        scenario = scenario.quick();
    }
    let lacks = |topology: &Topology| missing(topology, scenario.hosts());
    let topology = experiment.read_topology(options, &scenario.topology, lacks)?;
    let seeds = scenario.runs.seeds(options);
    let step = "open sessions";
    let completed = repeats::each(step, &seeds, 1, options, observer, |seed, checked| {
        repeat(&scenario, &topology, options, *seed, checked)
    })?;
    Ok(completed.record(|repeats, options| record(&scenario, &topology, options, repeats)))
}

fn repeat(
    scenario: &Scenario,
    topology: &Topology,
    options: &RunOptions,
    seed: u64,
    checked: &mut Checked,
) -> Result<Outcome, ProcessError> {
    let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let context = LabContext::start(topology, &lab, &options.program, &options.stop)?;
    let server = FileServer::start(&context, &scenario.server, SERVER_PORT)?;
    let mut outcome = Outcome { times: Vec::new() };
    for (slot, case) in (0..).zip(&scenario.cases) {
        let chain = start(scenario, case, &context, server.address, slot)?;
        let sessions =
            Sessions { scenario, context: &context, dial_address: chain.dial_address, seed };
        sessions.open(scenario.first_sessions)?;
        let name = format!("{}, seed {seed}", case.name);
        outcome.times.push(sessions.on_time(options.quick, &name, checked)?);
    }
    Ok(outcome)
}

/// Sessions over one chain, one after the other.
struct Sessions<'a> {
    scenario: &'a Scenario,
    context: &'a LabContext,
    dial_address: SocketAddr,
    seed: u64,
}

impl Sessions<'_> {
    /// Opens so many; returns the time of each to its first byte, in ms.
    fn open(&self, number: u32) -> Result<Vec<f64>, ProcessError> {
        let mut times = Vec::new();
        for _ in 0..number {
            self.context.stop.check()?;
            let file = File { bytes: 1, seed: self.seed };
            let client = &self.scenario.client;
            let fetched = fetch::fetch(self.context, client, self.dial_address, file, QUIET)?;
            times.push(as_millis_f64(fetched.fct));
            std::thread::sleep(Duration::from_secs_f64(self.scenario.pause_s));
        }
        Ok(times)
    }

    /// Opens the sessions that count, a few at a time: those during which the lab was late are
    /// opened again, up to a limit.
    fn on_time(
        &self,
        is_quick: bool,
        name: &str,
        checked: &mut Checked,
    ) -> Result<Vec<f64>, ProcessError> {
        let wanted = self.scenario.sessions;
        let mut again = if is_quick { 1 } else { MAX_LATE * wanted.div_ceil(AT_A_TIME) };
        let mut times = Vec::new();
        loop {
            let left = wanted.saturating_sub(u32::try_from(times.len()).unwrap_or(wanted));
            if left == 0 {
                return Ok(times);
            }
            self.context.lab.reset_validity()?;
            let few = self.open(left.min(AT_A_TIME))?;
            let late = self.context.lab.validity()?.reasons;
            if late.is_empty() || again == 0 {
                times.extend(few);
                checked.add(name, late);
            } else {
                again -= 1;
            }
        }
    }
}

fn start(
    scenario: &Scenario,
    case: &Case,
    context: &LabContext,
    server: SocketAddr,
    slot: u16,
) -> Result<Chain, ProcessError> {
    let leg = |profile: &Option<LegProfile>| {
        if case.encrypted {
            LegText::encrypted(profile.clone())
        } else {
            LegText { accept: None, dial: profile.clone(), to: Vec::new() }
        }
    };
    let chain = NewChain {
        slot,
        client: &scenario.client,
        server,
        relays: &scenario.relays,
        carriage: Carriage::Split,
        attachment: case.attachment,
        leg: &leg(&case.relay),
        gateway: &LegText { accept: None, ..leg(&case.gateway) },
    };
    chain.start(context)
}

fn record(
    scenario: &Scenario,
    topology: &Topology,
    options: &RunOptions,
    repeats: &[Outcome],
) -> Record {
    let [end_to_end, access] = scenario.bar(topology).map(as_millis_f64);
    let bar = end_to_end + access;
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    for (index, case) in scenario.cases.iter().enumerate() {
        let sessions: Vec<f64> =
            repeats.iter().flat_map(|repeat| &repeat.times[index]).copied().collect();
        let slowest = sessions.iter().copied().fold(f64::NAN, f64::max);
        let name = &case.name;
        let note = format!("{} sessions; the bar is {bar:.0} ms", sessions.len());
        rows.push(Row::of_median(&format!("{name}: median"), None, &sessions, "ms", &note));
        rows.push(Row::of(&format!("{name}: slowest"), None, &[slowest], "ms", ""));
        if case.held {
            let claim = format!(
                "{name}: first byte after at most one end-to-end round trip \
                 and two access handshakes"
            );
            let ours = format!(
                "slowest {slowest:.1} ms of {end_to_end:.0} + {access:.0} ms, {} sessions",
                sessions.len()
            );
            findings.push(Finding::new(&claim, slowest <= bar, ours));
        }
    }
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(format!("{} runs, all sessions together", scenario.runs.seeds(options).len()));
    Record::of_tables(&scenario.name, assumptions, (rows, findings))
}

#[cfg(test)]
mod tests {
    use tradewind_model::Catalogue;

    use super::*;

    #[test]
    fn bar_is_a_round_trip_and_two_access_handshakes() {
        let scenario =
            Scenario::parse(include_str!("../../scenarios/stream-first-byte.toml")).unwrap();
        let topology = include_str!("../../scenarios/stream-wan.toml");
        let topology = Topology::parse(topology, &Catalogue::builtin()).unwrap();
        assert!(scenario.hosts().all(|host| topology.host(host).is_some()));
        assert_eq!(scenario.bar(&topology).map(|span| span.as_millis()), [240, 40]);
        let held = |attachment| {
            scenario.cases.iter().any(|case| case.held && case.attachment == attachment)
        };
        assert!(held(ClientAttachment::Forward) && held(ClientAttachment::Tproxy));
        let quick = scenario.clone().quick();
        assert!(quick.cases.len() < scenario.cases.len());
        assert!(scenario.cases.iter().all(|case| case.quick || !case.held));
    }
}
