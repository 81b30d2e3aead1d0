//! Errors of the agent.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tradewind_net::NetError;
use tradewind_stream::StreamError;
use tradewind_units::HostId;

use crate::link::LinkError;

/// The reason why an agent ends, or does not start, in one line.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A file cannot be read or written, or is malformed.
    #[error("{}: {problem}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The problem, and what would be right.
        problem: String,
    },
    /// Another agent runs in this folder.
    #[error("{}: another agent runs here", .0.display())]
    Running(PathBuf),
    /// The folder has joined another controller.
    #[error(
        "{}: `{host}` of another controller, {controller}, lives here; give another `--dir`, or \
         remove the folder", dir.display()
    )]
    OfAnother {
        /// The folder.
        dir: PathBuf,
        /// The host's name there.
        host: HostId,
        /// The controller's address.
        controller: SocketAddr,
    },
    /// The folder has not joined a controller.
    #[error("{}: has joined no controller yet: `tradewind agent join INVITE`", .0.display())]
    NotJoined(PathBuf),
    /// The controller is not reached, or refuses.
    #[error("controller {controller}: {error}")]
    Link {
        /// Its address.
        controller: SocketAddr,
        /// The reason.
        error: LinkError,
    },
    /// The kernel refuses something.
    #[error(transparent)]
    Net(#[from] NetError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// No runtime, signal handler or entropy is to be had.
    #[error("{what}: {error}")]
    System {
        /// The attempted action.
        what: &'static str,
        /// The reason.
        error: io::Error,
    },
}

impl AgentError {
    /// Returns whether a file or argument is to blame, so that another attempt is in vain.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        match self {
            Self::File { .. } | Self::OfAnother { .. } | Self::NotJoined(_) => true,
            // It does not take the invite.
            Self::Link { error: LinkError::Refused { status, .. }, .. } => *status < 500,
            _ => false,
        }
    }

    pub(crate) fn file(file: &Path, problem: impl std::fmt::Display) -> Self {
        Self::File { file: file.to_owned(), problem: problem.to_string() }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { what, error }
    }
}
