//! Errors of a demo run.

use std::path::PathBuf;

use tradewind_desired::DesiredError;
use tradewind_grant::GrantError;
use tradewind_lab::LabError;
use tradewind_plan::{ProblemError, SolveError};
use tradewind_units::{SiteId, UnitError};
use tradewind_wan::TopologyError;

use super::knowledge::KnowledgeError;
use crate::lab_run::carry::CarryError;

/// The reason why a demo ended early.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The run was stopped on request.
    #[error("stopped on request; nothing was left behind")]
    Stopped,
    /// The topology was refused.
    #[error("{file}: {source}")]
    Topology {
        /// The file's name in the scenario.
        file: String,
        /// The error in it.
        source: TopologyError,
    },
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
    /// The lab failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A file or directory could not be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system provided no entropy.
    #[error("no entropy for keys: {0}")]
    Entropy(#[from] std::io::Error),
    /// A program could not be started or waited for.
    #[error("{name}: cannot run it: {source}")]
    Start {
        /// The program's role in the demo.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A program failed.
    #[error("{name}: {why}")]
    Program {
        /// The program's role in the demo.
        name: String,
        /// The last line of its output.
        why: String,
    },
    /// A program's output is malformed.
    #[error("{name}: its answer cannot be read: {source}")]
    Answer {
        /// The program's role in the demo.
        name: String,
        /// The position and kind of the error.
        source: serde_json::Error,
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
    /// The plan cannot be compiled to routes.
    #[error("routes: {0}")]
    Desired(#[from] DesiredError),
    /// A configuration cannot be written.
    #[error("configuration: {0}")]
    Config(#[from] toml::ser::Error),
    /// A key or grant could not be created.
    #[error("grant: {0}")]
    Grant(#[from] GrantError),
    /// A name is malformed.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// A transfer was aborted.
    #[error("flow {flow}: {source}")]
    Carry {
        /// The flow and its path.
        flow: String,
        /// The cause.
        source: CarryError,
    },
}

impl DemoError {
    /// Returns whether what its user wrote is at fault, and not what the host lacks.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        match self {
            Self::Topology { .. } | Self::NoHost { .. } => true,
            Self::Lab(error) => error.is_of_configuration(),
            _ => false,
        }
    }
}
