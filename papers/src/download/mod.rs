//! Downloads over chains of relays: the experiments of \[CDD\] that fetch a file and time it.
//!
//! A [`scenario`] describes the fetches, their chains and losses; the [`network`] is its topology
//! with the losses of a case; a [`repeat`] is a lab on which every strategy fetches once; the
//! [`outcome`] compares their times with the paper's, with the gains [`predicted`] by round trips,
//! and with the [`sequence`] of bytes between two relays.

mod network;
mod outcome;
mod predicted;
mod repeat;
mod scenario;
mod sequence;

use crate::harness::{
    Experiment, ExperimentError, Observer, Record, RunOptions, ScenarioError, repeats,
};
use network::Network;
use outcome::Outcome;
use repeat::{Repeat, Work};
use scenario::Scenario;

/// Runs an experiment whose scenario is one of downloads.
///
/// # Errors
/// When the scenario is inconsistent, the lab or a process on it fails, or the run is stopped.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let topology = experiment.beside(options, &scenario.topology)?;
    let network = experiment.read(options, |_| {
        let network = Network::parse(&topology, &scenario.topology)?;
        network.check(&scenario)?;
        Ok::<_, ScenarioError>(network)
    })?;
    let whole = scenario.clone();
    let scenario = if options.quick { scenario.quick() } else { scenario };
    let seeds = scenario.runs.seeds(options);
    let losses = scenario.losses_percent.len();
    let repeats: Vec<Repeat> = seeds
        .iter()
        .flat_map(|seed| (0..losses).map(|loss| Repeat { seed: *seed, loss }))
        .collect();
    let work = Work { scenario: &scenario, network: &network, options };
    let step = "fetch over every chain";
    let at_once = scenario.at_once;
    let completed =
        repeats::each(step, &repeats, at_once, options, observer, |repeat, checked| {
            work.run(*repeat, checked)
        })?;
    Ok(completed.record(|samples, options| {
        let outcome = Outcome { scenario: &scenario, whole: &whole, network: &network, options };
        outcome.record(&repeats[..samples.len()], samples)
    }))
}
