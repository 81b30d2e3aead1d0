//! Logs, metrics, traces and health of a Tradewind process.
//!
//! | module | holds |
//! |---|---|
//! | [`log_limit`] | rate limits of log lines that others can cause |
//! | [`logs`] | log lines on standard error, as text or JSON, filtered by `TRADEWIND_LOG` |
//! | [`queue`] | lines written by a thread of their own, so that no other thread blocks |
//! | [`output`] | outputs of such lines: files that rotate, sockets of collectors |
//! | [`registry`] | the process's metrics, in the OpenMetrics text form |
//! | [`spans`] | spans sent to a collector of OpenTelemetry |
//! | [`process`] | a process's own figures: memory, CPU, descriptors |
//! | [`health`] | liveness and readiness of the process |
//! | [`server`] | `/metrics`, `/healthz` and `/readyz` on a port and a thread of their own |
//!
//! The server runs apart from everything else: a flood of scrapes, garbage or endless requests cost
//! the data plane nothing but a share of one core.

pub mod health;
pub mod log_limit;
pub mod logs;
pub mod output;
pub mod process;
pub mod queue;
pub mod registry;
pub mod server;
pub mod spans;

pub use health::{Health, Heart};
pub use log_limit::LogLimit;
pub use logs::{LogFormat, flush_logs, init_logs};
pub use opentelemetry_proto::tonic as otlp;
pub use prometheus_client as client;
pub use queue::{LineOutput, LineQueue};
pub use registry::Registry;
pub use server::{DEFAULT_ADDRESS, Server, serve, serve_on};
pub use spans::{SpanExporter, TraceCollector};
#[doc(hidden)]
pub use tracing;

use std::net::SocketAddr;

/// The reason why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The log format's name is unknown.
    #[error("log format: `text` or `json`, not `{0}`")]
    LogFormat(String),
    /// A filter directive cannot be read.
    #[error(
        "log filter {origin}: directives such as `info` or `warn,tradewind_stream=debug`, \
         not `{value}`: {cause}"
    )]
    LogFilter {
        /// Origin of the filter: the environment variable or the caller.
        origin: &'static str,
        /// The filter as given.
        value: String,
        /// The parser's message.
        cause: String,
    },
    /// Logs were set up before in this process.
    #[error("logs are already set up in this process")]
    LogsTwice,
    /// The telemetry port cannot be opened.
    #[error("telemetry cannot listen on {address}: {cause}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The telemetry thread or its runtime cannot be started.
    #[error("telemetry cannot start its thread: {0}")]
    Thread(std::io::Error),
}

impl TelemetryError {
    /// Returns whether what its user wrote is at fault: the format of a log or its filter.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        matches!(self, Self::LogFormat(_) | Self::LogFilter { .. })
    }
}
