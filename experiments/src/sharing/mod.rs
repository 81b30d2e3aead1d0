//! A shared bottleneck: `cdd-fair` \[CDD III-D, V\].
//!
//! CDD asks whether Quick-Start is more aggressive than other connections and has partial evidence only. Here downloads over
//! two relays cross a link alone, eight at once, and beside others' downloads; what each sender sent again, what the others
//! got and how long their short downloads took is measured. A [`scenario`] says who comes; a [`repeat`] is a lab on which
//! everybody comes once; the [`outcome`] compares.

mod outcome;
mod repeat;
mod scenario;

use tradewind_wan::Topology;

use crate::demo::Observer;
use crate::experiment::{Experiment, ExperimentError, Record, RunOptions};
use crate::lab_run::repeats;
use scenario::Scenario;

/// Runs the experiment.
///
/// # Errors
/// When the scenario makes no sense, the lab or what runs on it fails, or the run is told to stop.
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
    let kept = repeats::each(step, &seeds, 1, options, observer, |seed, checked| {
        repeat::run(&scenario, &topology, options, *seed, checked)
    })?;
    Ok(kept.record(|repeats, options| outcome::record(&scenario, &topology, options, repeats)))
}
