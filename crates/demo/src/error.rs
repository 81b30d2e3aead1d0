//! Errors of a demo run.

use tradewind_plan::{ProblemError, SolveError};
use tradewind_units::{SiteId, UnitError};

use super::knowledge::KnowledgeError;
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
    /// The measurements cannot be turned into legs.
    #[error("measurements: {0}")]
    Knowledge(#[from] KnowledgeError),
    /// The problem was refused.
    #[error("problem: {0}")]
    Problem(#[from] ProblemError),
    /// No plan was found.
    #[error("no plan: {0}")]
    Solve(#[from] SolveError),
    /// The verifier rejects a plan, which is a bug of the solver.
    #[error("the plan does not hold: {0}")]
    Plan(String),
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
