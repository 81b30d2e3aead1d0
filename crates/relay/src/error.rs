//! Why a relay or gateway did not start.

use std::io;
use std::path::PathBuf;

use tradewind_grant::GrantError;
use tradewind_net::NetError;
use tradewind_net::tcp::OptionError;
use tradewind_telemetry::TelemetryError;

/// Why a relay or gateway did not start. What befalls a session later is logged and counted.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The configuration makes no sense.
    #[error("configuration, {place}: {problem}")]
    Config {
        /// The key, or the line.
        place: String,
        /// What is wrong there, and what would be right.
        problem: String,
    },
    /// The file of the secret identity cannot be read.
    #[error("identity file {}: {problem}", path.display())]
    IdentityFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The file of revocations cannot be taken over.
    #[error("revocations {}: {problem}", path.display())]
    Revocations {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
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
    /// Another part of the process cannot take a changed configuration over.
    #[error("{0}")]
    Beside(String),
    /// A thread or its runtime could not be started.
    #[error("cannot start a thread: {}", crate::failure::plain(.0))]
    Runtime(#[source] io::Error),
    /// The process before this one, or systemd, left something that this one can not take over.
    #[error("cannot take over: {}", crate::failure::plain(.0))]
    InheritedSockets(#[source] io::Error),
    /// The output of an access log or audit log cannot be opened.
    #[error("{name} log {to}: {}", crate::failure::plain(.cause))]
    LogTarget {
        /// Which log.
        name: &'static str,
        /// Where its lines should go.
        to: String,
        /// The system's answer.
        cause: io::Error,
    },
    /// The process may have too few descriptors for what it listens on.
    #[error(
        "{limit} descriptors are too few: {addresses} listeners of {workers} workers each take \
         {taken}, and none is left for sessions; raise the limit (ulimit -n) or lower `workers`"
    )]
    Descriptors {
        /// What the process may have.
        limit: usize,
        /// What the listeners take.
        taken: usize,
        /// Addresses that are listened on.
        addresses: usize,
        /// Threads, each with listeners of its own.
        workers: usize,
    },
    /// A worker ended before it was told to.
    #[error("worker {0} ended by a bug; see the log")]
    Worker(usize),
    /// The telemetry port could not be opened.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
}

impl RelayError {
    /// Returns whether what its user wrote is at fault: the configuration, or a file that it names.
    /// What the host lacks, such as a free port or a right, is not.
    #[must_use]
    pub fn is_of_configuration(&self) -> bool {
        match self {
            Self::Config { .. }
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
