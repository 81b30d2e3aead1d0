//! Why a session broke off, and at which of its sockets.

use std::io;
use std::time::Duration;

use crate::counts::Outcome;

/// Why a session broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The side that dialled failed.
    #[error("upstream: {}", crate::failure::plain(.0))]
    Upstream(io::Error),
    /// The side that was dialled failed.
    #[error("downstream: {}", crate::failure::plain(.0))]
    Downstream(io::Error),
    /// Nothing moved for too long.
    #[error("nothing moved for {0:?}")]
    Idle(Duration),
}

impl Broken {
    /// What it is counted as.
    pub(crate) const fn outcome(&self) -> Outcome {
        match self {
            Self::Idle(_) => Outcome::Idle,
            Self::Upstream(_) | Self::Downstream(_) => Outcome::Broken,
        }
    }
}

/// Which of its two sockets a direction failed at.
#[derive(Debug)]
pub(crate) enum MoveError {
    /// The one it reads.
    Taking(io::Error),
    /// The one it writes.
    Giving(io::Error),
}

impl MoveError {
    /// As the session's, when the direction goes up.
    pub(crate) fn of_up(self) -> Broken {
        match self {
            Self::Taking(error) => Broken::Upstream(error),
            Self::Giving(error) => Broken::Downstream(error),
        }
    }

    /// As the session's, when the direction goes down.
    pub(crate) fn of_down(self) -> Broken {
        match self {
            Self::Taking(error) => Broken::Downstream(error),
            Self::Giving(error) => Broken::Upstream(error),
        }
    }
}
