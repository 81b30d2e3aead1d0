//! Errors of processes on the lab, and of transfers between its hosts.

use std::path::PathBuf;

use tradewind_grant::GrantError;
use tradewind_lab::LabError;
use tradewind_units::UnitError;
use tradewind_wan::TopologyError;

use super::carry::CarryError;

/// The reason why work on the lab ended early.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The run was stopped on request.
    #[error("stopped on request; nothing was left behind")]
    Stopped,
    /// The topology was refused.
    #[error("{file}: {source}")]
    Topology {
        /// The name of its file.
        file: String,
        /// The error in it.
        source: TopologyError,
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
        /// The program's role in the run.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A program failed.
    #[error("{name}: {why}")]
    Program {
        /// The program's role in the run.
        name: String,
        /// The last line of its output.
        why: String,
    },
    /// A program's output is malformed.
    #[error("{name}: its answer cannot be read: {source}")]
    Answer {
        /// The program's role in the run.
        name: String,
        /// The position and kind of the error.
        source: serde_json::Error,
    },
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

impl ProcessError {
    /// Returns whether what its user wrote is at fault, and not what the host lacks.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        match self {
            Self::Topology { .. } => true,
            Self::Lab(error) => error.is_of_configuration(),
            _ => false,
        }
    }
}
