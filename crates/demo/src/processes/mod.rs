//! Work on the lab's hosts, and transfers between them: what the demo and the papers' experiments
//! share.
//!
//! A [`LabContext`] is a lab with a scratch directory. Data moves over plain sockets ([`carry`]).
//!
//! | module | holds |
//! |---|---|
//! | [`scratch`] | the directory of a run, and why a program failed |
//! | [`carry`] | one volume pushed over one connection, timed and verified |

pub mod carry;
mod error;
pub mod scratch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tradewind_lab::{Lab, LabOptions};
use tradewind_net::counters::TcpCounters;
use tradewind_units::{Duration, HostId};
use tradewind_wan::Topology;

use carry::STOP_CHECK;
pub use error::ProcessError;
use scratch::Scratch;

/// A flag that ends a run from outside.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks the run to end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the run was asked to end.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Checks whether the run may go on.
    ///
    /// # Errors
    /// When the run was asked to end.
    pub fn check(&self) -> Result<(), ProcessError> {
        if self.is_set() { Err(ProcessError::Stopped) } else { Ok(()) }
    }
}

/// A running lab and the common context of all programs on it. Programs that were started on it
/// must be dropped before it.
pub struct LabContext {
    /// The hosts and the network between them.
    pub lab: Lab,
    /// The directory of keys, configurations and logs.
    pub scratch: Scratch,
    /// The binary `tradewind`.
    pub program: PathBuf,
    /// The stop request.
    pub stop: Stop,
}

impl LabContext {
    /// Starts a lab of `topology`.
    ///
    /// # Errors
    /// When the lab cannot start.
    pub fn start(
        topology: &Topology,
        options: &LabOptions,
        program: &Path,
        stop: &Stop,
    ) -> Result<Self, ProcessError> {
        let scratch = Scratch::new()?;
        let lab = Lab::start(topology, options)?;
        Ok(Self { lab, scratch, program: program.to_owned(), stop: stop.clone() })
    }

    /// Waits for `span`.
    ///
    /// # Errors
    /// When the run is stopped.
    pub fn wait(&self, span: Duration) -> Result<(), ProcessError> {
        let end = Instant::now() + span;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.stop.check()?;
            std::thread::sleep(left.min(STOP_CHECK));
        }
        Ok(())
    }

    /// Returns TCP's counters of `host` since the lab's start, over all its connections.
    ///
    /// # Errors
    /// When the host does not exist, or its counters cannot be read.
    pub fn tcp_counters(&self, host: &HostId) -> Result<TcpCounters, ProcessError> {
        let read = self.lab.enter(host, tradewind_net::counters::tcp_counters)?;
        Ok(read.map_err(tradewind_lab::LabError::from)?)
    }
}

/// Returns the path of the running `tradewind` binary.
///
/// # Errors
/// When the system does not know it.
pub fn this_program() -> Result<PathBuf, ProcessError> {
    std::env::current_exe()
        .map_err(|source| ProcessError::File { path: Path::new("/proc/self/exe").into(), source })
}
