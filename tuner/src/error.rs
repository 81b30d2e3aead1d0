//! Why a jump-start daemon did not start, ended, or did not answer.

use std::io;
use std::path::PathBuf;

use tradewind_jumpstart::ConfigError;
use tradewind_net::NetError;
use tradewind_telemetry::TelemetryError;

/// What is wrong in a file, and where.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct Mistake {
    /// The key, or the line.
    pub place: String,
    /// What is wrong there.
    pub problem: String,
}

/// What a caller can tell apart.
#[derive(Debug, thiserror::Error)]
pub enum TunerError {
    /// The configuration cannot be read.
    #[error("configuration, {0}")]
    Config(#[from] Mistake),
    /// A setting of `[learn]` makes no sense.
    #[error("configuration, `learn`: {0}")]
    Learn(#[from] ConfigError),
    /// The mode paces, and what it would act through cannot.
    #[error(
        "mode `strict` paces every jump (RFC 9959 asks for it), and routes cannot: use mode `riptide` or `paced`, or act through `sockops` or `none`"
    )]
    NeedsPacing,
    /// Only some connections are meant, and what it would act through takes all.
    #[error(
        "`act.cgroup`: routes hold for all connections of the host, not for those of {} alone: act through `sockops` or `none`", .0.display()
    )]
    NeedsSockops(PathBuf),
    /// The right to act is missing.
    #[error(
        "routes cannot be changed without the capability CAP_NET_ADMIN; `--dry-run` learns and shows without it"
    )]
    NoRight,
    /// Another daemon has the control socket.
    #[error("{}: another process's jump-start answers there: give one of them another `socket`", .0.display())]
    Running(PathBuf),
    /// No daemon answers.
    #[error("{}: no jump-start daemon answers ({source})", path.display())]
    NoDaemon {
        /// The control socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Whether one is there is not known, or it does not answer.
    #[error("{}: the jump-start daemon cannot be asked ({source})", path.display())]
    Unanswered {
        /// The control socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The control socket cannot be made.
    #[error("control socket {}: {source}", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The control socket has a kill switch's name.
    #[error(
        "control socket {}: a name that ends in `.off` is a kill switch's: take another, such as `jumpstart.sock`", .0.display()
    )]
    SwitchName(PathBuf),
    /// The thread of a process's own learner cannot be started, or ended at once.
    #[error("the thread of jump-start: {0}")]
    Thread(#[source] io::Error),
    /// The kill switch cannot be turned.
    #[error("kill switch {}: {source}", path.display())]
    Switch {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel refused.
    #[error(transparent)]
    Net(#[from] NetError),
    /// Metrics cannot be served.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
}
