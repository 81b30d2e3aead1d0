//! The numeric experiments: the planner's and its model's results where the paper simulated or
//! measured.
//!
//! | module | experiments |
//! |---|---|
//! | [`placement`] | `cp-flows`, `cp-budget`, `cp-cost`, `cp-lastmile`, `cp-usecases`, `cp-runtime` [CP VII-B] |
//! | [`formula`] | `cp-model`, its numeric half [CP IV-C] |
//! | [`scope`] | `trn-scope` \[TRN\] |
//! | [`stable`] | `trn-day` \[TRN\] |
//! | [`estimate`] | `cdd-rtt`, its numeric half \[CDD\] |
//! | [`packet`] | `jq-delay`, `jq-cost` \[JQ 5.1\], `jq-recovery` in simulation, `jq-fec`, `jq-straggler` \[JQ 5.2\] |
//! | [`rounds`] | `rt-model` [RT II-B] |
//! | [`fleet`] | `rt-cmax`, `rt-traffic` [RT IV-B1] |
//! | [`day`] | `lab-day` |
//!
//! Nothing is carried and no time is measured except in `cp-runtime`: the same scenario and seeds
//! give the same figures on any machine.

pub mod day;
pub mod estimate;
pub mod fleet;
pub mod formula;
pub mod packet;
pub mod placement;
pub mod pops;
pub mod rounds;
mod rtts;
pub mod scope;
mod sizes;
pub mod stable;

use tradewind_plan::routing::table::RttTable;

use crate::harness::{
    Experiment, ExperimentError, Job, Observer, Record, RunOptions, ScenarioError, read_text,
};

/// Kilometres that light covers in a millisecond in fibre, as in the distance model
/// (docs/explanation/rtt-model.md).
const FIBRE_KM_PER_MS: f64 = 204.2;

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
    /// `lab-day`
    Day,
    /// `trn-day`
    Stable,
}

impl Kind {
    /// Returns whether it can use measured RTTs.
    pub(crate) const fn takes_table(self) -> bool {
        matches!(self, Self::Scope | Self::Rtt | Self::PacketDelay | Self::Rounds)
    }
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
        Kind::Stable => stable::run(&experiment.read(options, stable::Scenario::parse)?, &mut job)?,
        Kind::Day => day::run(&experiment.read(options, day::Scenario::parse)?, &mut job)?,
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
        Kind::Day => day::Scenario::parse(text).map(drop),
        Kind::Stable => stable::Scenario::parse(text).map(drop),
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

/// Adds the source of a record's RTTs to its assumptions.
fn add_rtt_assumption(record: &mut Record, measured: bool) {
    let assumption = if measured {
        "round-trip times are those of the given table, the same in every run"
    } else {
        "round-trip times are guessed by distance; each run draws its own around the guesses, off \
         by 7 % at the median, as far as guesses err"
    };
    record.assumptions.push(assumption.to_owned());
}
