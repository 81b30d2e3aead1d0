//! Rates between regions: `trn-single` and `trn-tuned` \[TRN\].
//!
//! TRN measured eleven regions of EC2 with one default connection, and found the usual: near
//! regions are fast, remote ones slow. With larger windows, and above all with many connections,
//! the differences vanished: each pair reached the limit of its VM. Here a download runs from each
//! region to each other one, over one plain connection or over a striped leg between a relay beside
//! the sender and a gateway beside the receiver. A [`scenario`] defines the regions and the
//! strategies; a [`repeat`] is a lab for each strategy; the [`outcome`] compares the rates with the
//! paper's.

mod outcome;
mod repeat;
mod scenario;

use crate::harness::{Experiment, ExperimentError, Observer, Record, RunOptions, repeats};
use scenario::Scenario;

/// Runs an experiment whose scenario is one of rates between regions.
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
    let seeds = scenario.runs.seeds(options);
    let step = "download between all regions";
    let completed = repeats::each(step, &seeds, 1, options, observer, |seed, checked| {
        repeat::run(&scenario, options, *seed, checked)
    })?;
    Ok(completed.record(|repeats, options| outcome::record(&scenario, options, repeats)))
}
