//! When the first byte of an answer comes: `stream-first-byte`.
//!
//! No round trip is lost on a warm chain: the hop header and the client's first bytes leave on connections that stand, and the
//! answer takes one end-to-end round trip and the handshake of the leg to the destination. The bar allows the handshakes of
//! both access legs.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use tradewind_desired::LegProfile;
use tradewind_lab::LabOptions;
use tradewind_units::HostId;
use tradewind_units::time::as_millis_f64;
use tradewind_wan::Topology;

use crate::demo::{DemoError, Observer};
use crate::experiment::{
    Experiment, ExperimentError, Finding, Record, Row, RunOptions, SCHEMA_VERSION, distinct,
    missing,
};
use crate::lab_run::chain::{Carriage, Chain, Entrance, NewChain};
use crate::lab_run::fetch::{self, File, FileServer};
use crate::lab_run::service::LegText;
use crate::lab_run::{Ground, round_trip};
use crate::numeric::Runs;
use crate::parallel;
use crate::scenario::{ScenarioError, from_toml};

/// Where the server listens.
const SERVER_PORT: u16 = 8000;
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
    /// From the client on.
    relays: Vec<HostId>,
    /// Sessions before those that count.
    first_sessions: u32,
    sessions: u32,
    sessions_quick: u32,
    /// Between two sessions, in seconds.
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
    entrance: Entrance,
    /// How the gateway sets up its connections to the first relay.
    gateway: Option<LegProfile>,
    /// How relays set up theirs.
    relay: Option<LegProfile>,
    #[serde(default)]
    encrypted: bool,
    /// Whether the bar holds for it.
    #[serde(default)]
    held: bool,
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

    fn hosts(&self) -> impl Iterator<Item = &HostId> {
        [&self.client, &self.server].into_iter().chain(&self.relays)
    }

    /// One end-to-end round trip, and the handshakes of the two access legs.
    fn bar(&self, topology: &Topology) -> [Duration; 2] {
        let stops: Vec<&HostId> =
            [&self.client].into_iter().chain(&self.relays).chain([&self.server]).collect();
        let legs: Vec<Duration> =
            stops.windows(2).map(|leg| round_trip(topology, leg[0], leg[1])).collect();
        [legs.iter().sum(), legs[0] + legs[legs.len() - 1]]
    }
}

/// What a repeat came to.
struct Outcome {
    /// By case, then by session, in ms.
    times: Vec<Vec<f64>>,
    reasons: Vec<String>,
}

/// Runs the experiment.
///
/// # Errors
/// When the scenario makes no sense, the lab or what runs on it fails, or the run is told to stop.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let mut scenario = experiment.read(options, Scenario::parse)?;
    if options.quick {
        scenario.sessions = scenario.sessions_quick;
    }
    let lacks = |topology: &Topology| missing(topology, scenario.hosts());
    let topology = experiment.read_topology(options, &scenario.topology, lacks)?;
    let seeds = scenario.runs.seeds(options);
    let repeats = parallel::each("open sessions", &seeds, 1, observer, |seed| {
        repeat(&scenario, &topology, options, *seed)
    })?;
    Ok(record(&scenario, &topology, options, &repeats))
}

fn repeat(
    scenario: &Scenario,
    topology: &Topology,
    options: &RunOptions,
    seed: u64,
) -> Result<Outcome, DemoError> {
    let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let ground = Ground::start(topology, &lab, &options.program, &options.stop)?;
    let server = FileServer::start(&ground, &scenario.server, SERVER_PORT)?;
    let mut outcome = Outcome { times: Vec::new(), reasons: Vec::new() };
    for (slot, case) in (0..).zip(&scenario.cases) {
        let chain = start(scenario, case, &ground, server.address, slot)?;
        let mut times = Vec::new();
        for session in 0..scenario.first_sessions + scenario.sessions {
            if session == scenario.first_sessions {
                ground.lab.reset_validity()?;
                times.clear();
            }
            ground.stop.check()?;
            let file = File { bytes: 1, seed };
            let fetched = fetch::fetch(&ground, &scenario.client, chain.entrance, file, QUIET)?;
            times.push(as_millis_f64(fetched.fct));
            std::thread::sleep(Duration::from_secs_f64(scenario.pause_s));
        }
        outcome.times.push(times);
        outcome.reasons.extend(ground.lab.validity()?.reasons);
    }
    Ok(outcome)
}

fn start(
    scenario: &Scenario,
    case: &Case,
    ground: &Ground,
    server: SocketAddr,
    slot: u16,
) -> Result<Chain, DemoError> {
    let leg = |profile: &Option<LegProfile>| match case.encrypted {
        true => LegText::encrypted(profile.clone()),
        false => LegText { accept: None, dial: profile.clone(), to: Vec::new() },
    };
    let chain = NewChain {
        slot,
        client: &scenario.client,
        server,
        relays: &scenario.relays,
        carriage: Carriage::Split,
        entrance: case.entrance,
        leg: &leg(&case.relay),
        gateway: &LegText { accept: None, ..leg(&case.gateway) },
    };
    chain.start(ground)
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
            let says = format!(
                "{name}: first byte after at most one end-to-end round trip and two access handshakes"
            );
            let ours = format!(
                "slowest {slowest:.1} ms of {end_to_end:.0} + {access:.0} ms, {} sessions",
                sessions.len()
            );
            findings.push(Finding::new(&says, slowest <= bar, ours));
        }
    }
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(format!("{} runs, all sessions together", scenario.runs.seeds(options).len()));
    let invalid_because = distinct(repeats.iter().flat_map(|repeat| &repeat.reasons));
    Record {
        schema_version: SCHEMA_VERSION,
        name: scenario.name.clone(),
        assumptions,
        valid: invalid_because.is_empty(),
        invalid_because,
        rows,
        figures: Vec::new(),
        findings,
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::Catalogue;

    use super::*;

    #[test]
    fn the_bar_is_a_round_trip_over_all_legs_and_one_more_over_the_outer_two() {
        let scenario =
            Scenario::parse(include_str!("../../../scenarios/stream-first-byte.toml")).unwrap();
        let topology = include_str!("../../../scenarios/stream-wan.toml");
        let topology = Topology::parse(topology, &Catalogue::builtin()).unwrap();
        assert!(scenario.hosts().all(|host| topology.host(host).is_some()));
        assert_eq!(scenario.bar(&topology).map(|span| span.as_millis()), [240, 40]);
        let held =
            |entrance| scenario.cases.iter().any(|case| case.held && case.entrance == entrance);
        assert!(held(Entrance::Forward) && held(Entrance::Tproxy));
    }
}
