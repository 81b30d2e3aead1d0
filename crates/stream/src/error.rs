//! The errors for which a relay or gateway does not start.

use std::io;
use std::path::PathBuf;

use tradewind_config::ConfigError;
use tradewind_grant::GrantError;
use tradewind_net::NetError;
use tradewind_net::tcp::OptionError;
use tradewind_telemetry::TelemetryError;

/// The reason that a relay or gateway did not start. Later failures of sessions are logged and
/// counted.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file of the secret identity cannot be read.
    #[error("identity file {}: {problem}", path.display())]
    IdentityFile {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
    /// The file of revocations cannot be taken over.
    #[error("revocations {}: {problem}", path.display())]
    Revocations {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
    /// The gateway's grant is not for this gateway.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// A listener could not be opened, or an option of sockets is refused.
    #[error("{}: {}", .0.option, crate::failure::plain(&.0.source))]
    Listen(#[from] OptionError),
    /// Rules of the kernel could not be set.
    #[error(transparent)]
    Rules(#[from] NetError),
    /// This process's identity cannot be used for encrypted legs.
    #[error("TLS: {0}")]
    Tls(String),
    /// Another part of the process cannot apply a changed configuration.
    #[error("{0}")]
    Beside(String),
    /// A thread or its runtime could not be started.
    #[error("cannot start a thread: {}", crate::failure::plain(.0))]
    Runtime(#[source] io::Error),
    /// The previous process, or systemd, passed something that this one cannot take over.
    #[error("cannot take over: {}", crate::failure::plain(.0))]
    InheritedSockets(#[source] io::Error),
    /// The output of an access log or audit log cannot be opened.
    #[error("{name} log {to}: {}", crate::failure::plain(.cause))]
    LogTarget {
        /// The name of the log.
        name: &'static str,
        /// The output that its lines should go to.
        to: String,
        /// The system's error.
        cause: io::Error,
    },
    /// The process may have too few descriptors for its listeners.
    #[error(
        "{limit} descriptors are too few: {addresses} listeners of {workers} workers each take \
         {used}, and none is left for sessions; raise the limit (ulimit -n) or lower `workers`"
    )]
    Descriptors {
        /// The limit of the process.
        limit: usize,
        /// The number that the listeners take.
        used: usize,
        /// Addresses that are listened on.
        addresses: usize,
        /// Threads, each with listeners of its own.
        workers: usize,
    },
    /// A worker ended before the shutdown.
    #[error("worker {0} ended by a bug; see the log")]
    Worker(usize),
    /// The telemetry port could not be opened.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
}

impl StreamError {
    /// Returns true if the configuration, or a file that it names, is at fault, and not the host,
    /// which may lack a free port or a right.
    #[must_use]
    pub fn is_of_configuration(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::IdentityFile { .. }
            | Self::Revocations { .. }
            | Self::Grant(_)
            | Self::LogTarget { .. } => true,
            Self::Listen(refused) => refused.is_unknown(),
            Self::Telemetry(error) => error.is_of_configuration(),
            _ => false,
        }
    }
}

/// Returns the error of a key of the configuration.
pub fn refused(key: impl Into<String>, problem: impl Into<String>) -> StreamError {
    ConfigError::new(key, problem).into()
}
