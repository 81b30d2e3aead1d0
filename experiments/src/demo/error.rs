//! Why a demo ended early.

use std::path::PathBuf;

use tradewind_desired::DesiredError;
use tradewind_grant::GrantError;
use tradewind_lab::LabError;
use tradewind_plan::{ProblemError, SolveError};
use tradewind_units::{SiteId, UnitError};
use tradewind_wan::TopologyError;

use super::knowledge::KnowledgeError;
use crate::lab_run::carry::CarryError;

/// Why a demo ended early.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// It was told to.
    #[error("stopped on request; nothing was left behind")]
    Stopped,
    /// The topology was refused.
    #[error("{file}: {source}")]
    Topology {
        /// Its name in the scenario.
        file: String,
        /// What is wrong in it.
        source: TopologyError,
    },
    /// A place of the scenario is not in its topology.
    #[error("line {line}: `{place}` has no host of its name in {file}")]
    NoHost {
        /// The line of the scenario on which it is named.
        line: usize,
        /// The site or region.
        place: SiteId,
        /// The topology.
        file: String,
    },
    /// The lab.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A file or directory.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The system's entropy.
    #[error("no entropy for keys: {0}")]
    Entropy(#[from] std::io::Error),
    /// A program could not be started or waited for.
    #[error("{name}: cannot run it: {source}")]
    Start {
        /// What it is to the demo.
        name: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A program ended badly.
    #[error("{name}: {why}")]
    Program {
        /// What it is to the demo.
        name: String,
        /// Its own last word.
        why: String,
    },
    /// A program's answer makes no sense.
    #[error("{name}: its answer cannot be read: {source}")]
    Answer {
        /// What it is to the demo.
        name: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// Measurements that make no legs.
    #[error("measurements: {0}")]
    Knowledge(#[from] KnowledgeError),
    /// The problem was refused.
    #[error("problem: {0}")]
    Problem(#[from] ProblemError),
    /// No plan was found.
    #[error("no plan: {0}")]
    Solve(#[from] SolveError),
    /// The verifier objects to a plan: a solver's bug.
    #[error("the plan does not hold: {0}")]
    Plan(String),
    /// A plan that cannot be compiled to routes.
    #[error("routes: {0}")]
    Desired(#[from] DesiredError),
    /// A configuration that cannot be written.
    #[error("configuration: {0}")]
    Config(#[from] toml::ser::Error),
    /// Keys and grants.
    #[error("grant: {0}")]
    Grant(#[from] GrantError),
    /// A name that is none.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// A transfer broke off.
    #[error("flow {flow}: {source}")]
    Carry {
        /// The flow and its way.
        flow: String,
        /// Why.
        source: CarryError,
    },
}
