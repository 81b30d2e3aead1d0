//! The papers' experiments by name: what each shows, how it is run, and what a run came to.
//!
//! A run puts the paper's value beside ours, states what it assumes, and says whether the lab kept time. Repeats
//! take successive seeds; a row's interval is that of Student's t over them.

mod cp_real;
mod record;

use std::path::PathBuf;

use crate::demo::{DemoError, Observer, Stop};

pub use record::{Record, Row, SCHEMA_VERSION};

/// What a run is to be.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Seed of the first repeat; the scenario's when absent.
    pub seed: Option<u64>,
    /// How often to run it, each time with the next seed; at least 1.
    pub repeat: u32,
    /// Whether to shorten what can be, so that a repeat ends within 45 s.
    pub quick: bool,
    /// The binary `tradewind`, for processes on hosts of the lab.
    pub program: PathBuf,
    /// Set from outside to end the run.
    pub stop: Stop,
}

/// Why a run ended without a record.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// A run on the lab failed.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// A built-in scenario makes no sense.
    #[error(transparent)]
    Scenario(#[from] crate::scenario::ScenarioError),
}

/// One experiment.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its name, e.g. `cp-real`.
    pub name: &'static str,
    /// Where the paper describes it.
    pub source: &'static str,
    /// What it shows, in a line.
    pub summary: &'static str,
    /// Whether it runs on the lab (real kernel TCP) or is numeric.
    pub on_lab: bool,
    run: fn(&RunOptions, &mut dyn Observer) -> Result<Record, ExperimentError>,
}

impl Experiment {
    /// Runs it.
    ///
    /// # Errors
    /// When the lab or what runs on it fails, or the run is told to stop.
    pub fn run(
        &self,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<Record, ExperimentError> {
        (self.run)(options, observer)
    }
}

/// All experiments, by paper and name.
#[must_use]
pub const fn all() -> &'static [Experiment] {
    &[Experiment {
        name: "cp-real",
        source: "CP VII-C",
        summary: "full mesh of four sites, six dollars: plan, deploy, transfer, compare",
        on_lab: true,
        run: cp_real::run,
    }]
}

/// The experiment of this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Experiment> {
    all().iter().find(|experiment| experiment.name == name)
}
