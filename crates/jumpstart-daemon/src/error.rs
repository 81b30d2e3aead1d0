//! Errors of a jump-start daemon: at its start, while it runs, and when it is asked.

use std::io;
use std::path::PathBuf;

use tradewind_config::ConfigError;
use tradewind_net::NetError;
use tradewind_telemetry::TelemetryError;

/// Errors that a caller can tell apart.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A setting of `[learn]` makes no sense.
    #[error("configuration, `learn`: {0}")]
    Learn(#[from] tradewind_jumpstart::ConfigError),
    /// The mode paces, and the configured actuator cannot.
    #[error(
        "mode `strict` paces every jump (RFC 9959 asks for it), and routes cannot: \
         use mode `riptide` or `paced`, or act through `sockops` or `none`"
    )]
    NeedsPacing,
    /// Only some connections are meant, and the configured actuator applies to all.
    #[error(
        "`act.cgroup`: routes hold for all connections of the host, not for those of {} alone: \
         act through `sockops` or `none`", .0.display()
    )]
    NeedsSockops(PathBuf),
    /// The capability to act is missing.
    #[error(
        "routes cannot be changed without the capability CAP_NET_ADMIN; \
         `--dry-run` learns and shows without it"
    )]
    NoRight,
    /// Another daemon has the control socket.
    #[error(
        "{}: another process's jump-start answers there: give one of them another `socket`",
        .0.display()
    )]
    Running(PathBuf),
    /// No daemon answers.
    #[error("{}: no jump-start daemon answers ({source})", path.display())]
    NoDaemon {
        /// The control socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A daemon may be there, but cannot be asked, or does not answer.
    #[error("{}: the jump-start daemon cannot be asked ({source})", path.display())]
    Unanswered {
        /// The control socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The control socket cannot be created.
    #[error("control socket {}: {source}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The control socket has a kill switch's name.
    #[error(
        "control socket {}: a name that ends in `.off` is a kill switch's: \
         take another, such as `jumpstart.sock`", .0.display()
    )]
    SwitchName(PathBuf),
    /// The thread of a process's own learner cannot be started, or ended at once.
    #[error("the thread of jump-start: {0}")]
    Thread(#[source] io::Error),
    /// The kill switch cannot be changed.
    #[error("kill switch {}: {source}", path.display())]
    Switch {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel refused.
    #[error(transparent)]
    Net(#[from] NetError),
    /// Metrics cannot be served.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
}

impl DaemonError {
    /// Returns whether what its user wrote is at fault, and not what the host lacks.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::Learn(_)
            | Self::NeedsPacing
            | Self::NeedsSockops(_)
            | Self::SwitchName(_) => true,
            Self::Telemetry(error) => error.is_of_configuration(),
            _ => false,
        }
    }
}
