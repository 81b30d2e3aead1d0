//! The errors of a controller at its start, and of its files.

use std::path::PathBuf;

use tradewind_stream::StreamError;

use crate::store::StoreError;

/// A reason why a controller cannot run, in one line.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A file or an argument is not valid.
    #[error("{0}")]
    Invalid(String),
    /// Something cannot be done now.
    #[error("{0}")]
    Failed(String),
    /// The folder is in use.
    #[error("{}: another controller runs with this folder", .0.display())]
    InUse(PathBuf),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stream plane's part of it failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl ControllerError {
    /// Returns whether a file or an argument is wrong, rather than the host or the moment.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        match self {
            Self::Invalid(_) => true,
            Self::Store(error) => {
                !matches!(error, StoreError::Full { .. } | StoreError::Other { .. })
            }
            Self::Failed(_) | Self::InUse(_) | Self::Stream(_) => false,
        }
    }
}
