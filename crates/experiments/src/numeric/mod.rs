//! The numeric experiments: the planner's and its model's results where the paper simulated or
//! measured.
//!
//! | module | experiments |
//! |---|---|
//! | [`placement`] | `cp-flows`, `cp-budget`, `cp-cost`, `cp-lastmile`, `cp-usecases`, `cp-runtime` [CP VII-B] |
//! | [`formula`] | `cp-model`, its numeric half [CP IV-C] |
//! | [`scope`] | `trn-scope` \[TRN\] |
//! | [`estimate`] | `cdd-rtt`, its numeric half \[CDD\] |
//! | [`packet`] | `jq-delay`, `jq-cost` \[JQ 5.1\], `jq-recovery` in simulation, `jq-fec`, `jq-straggler` \[JQ 5.2\] |
//! | [`rounds`] | `rt-model` [RT II-B] |
//! | [`fleet`] | `rt-cmax`, `rt-traffic` [RT IV-B1] |
//!
//! Nothing is carried and no time is measured except in `cp-runtime`: the same scenario and seeds
//! give the same figures on any machine.

pub mod estimate;
pub mod fleet;
pub mod formula;
pub mod packet;
pub mod placement;
pub mod pops;
pub(crate) mod random;
mod repeats;
pub mod rounds;
mod rtts;
pub mod scope;
mod sizes;

use std::sync::OnceLock;

use tradewind_model::{Catalogue, ModelError};
use tradewind_plan::routing::table::RttTable;
use tradewind_plan::{ProblemError, SolveError};

pub use random::Random;
pub use repeats::Runs;

use crate::demo::Observer;
use crate::experiment::{
    Experiment, ExperimentError, Record, RunOptions, SCHEMA_VERSION, read_text,
};
use crate::scenario::ScenarioError;

/// Kilometres that light covers in a millisecond in fibre, as in the distance model
/// (docs/explanation/rtt-model.md).
const FIBRE_KM_PER_MS: f64 = 204.2;

/// Returns the built-in catalogue, read once.
pub(crate) fn catalogue() -> &'static Catalogue {
    static BUILTIN: OnceLock<Catalogue> = OnceLock::new();
    BUILTIN.get_or_init(Catalogue::builtin)
}

/// A numeric experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `cp-model`
    Model,
    /// `cp-flows`
    Flows,
    /// `cp-budget`
    Budget,
    /// `cp-cost`
    Cost,
    /// `cp-lastmile`
    LastMile,
    /// `cp-usecases`
    UseCases,
    /// `cp-runtime`
    RunTime,
    /// `trn-scope`
    Scope,
    /// `cdd-rtt`
    Rtt,
    /// `jq-delay`
    PacketDelay,
    /// `jq-cost`
    PacketCost,
    /// `jq-recovery`
    PacketRecovery,
    /// `jq-fec`
    PacketFec,
    /// `jq-straggler`
    PacketStraggler,
    /// `rt-model`
    Rounds,
    /// `rt-cmax`
    Cmax,
    /// `rt-traffic`
    Traffic,
}

impl Kind {
    /// Returns whether it can use measured RTTs.
    pub(crate) const fn takes_table(self) -> bool {
        matches!(self, Self::Scope | Self::Rtt | Self::PacketDelay | Self::Rounds)
    }
}

/// Reasons for which a numeric experiment has no figures.
#[derive(Debug, thiserror::Error)]
pub enum NumericError {
    /// A setting that makes no valid problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A region without coordinates or price.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A solver without a plan.
    #[error("solver `{solver}`: {error}")]
    Solve {
        /// The solver.
        solver: String,
        /// Its error.
        error: SolveError,
    },
    /// A plan that does not hold.
    #[error("solver `{solver}`: {violations}")]
    Unsound {
        /// The solver.
        solver: String,
        /// The violations of its plan.
        violations: String,
    },
    /// Nothing to compare.
    #[error("{what}")]
    Nothing {
        /// The reason, in a line.
        what: String,
    },
    /// The run was stopped.
    #[error("stopped")]
    Stopped,
}

/// Runs one experiment.
pub(crate) fn run(
    kind: Kind,
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let mut job = Job { options, observer, table: read_table(options)? };
    Ok(match kind {
        Kind::Model => {
            formula::run(&experiment.read(options, formula::Scenario::parse)?, &mut job)?
        }
        Kind::Scope => scope::run(&experiment.read(options, scope::Scenario::parse)?, &mut job)?,
        Kind::Rtt => {
            estimate::run(&experiment.read(options, estimate::Scenario::parse)?, &mut job)?
        }
        Kind::PacketDelay => packet::delay::run(
            &experiment.read(options, packet::delay::Scenario::parse)?,
            &mut job,
        )?,
        Kind::PacketCost => {
            packet::cost::run(&experiment.read(options, packet::cost::Scenario::parse)?, &mut job)?
        }
        Kind::PacketRecovery => packet::recovery::run(
            &experiment.read(options, packet::recovery::Scenario::parse)?,
            &mut job,
        )?,
        Kind::PacketFec => {
            let scenario = experiment.read(options, packet::recovery::fec::Scenario::parse)?;
            let network = read_network(experiment, options, &scenario.network)?;
            packet::recovery::fec::run(&scenario, &network, &mut job)?
        }
        Kind::PacketStraggler => {
            let scenario =
                experiment.read(options, packet::recovery::straggler::Scenario::parse)?;
            let network = read_network(experiment, options, &scenario.network)?;
            packet::recovery::straggler::run(&scenario, &network, &mut job)?
        }
        Kind::Rounds => rounds::run(&experiment.read(options, rounds::Scenario::parse)?, &mut job)?,
        Kind::Cmax => {
            let scenario = experiment.read(options, fleet::cmax::Scenario::parse)?;
            fleet::cmax::run(&scenario, &mut job)?
        }
        Kind::Traffic => {
            let scenario = experiment.read(options, fleet::busy::Scenario::parse)?;
            fleet::busy::run(&scenario, &mut job)?
        }
        _ => {
            let scenario = experiment.read(options, placement::Scenario::parse)?;
            placement::run(kind, &scenario, &mut job)?
        }
    })
}

