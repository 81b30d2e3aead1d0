//! Reasons for which an experiment has no record.

use std::path::PathBuf;

use tradewind_demo::DemoError;
use tradewind_demo::processes::ProcessError;
use tradewind_demo::scenario::ScenarioError;
use tradewind_model::ModelError;
use tradewind_plan::{ProblemError, SolveError};

/// Reasons for which a run ended without a record.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// A run on the lab failed, or any run was stopped.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A scenario of the demo has no fitting topology.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// A numeric one failed.
    #[error(transparent)]
    Numeric(#[from] NumericError),
    /// A built-in scenario makes no sense.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A given scenario makes no sense.
    #[error("{}: {error}", file.display())]
    GivenScenario {
        /// The file.
        file: PathBuf,
        /// The error in it.
        error: ScenarioError,
    },
    /// A given file cannot be read, or holds something else.
    #[error("{}: {what}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The error in it.
        what: String,
    },
    /// A table of RTTs for an experiment that cannot use one.
    #[error("{name}: it takes no table of RTTs (--rtt)")]
    NoTable {
        /// The experiment.
        name: &'static str,
    },
    /// The first part alone of an experiment that is not on the lab.
    #[error("{name}: it has no parts (--first-part), as it is not on the lab; --quick shortens it")]
    NoParts {
        /// The experiment.
        name: &'static str,
    },
}

impl ExperimentError {
    /// Returns whether what its user wrote is at fault, and not what the host lacks.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        match self {
            Self::GivenScenario { .. }
            | Self::File { .. }
            | Self::NoTable { .. }
            | Self::NoParts { .. } => true,
            Self::Process(error) => error.is_of_configuration(),
            Self::Demo(error) => error.is_of_configuration(),
            Self::Numeric(_) | Self::Scenario(_) => false,
        }
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
