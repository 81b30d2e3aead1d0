//! The controller's agent on one host: it joins, fetches signed documents, runs the processes of
//! the data plane that they ask for, measures, and reports.
//!
//! Traffic never waits for it: processes are their own, and run on while the agent is away, be it
//! ended, killed or upgraded. An agent that starts finds them again by their arguments.
//!
//! | module | holds |
//! |---|---|
//! | [`home`] | the agent's folder: keys, the last document, configurations |
//! | [`mod@join`] | joining by an invite |
//! | [`mod@leave`] | leaving the controller |
//! | [`mod@run`] | the loop: fetch, check, apply, measure, report |
//! | [`link`] | the requests to the controller |
//! | [`supervise`] | the processes |
//! | [`probes`] | measurements |
//! | [`passive`] | what connections to neighbours show of their legs |
//! | [`sessions`] | tallies of the sessions that gateways and relays end |
//! | `relayed` | those of relays |
//! | `metrics` | what processes say of themselves: open sessions, bytes, configuration, health |
//! | [`spend`] | what the host has sent today |
//! | [`learners`] | what the processes learn of initial windows |
//! | [`backoff`] | pauses between attempts |

pub mod backoff;
mod error;
pub mod home;
pub mod join;
pub mod learners;
pub mod leave;
pub mod link;
mod metrics;
pub mod packets;
pub mod passive;
pub mod probes;
mod relayed;
pub mod run;
pub mod sessions;
pub mod spend;
pub mod supervise;
mod trouble;

pub use error::AgentError;
pub use home::{Home, Membership, Status};
pub use join::join;
pub use leave::leave;
pub use run::{Options, run};

/// The version of the agent's program, as it reports it.
pub const AGENT_VERSION: &str = env!("CARGO_PKG_VERSION");
