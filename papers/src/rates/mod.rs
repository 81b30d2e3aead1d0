//! Rates of flows that run at once: `trn-vmcap`, `trn-intra`, `trn-scope-lab` \[TRN\] and
//! `cp-kinds` [CP IV-A].
//!
//! A [`scenario`] lists cases: flows with a number of connections each, direct or over relays,
//! which may start and end meanwhile. A [`repeat`] is a lab on which every case runs by itself, one
//! after the other; received bytes are counted once slow start is over. The [`outcome`] compares
//! the rates with the paper's sentences.

mod outcome;
mod repeat;
mod scenario;

use tradewind_wan::Topology;

use crate::harness::{Experiment, ExperimentError, Observer, Record, RunOptions, repeats};
use scenario::Scenario;

/// Runs an experiment whose scenario is one of rates.
///
/// # Errors
/// When the scenario makes no sense, the lab or a process on it fails, or the run is stopped.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let lacks = |topology: &Topology| scenario.lacks(topology);
    let topology = experiment.read_topology(options, &scenario.topology, lacks)?;
    let scenario = if options.quick { scenario.quick() } else { scenario };
    let seeds = scenario.runs.seeds(options);
    let step = "measure rates";
    let completed = repeats::each(step, &seeds, 1, options, observer, |seed, checked| {
        repeat::run(&scenario, &topology, options, *seed, checked)
    })?;
    Ok(completed.record(|repeats, options| outcome::record(&scenario, options, repeats)))
}
