//! The parts that all experiments share: options, scenarios, repeats, records, and work on the
//! lab's hosts. No experiment is imported here.
//!
//! An experiment on the lab starts a `LabContext`, puts relays, gateways and forwarders on its
//! hosts (`service`, `chain`), moves data over plain sockets (`carry` pushes a volume,
//! `fetch` downloads a file), and checks for each transfer that the lab kept time (`checked`).
//! That is a repeat; `repeats` runs them, and keeps complete ones. A numeric experiment repeats
//! its work for each seed (`seeds`).
//!
//! | module | holds |
//! |---|---|
//! | `experiment` | an experiment, its built-in scenario and the files that name each other |
//! | `options` | options of a run |
//! | `error` | the reasons why there is no record |
//! | `record` | results as data |
//! | `seeds` | numeric repeats over successive seeds |
//! | `random` | draws from a seed |
//! | `statistics` | means, quantiles, correlations |
//! | `parallel` | work items processed by several threads |
//! | `repeats` | repeats on the lab over successive seeds, and early ends |
//! | `checked` | validity of measurements, and their repetition |
//! | `planning` | plans by one or several algorithms |
//! | `process` | services and commands on hosts, their files and logs |
//! | `service` | relays and gateways as processes, with keys and grants |
//! | `chain` | a chain between two hosts: direct, over forwarding or over splitting relays |
//! | `forwarders` | forwarding relays, and HAProxy for comparison |
//! | `fetch` | files served and fetched over a chain, timed and verified |
//! | `exchange` | many concurrent files, with both ends of each connection in one process |
//! | `packets` | relays and gateways that carry datagrams |
//! | `watch` | bytes over time on one link, during other work |
//! | `listeners` | readiness of foreign programs |

pub(crate) mod chain;
pub(crate) mod checked;
mod error;
pub(crate) mod exchange;
mod experiment;
pub(crate) mod fetch;
mod forwarders;
pub(crate) mod listeners;
mod options;
pub(crate) mod packets;
pub(crate) mod parallel;
pub(crate) mod planning;
pub(crate) mod process;
pub(crate) mod random;
mod record;
pub(crate) mod repeats;
pub(crate) mod seeds;
pub(crate) mod service;
mod statistics;
pub(crate) mod watch;

use std::sync::OnceLock;

use tradewind_model::Catalogue;
use tradewind_units::{Duration, HostId};
use tradewind_wan::Topology;

pub(crate) use tradewind_demo::processes::{LabContext, carry};
pub use tradewind_demo::processes::{ProcessError, Stop};
pub use tradewind_demo::scenario::ScenarioError;
pub(crate) use tradewind_demo::scenario::from_toml;
pub use tradewind_output::progress::Observer;

pub use error::{ExperimentError, NumericError};
pub use experiment::Experiment;
pub(crate) use experiment::{Environment, missing, read_text, within};
pub use options::RunOptions;
pub use random::Random;
pub use record::{Figure, Finding, Record, Row, SCHEMA_VERSION, Spot};
pub use seeds::{Job, Runs};
pub(crate) use statistics::{correlation, mean, quantile};

/// Returns the error of a part of a run that cannot be used, such as a configuration.
pub(crate) fn unusable(what: &str, error: &impl std::fmt::Display) -> ProcessError {
    ProcessError::Program { name: what.to_owned(), why: error.to_string() }
}

/// Returns the built-in catalogue, read once.
pub(crate) fn catalogue() -> &'static Catalogue {
    static BUILTIN: OnceLock<Catalogue> = OnceLock::new();
    BUILTIN.get_or_init(Catalogue::builtin)
}

/// Returns the round trip between two hosts of a topology, without queueing.
///
/// # Panics
/// When a host does not exist: scenarios are checked when they are read.
pub(crate) fn round_trip(topology: &Topology, a: &HostId, b: &HostId) -> Duration {
    let site = |host| {
        let index = topology.host(host).expect("the scenario was checked");
        topology.hosts[usize::from(index.0)].site
    };
    let (a, b) = (site(a), site(b));
    topology.pair(a, b).delay + topology.pair(b, a).delay
}
