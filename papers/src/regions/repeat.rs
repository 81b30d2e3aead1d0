//! One repeat: for each strategy a lab of its own, on which the pairs download one after the other.

use std::time::Duration;

use tradewind_lab::LabOptions;
use tradewind_units::HostId;

use super::scenario::{Scenario, Strategy, host_of};
use crate::harness::chain::{Carriage, ClientAttachment, NewChain};
use crate::harness::checked::Checked;
use crate::harness::fetch::FileServer;
use crate::harness::service::LegText;
use crate::harness::{ExperimentError, LabContext, ProcessError, RunOptions, fetch};

/// The port of servers.
const SERVER_PORT: u16 = 8000;

/// The result of a repeat.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// Payload in Mbit/s: by strategy, then by pair, in the scenario's order.
    pub(super) mbps: Vec<Vec<f64>>,
}

/// Runs a repeat.
pub(super) fn run(
    scenario: &Scenario,
    options: &RunOptions,
    seed: u64,
    checked: &mut Checked,
) -> Result<Outcome, ExperimentError> {
    let mut outcome = Outcome { mbps: Vec::new() };
    for strategy in &scenario.strategies {
        let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
        let topology = scenario.topology(strategy)?;
        let context = LabContext::start(&topology, &lab, &options.program, &options.stop)?;
        let pairs = scenario.pairs();
        let mut rates = Vec::with_capacity(pairs.len());
        // Each chain has its own port: a process that has just ended may hold one for a moment.
        let mut slots = 0..;
        for pair in pairs {
            let ends = pair.map(host_of);
            let [from, to] = pair;
            let name = format!("{}: {from} > {to}, seed {seed}", strategy.name);
            let mbps = checked.in_time(options, &name, || {
                let slot = slots.next().expect("there are more ports than downloads");
                measure(&context, scenario, strategy, &ends, slot)
            })?;
            rates.push(mbps);
        }
        outcome.mbps.push(rates);
    }
    Ok(outcome)
}

/// Downloads once; returns the rate of the payload in Mbit/s, and the bounds that the lab broke.
fn measure(
    context: &LabContext,
    scenario: &Scenario,
    strategy: &Strategy,
    [sender, receiver]: &[HostId; 2],
    slot: u16,
) -> Result<(f64, Vec<String>), ProcessError> {
    context.stop.check()?;
    let server = FileServer::start(context, sender, SERVER_PORT + slot)?;
    let relays = [sender.clone()];
    let gateway = LegText { accept: None, dial: strategy.leg(), to: Vec::new() };
    let relay = LegText { accept: strategy.other_end(), dial: None, to: Vec::new() };
    let chain = NewChain {
        slot,
        client: receiver,
        server: server.address,
        relays: if strategy.connections.is_some() { &relays } else { &[] },
        carriage: Carriage::Split,
        attachment: ClientAttachment::Forward,
        leg: &relay,
        gateway: &gateway,
    };
    let chain = chain.start(context)?;
    let settle = Duration::from_secs_f64(scenario.settle_s.max(strategy.settle_s));
    let span = Duration::from_secs_f64(scenario.measure_s);
    let rate = fetch::steady_rate(context, receiver, chain.dial_address, settle, span)?;
    Ok((rate.as_mbps(), context.lab.validity()?.reasons))
}
