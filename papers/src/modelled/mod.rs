//! `cp-model-lab` [CP IV-C]: rates that the paper's formula predicts, compared with those of kernel
//! TCP.
//!
//! Tuples of source, destination and two relays are drawn as in `cp-model`, the numeric half. Each
//! gets its own lab, on which the rate is measured direct, over one splitting relay and over two
//! ([`measure`]); the [`outcome`] compares it with the formula's.

mod measure;
mod outcome;
mod scenario;

use crate::harness::{Experiment, ExperimentError, Observer, Random, Record, RunOptions, repeats};
use crate::numeric::formula;
use measure::Work;
use scenario::Scenario;

/// Runs an experiment whose scenario is one of modelled rates.
///
/// # Errors
/// When the scenario makes no sense, the lab or a process on it fails, or the run is stopped.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let places = experiment.beside(options, &scenario.places)?;
    let model = experiment.read(options, |_| scenario.model(&places))?;
    let tuples = if options.quick { scenario.tuples_quick } else { scenario.tuples };
    let mut works = Vec::new();
    for seed in scenario.runs.seeds(options) {
        let mut random = Random::new(seed);
        for setting in &model.settings {
            works.extend((0..tuples).map(|_| Work {
                setting: setting.name.clone(),
                tuple: formula::draw(setting, &mut random),
                seed,
            }));
        }
    }
    let step = "measure over no, one and two relays";
    let completed =
        repeats::each(step, &works, scenario.at_once, options, observer, |work, checked| {
            work.run(&scenario, &model, options, checked)
        })?;
    Ok(completed.record(|measured, options| outcome::record(&scenario, tuples, options, measured)))
}
