//! The failures of a session, and the socket at which each happened.

use std::io;
use std::time::Duration;

use crate::counts::Outcome;

/// The reason that a session broke off.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
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
    /// Returns the outcome that it is counted as.
    pub(crate) const fn outcome(&self) -> Outcome {
        match self {
            Self::Idle(_) => Outcome::Idle,
            Self::Upstream(_) | Self::Downstream(_) => Outcome::Broken,
        }
    }
}

/// The failure of a direction at one of its two sockets.
#[derive(Debug)]
pub(crate) enum MoveError {
    /// At the socket that it reads.
    Taking(io::Error),
    /// At the socket that it writes.
    Giving(io::Error),
}

impl MoveError {
    /// Returns the session's failure, if the direction goes up.
    pub(crate) fn of_up(self) -> Broken {
        match self {
            Self::Taking(error) => Broken::Upstream(error),
            Self::Giving(error) => Broken::Downstream(error),
        }
    }

    /// Returns the session's failure, if the direction goes down.
    pub(crate) fn of_down(self) -> Broken {
        match self {
            Self::Taking(error) => Broken::Downstream(error),
            Self::Giving(error) => Broken::Upstream(error),
        }
    }
}
