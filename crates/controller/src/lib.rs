//! The controller: the control plane of [`tradewind_control`] on sockets, with a store on disk.
//!
//! Each event is decided by the pure state machine, stored, applied, then answered. Agents dial one
//! listener, operators another.
//!
//! | module | holds |
//! |---|---|
//! | [`folder`] | the folder with keys, settings and store |
//! | [`store`] | the store in SQLite, backups, the history of measurements |
//! | `engine` | the state machine and the store as one |
//! | `agents` | the listener for agents |
//! | `links` | the connections of agents, and which are not heard |
//! | `api` | the listener for operators |
//! | `listener`, `answer` | what both have of HTTP |
//! | [`view`] | the bodies of the operators' API |
//! | [`client`] | its client, for commands |
//! | `planning` | the planner |
//! | [`changes`] | changes of what operators see, by kind |
//! | `host_state` | the state of a host, as operators see it |
//! | `metrics` | counters and figures for a metrics port |
//! | [`server`] | the whole, running |
//! | [`error`] | errors at the start |

mod agents;
mod answer;
mod api;
mod asking;
pub mod changes;
pub mod client;
mod engine;
pub mod error;
pub mod folder;
mod host_state;
mod links;
mod listener;
mod metrics;
mod planning;
pub mod server;
pub mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod view;

pub use api::document as openapi;
pub use client::{Client, ClientError};
pub use error::ControllerError;
pub use folder::Folder;
pub use planning::Threads;
pub use server::Server;
pub use tradewind_dashboard::is_built as has_dashboard;
