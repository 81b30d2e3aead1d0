//! A shared bottleneck: `cdd-fair` \[CDD III-D, V\].
//!
//! CDD asks whether Quick-Start is more aggressive than other connections and has partial evidence
//! only. Here downloads over two relays cross a link alone, eight at once, and beside other
//! downloads; the senders' retransmissions, the others' rates and the times of the others' short
//! downloads are measured. A [`scenario`] defines the downloads; a [`repeat`] is a lab on which
//! each runs once; the [`outcome`] compares.

mod outcome;
mod repeat;
mod scenario;

use tradewind_wan::Topology;

use crate::harness::{Experiment, ExperimentError, Observer, Record, RunOptions, repeats};
use scenario::Scenario;

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
    let scenario = if options.quick { scenario.quick() } else { scenario };
    let lacks = |topology: &Topology| outcome::check(&scenario, topology);
    let topology = experiment.read_topology(options, &scenario.topology, lacks)?;
    let seeds = scenario.runs.seeds(options);
    let step = "fetch alone and beside others";
    let completed = repeats::each(step, &seeds, 1, options, observer, |seed, checked| {
        repeat::run(&scenario, &topology, options, *seed, checked)
    })?;
    Ok(completed.record(|repeats, options| outcome::record(&scenario, &topology, options, repeats)))
}
