//! Errors of a demo run.

use tradewind_controller::{ClientError, ControllerError};
use tradewind_units::{Duration, SiteId, UnitError};

use crate::processes::ProcessError;

/// The reason why a demo ended early.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The lab or a process on it failed, or the run was stopped on request.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A site or region of the scenario has no host in its topology.
    #[error("line {line}: `{place}` has no host of its name in {file}")]
    NoHost {
        /// The line of the scenario that names it.
        line: usize,
        /// The site or region.
        place: SiteId,
        /// The file of the topology.
        file: String,
    },
    /// The controller could not start, or failed.
    #[error("controller: {0}")]
    Controller(#[from] ControllerError),
    /// The controller refused something.
    #[error("controller: {0}")]
    Refused(#[from] ClientError),
    /// Something did not come about in time.
    #[error("not within {} s: {what}", limit.as_secs())]
    Late {
        /// It, in a few words.
        what: String,
        /// The time for it.
        limit: Duration,
    },
    /// The plan does not say how long a flow takes.
    #[error("the plan knows no legs of flow {0}")]
    NoLegs(String),
    /// A name is malformed.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

impl DemoError {
    /// Returns whether what its user wrote is at fault, and not what the host lacks.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        match self {
            Self::NoHost { .. } => true,
            Self::Process(error) => error.is_of_configuration(),
            _ => false,
        }
    }
}
