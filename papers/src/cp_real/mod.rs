//! `cp-real` `[CP VII-C]`: all algorithms of the paper on a real deployment, beside ours.
//!
//! Each repeat is a lab of its own. Probes measure it ([`measure`], [`knowledge`]); every algorithm
//! plans on the same measurements ([`choose`]); the relays and gateways of each plan are started in
//! turn ([`deploy`]), and all flows are carried direct once and over each plan ([`repeat`]). The
//! [`outcome`] compares what was measured with what was predicted.

mod choose;
mod deploy;
mod knowledge;
mod measure;
mod outcome;
mod repeat;

use std::io;
use std::path::Path;

use tradewind_demo::read_topology;
use tradewind_demo::scenario::Scenario;

use crate::harness::{
    Experiment, ExperimentError, Observer, Record, RunOptions, read_text, repeats,
};

/// The paper's algorithms by family, then ours.
const FLOW_GREEDY: [&str; 2] = ["f-fct", "f-cost"];
const PROXY_GREEDY: [&str; 3] = ["1-p", "2-p", "2-p-rb"];
const OURS: &str = "auto";

/// Returns all algorithms.
fn algorithms() -> Vec<&'static str> {
    FLOW_GREEDY.into_iter().chain(PROXY_GREEDY).chain([OURS]).collect()
}

/// Runs it.
///
/// # Errors
/// When the scenario makes no sense, no plan is found, the lab or a process on it fails, or the run
/// is stopped.
pub(super) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = read(experiment, options)?;
    let topology = read_topology(&scenario)?;
    let first = options.seed.unwrap_or(topology.seed);
    let count = u64::from(options.repeat.unwrap_or(1).max(1));
    let seeds: Vec<u64> = (0..count).map(|number| first.wrapping_add(number)).collect();
    let work = repeat::Work { scenario: &scenario, topology: &topology, options };
    let step = "measure, plan by each algorithm, deploy, carry";
    let completed = repeats::each(step, &seeds, 1, options, observer, |seed, checked| {
        work.run(*seed, checked)
    })?;
    Ok(completed.record(|repeats, options| outcome::record(&scenario, options, repeats)))
}

/// Reads the scenario; its topology lies beside a given file.
fn read(experiment: &Experiment, options: &RunOptions) -> Result<Scenario, ExperimentError> {
    let Some(file) = &options.scenario else { return Ok(Scenario::cp_real()?) };
    let beside = file.parent().unwrap_or(Path::new("."));
    let load = |name: &str| read_text(&beside.join(name)).map_err(io::Error::other);
    experiment.read(options, |text| Scenario::parse(text, load))
}
