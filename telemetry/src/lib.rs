//! Logs, metrics and health of a Tradewind process.
//!
//! | module | holds |
//! |---|---|
//! | [`log_limit`] | how many lines others may cause |
//! | [`logs`] | log lines on standard error, as text or JSON, filtered by `TRADEWIND_LOG` |
//! | [`queue`] | lines written by a thread of their own, so that nobody else waits for a descriptor |
//! | [`output`] | where such lines go: files that rotate, sockets of collectors |
//! | [`registry`] | the process's metrics, in the OpenMetrics text form |
//! | [`process`] | what every process reports about itself: memory, CPU, descriptors |
//! | [`health`] | whether the process lives, and whether it is ready for traffic |
//! | [`server`] | `/metrics`, `/healthz` and `/readyz` on a port and a thread of their own |
//!
//! The server runs apart from everything else: a scrape that comes in a flood, sends garbage or
//! never ends costs the data plane nothing but a share of one core.

pub mod health;
pub mod log_limit;
pub mod logs;
pub mod output;
pub mod process;
pub mod queue;
pub mod registry;
pub mod server;

pub use health::{Health, Heart};
pub use log_limit::LogLimit;
pub use logs::{LogFormat, flush_logs, init_logs};
pub use prometheus_client as client;
pub use queue::{LineOutput, LineQueue};
pub use registry::Registry;
pub use server::{DEFAULT_ADDRESS, Server, check_exposed, serve, serve_on};
#[doc(hidden)]
pub use tracing;

use std::net::SocketAddr;

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The log format's name is unknown.
    #[error("log format: `text` or `json`, not `{0}`")]
    LogFormat(String),
    /// A filter directive cannot be read.
    #[error(
        "log filter {origin}: directives such as `info` or `warn,tradewind_relay=debug`, not `{value}`: {cause}"
    )]
    LogFilter {
        /// Where the filter came from: the environment variable or the caller.
        origin: &'static str,
        /// The filter as it was given.
        value: String,
        /// What the parser says.
        cause: String,
    },
    /// Logs were set up before in this process.
    #[error("logs are already set up in this process")]
    LogsTwice,
    /// The telemetry port cannot be opened.
    #[error("telemetry cannot listen on {address}: {cause}")]
    Listen {
        /// The address that was asked for.
        address: SocketAddr,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The telemetry thread or its runtime cannot be started.
    #[error("telemetry cannot start its thread: {0}")]
    Thread(std::io::Error),
}
