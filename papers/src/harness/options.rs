//! Options of a run.

use std::path::PathBuf;

use tradewind_demo::processes::Stop;

/// Options of a run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Another scenario than the built-in one.
    pub scenario: Option<PathBuf>,
    /// A CSV table of measured RTTs, for experiments that take one.
    pub rtt: Option<PathBuf>,
    /// Seed of the first repeat; the scenario's when absent.
    pub seed: Option<u64>,
    /// Number of repeats, each with the next seed; the scenario's number when absent, or one.
    pub repeat: Option<u32>,
    /// True to shorten the run, so that it ends within 45 s (on the lab: each repeat).
    pub quick: bool,
    /// True to run one part alone, on the lab, to see that it runs: its record holds no figure.
    pub first_part: bool,
    /// The binary `tradewind`, for processes on hosts of the lab.
    pub program: PathBuf,
    /// Set from outside to end the run.
    pub stop: Stop,
}

#[cfg(test)]
impl RunOptions {
    /// Returns the options of one plain run.
    pub(crate) fn of_tests() -> Self {
        Self {
            scenario: None,
            rtt: None,
            seed: None,
            repeat: None,
            quick: false,
            first_part: false,
            program: PathBuf::new(),
            stop: Stop::default(),
        }
    }
}
