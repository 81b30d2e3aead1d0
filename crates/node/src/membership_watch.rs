//! Reads the file of members again when it changes, while a node runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tradewind_net::periodic::Periodic;
use tradewind_units::Duration;

use crate::NodeError;
use crate::mailbox::{Command, CommandQueue};
use crate::membership::Members;

/// Interval of the checks of the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Returns metadata that change when a file is written.
fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// The thread that checks the file while the node runs; a file that cannot be read changes nothing.
#[derive(Debug)]
pub(crate) struct MembershipWatch {
    _looks: Periodic,
}

impl MembershipWatch {
    /// Begins to watch for a node whose only worker is at `commands`, if it has a file.
    pub(crate) fn of(
        file: Option<&Path>,
        commands: Option<&Arc<CommandQueue>>,
    ) -> Result<Option<Self>, NodeError> {
        let (Some(file), Some(commands)) = (file, commands) else { return Ok(None) };
        Self::start(file.to_owned(), Arc::clone(commands)).map(Some)
    }

    /// Reads the file, and has the worker notified of each change.
    fn start(file: PathBuf, commands: Arc<CommandQueue>) -> Result<Self, NodeError> {
        let mut seen = stamp(&file);
        commands.send(Command::Members(Box::new(Members::read(&file)?)));
        let look = move || {
            let now = stamp(&file);
            if now != seen {
                seen = now;
                match Members::read(&file) {
                    Ok(members) => commands.send(Command::Members(Box::new(members))),
                    Err(error) => tracing::warn!(%error, "members stay as they were"),
                }
            }
        };
        Ok(Self { _looks: Periodic::start("members", LOOK_EVERY, look)? })
    }
}
