//! Leaving a controller: the processes end, and nothing is left of the folder.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Instant;

use tradewind_net::processes;
use tradewind_units::Duration;

use crate::supervise::Supervisor;
use crate::{AgentError, Home};

/// Time between two looks at the processes that end.
const LOOK: Duration = Duration::from_millis(100);
/// Longest wait for processes whose sessions are cut. Chosen: they take far less.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// Tells the processes of a folder to end, and removes it. After `patience` their sessions are cut.
/// A folder that is not there is no error.
///
/// # Errors
/// When an agent runs there, processes do not end, or the folder cannot be removed.
pub fn leave(home: &Home, patience: Duration) -> Result<(), AgentError> {
    if !home.path().exists() {
        return Ok(());
    }
    let _lock = home.lock()?;
    // It starts nothing.
    let mut supervisor = Supervisor::new(home.clone(), PathBuf::new())?;
    supervisor.end_unwanted(&BTreeMap::new())?;
    if !have_ended(&supervisor, patience) {
        for running in supervisor.draining() {
            // The second request cuts sessions.
            let _gone = processes::end(running.process);
        }
        if !have_ended(&supervisor, LAST_WAIT) {
            return Err(AgentError::file(home.path(), "its processes do not end"));
        }
    }
    match fs::remove_dir_all(home.path()) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(AgentError::file(home.path(), error))
        }
        _ => Ok(()),
    }
}

/// Waits until all processes that were told to end have ended, and returns whether they have.
fn have_ended(supervisor: &Supervisor, patience: Duration) -> bool {
    let begun = Instant::now();
    while !supervisor.draining().is_empty() {
        if begun.elapsed() >= patience {
            return false;
        }
        sleep(LOOK);
    }
    true
}