/// Checks that a text is a scenario of this experiment.
pub(crate) fn check(kind: Kind, text: &str) -> Result<(), ScenarioError> {
    match kind {
        Kind::Model => formula::Scenario::parse(text).map(drop),
        Kind::Scope => scope::Scenario::parse(text).map(drop),
        Kind::Rtt => estimate::Scenario::parse(text).map(drop),
        Kind::PacketDelay => packet::delay::Scenario::parse(text).map(drop),
        Kind::PacketCost => packet::cost::Scenario::parse(text).map(drop),
        Kind::PacketRecovery => packet::recovery::Scenario::parse(text).map(drop),
        Kind::PacketFec => packet::recovery::fec::Scenario::parse(text).map(drop),
        Kind::PacketStraggler => packet::recovery::straggler::Scenario::parse(text).map(drop),
        Kind::Rounds => rounds::Scenario::parse(text).map(drop),
        Kind::Cmax => fleet::cmax::Scenario::parse(text).map(drop),
        Kind::Traffic => fleet::busy::Scenario::parse(text).map(drop),
        Kind::Flows
        | Kind::Budget
        | Kind::Cost
        | Kind::LastMile
        | Kind::UseCases
        | Kind::RunTime => placement::Scenario::parse(text).map(drop),
    }
}

/// Reads the network of an experiment that runs on that of `jq-recovery`.
fn read_network(
    experiment: &Experiment,
    options: &RunOptions,
    name: &str,
) -> Result<packet::recovery::Scenario, ExperimentError> {
    let text = experiment.beside(options, name)?;
    experiment.read(options, |_| packet::recovery::Scenario::parse(&text))
}

fn read_table(options: &RunOptions) -> Result<Option<RttTable>, ExperimentError> {
    let Some(file) = &options.rtt else { return Ok(None) };
    let table = RttTable::parse(&read_text(file)?)
        .map_err(|error| ExperimentError::File { file: file.clone(), what: error.to_string() })?;
    Ok(Some(table))
}

/// The options of a run, and its observer.
pub struct Job<'a> {
    /// Seeds, repeats, and whether to be quick.
    pub options: &'a RunOptions,
    /// The observer.
    pub observer: &'a mut dyn Observer,
    /// Measured RTTs, if given.
    pub table: Option<RttTable>,
}

/// Creates a record of a numeric experiment, without figures yet.
pub(crate) fn record(
    name: &str,
    assumptions: &[String],
    runs: &Runs,
    options: &RunOptions,
) -> Record {
    let mut assumptions = assumptions.to_vec();
    assumptions.push(runs.told(options));
    Record {
        schema_version: SCHEMA_VERSION,
        name: name.to_owned(),
        assumptions,
        valid: true,
        invalid_because: Vec::new(),
        rows: Vec::new(),
        figures: Vec::new(),
        findings: Vec::new(),
    }
}

/// Adds the source of a record's RTTs to its assumptions.
fn tell_rtts(record: &mut Record, measured: bool) {
    let told = if measured {
        "round-trip times are those of the given table, the same in every run"
    } else {
        "round-trip times are guessed by distance; each run draws its own around the guesses, off \
         by 7 % at the median, as far as guesses err"
    };
    record.assumptions.push(told.to_owned());
}

/// Returns the arithmetic mean; NaN of none.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns a quantile, interpolated between two values; 0 without any.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = share * sorted.len().saturating_sub(1) as f64;
    let value = |index: f64| sorted.get(index as usize).copied().unwrap_or_default();
    let (below, above) = (value(at.floor()), value(at.ceil()));
    // Also covers two infinite values.
    if below == above { below } else { below + (above - below) * at.fract() }
}

/// Returns Pearson's coefficient of pairs; 0 where one side never varies.
pub(crate) fn correlation(pairs: &[(f64, f64)]) -> f64 {
    let (first, second): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (x, y) = (mean(&first), mean(&second));
    let covariance: f64 = pairs.iter().map(|(a, b)| (a - x) * (b - y)).sum();
    let spread = |values: &[f64], mean: f64| -> f64 {
        values.iter().map(|value| (value - mean).powi(2)).sum()
    };
    let scale = (spread(&first, x) * spread(&second, y)).sqrt();
    if scale > 0.0 { covariance / scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_values() {
        assert_eq!(quantile(&[4.0, 1.0, 2.0, 3.0], 0.5), 2.5);
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[7.0], 0.9), 7.0);
        let infinite = [1.0, f64::INFINITY, f64::INFINITY];
        assert_eq!(
            [0.0, 0.2, 0.9].map(|share| quantile(&infinite, share)),
            [1.0, infinite[1], infinite[1]]
        );
    }

    #[test]
    fn correlation_is_one_on_a_line_and_none_without_variation() {
        assert!((correlation(&[(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]) - 1.0).abs() < 1e-12);
        assert!((correlation(&[(1.0, 2.0), (2.0, 1.0)]) + 1.0).abs() < 1e-12);
        assert_eq!(correlation(&[(1.0, 2.0), (2.0, 2.0)]), 0.0);
    }
}
