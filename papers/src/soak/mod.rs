//! A soak: sessions of all kinds for a long time, with faults of the network and of relays.
//!
//! Chains of a gateway and two relays run side by side, one for each kind of leg and attachment. In
//! each round clients open new sessions as old ones end ([`session`]), and [`faults`] follow each
//! other; then the load stops, and the resources that each process still holds are recorded
//! ([`process`]). No byte may be altered, no stream end early, no session break without a fault
//! that may break it, every session must be accounted for, and the resources of processes must not
//! grow. The [`outcome`] checks that.

mod faults;
mod outcome;
mod process;
mod scenario;
mod session;

use std::sync::atomic::{AtomicBool, Ordering};

use tradewind_desired::LegProfile;
use tradewind_lab::LabOptions;
use tradewind_wan::Topology;

use crate::harness::chain::{Carriage, NewChain, SplitChain};
use crate::harness::service::LegText;
use crate::harness::{
    Experiment, ExperimentError, LabContext, Observer, ProcessError, Record, RunOptions,
};
use faults::Faults;
use outcome::{Round, Soaked};
use scenario::Scenario;
use session::{Server, Sessions};

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
    let lacks = |topology: &Topology| scenario.lacks(topology);
    let topology = experiment.read_topology(options, &scenario.topology, lacks)?;
    let soaked = soak(&scenario, &topology, options, observer)?;
    Ok(outcome::record(&scenario, &soaked))
}

fn soak(
    scenario: &Scenario,
    topology: &Topology,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Soaked, ProcessError> {
    let seed = options.seed.unwrap_or(scenario.seed);
    let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let lab_context = LabContext::start(topology, &lab, &options.program, &options.stop)?;
    let server = Server::start(&lab_context, &scenario.server)?;
    let mut chains = start_chains(&lab_context, scenario, &server)?;
    let dial_addresses = chains.iter().map(|chain| chain.dial_address).collect();
    let sessions = Sessions::new(&lab_context, scenario, seed, dial_addresses);
    let mut faults = Faults::new(&lab_context, scenario);
    let mut rounds = Vec::new();
    let count = scenario.rounds(options.quick);
    observer.begin("sessions and faults", u64::from(count));
    for round in 1..=count {
        let over = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            let running = scope.spawn(|| sessions.run(&over));
            let hurt = faults.hurt_in((round, options.quick), &mut chains);
            over.store(true, Ordering::Relaxed);
            let ended = running.join().expect("sessions do not panic");
            hurt.and(ended)
        })?;
        let rest = process::at_rest(&lab_context, scenario, &chains)?;
        rounds.push(Round { ended, rest });
        observer.advance_to(u64::from(round));
    }
    let chains = scenario.chains.clone();
    Ok(Soaked { chains, rounds, faults: faults.past(), server: server.wrongs() })
}

/// Starts the chains, over the same hosts.
fn start_chains(
    lab_context: &LabContext,
    scenario: &Scenario,
    server: &Server,
) -> Result<Vec<SplitChain>, ProcessError> {
    let mut chains = Vec::new();
    for (slot, known) in (0..).zip(&scenario.chains) {
        let dial = Some(known.leg.clone());
        let accept = LegProfile { encryption: known.leg.encryption, ..LegProfile::default() };
        let chain = NewChain {
            slot,
            client: &scenario.client,
            server: server.address,
            relays: &scenario.relays,
            carriage: Carriage::Split,
            attachment: known.attachment,
            leg: &LegText { accept: Some(accept), dial: dial.clone(), to: Vec::new() },
            gateway: &LegText { accept: None, dial, to: Vec::new() },
        };
        chains.push(chain.split(lab_context)?);
    }
    Ok(chains)
}
