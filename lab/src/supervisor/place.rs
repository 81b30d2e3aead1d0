//! Where a user's lab is found.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tradewind_net::capability;

use crate::error::LabError;

/// The directory that holds the lab's socket, state file and log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    directory: PathBuf,
}

impl Place {
    /// The calling user's: `/run/tradewind` for root, else `$XDG_RUNTIME_DIR/tradewind`, else a
    /// directory of the user's own under `/tmp`. To be asked before entering a user namespace, in
    /// which everybody is root.
    #[must_use]
    pub fn of_this_user() -> Self {
        let user = capability::user_id();
        let directory = match std::env::var_os("XDG_RUNTIME_DIR") {
            _ if user == 0 => PathBuf::from("/run/tradewind"),
            Some(runtime) => PathBuf::from(runtime).join("tradewind"),
            None => PathBuf::from(format!("/tmp/tradewind-{user}")),
        };
        Self { directory }
    }

    /// A directory of choice.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The socket on which the lab's process answers.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.join("lab.sock")
    }

    /// What was last started, as JSON.
    #[must_use]
    pub fn state_file(&self) -> PathBuf {
        self.directory.join("lab.json")
    }

    /// What the lab's process had to say.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        self.directory.join("lab.log")
    }

    /// Makes the directory, for its owner alone.
    pub(crate) fn prepare(&self) -> Result<(), LabError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        made.map_err(|source| LabError::File { path: self.directory.clone(), source })
    }

    /// Takes the socket and the state file away.
    pub(crate) fn sweep(&self) {
        for path in [self.socket(), self.state_file()] {
            // What is not there needs no sweeping.
            let _ = fs::remove_file(path);
        }
    }
}
