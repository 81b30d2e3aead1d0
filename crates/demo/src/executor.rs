//! Threads for the pieces of a solver's work.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::thread;

use tradewind_plan::solver::{Executor, Piece};

/// An executor with several threads: each takes the next piece when it has finished one.
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    parallelism: NonZeroUsize,
}

impl Threads {
    /// Creates an executor with this number of threads, including the caller's.
    #[must_use]
    pub const fn new(parallelism: NonZeroUsize) -> Self {
        Self { parallelism }
    }

    /// Creates an executor with a thread for each processor that this process may use.
    #[must_use]
    pub fn available() -> Self {
        Self::new(thread::available_parallelism().unwrap_or(NonZeroUsize::MIN))
    }
}

impl Executor for Threads {
    /// Returns the number of threads, including the caller's.
    fn parallelism(&self) -> NonZeroUsize {
        self.parallelism
    }

    fn work_off(&self, pieces: &mut [Piece<'_>]) {
        let others = self.parallelism.get().min(pieces.len()).saturating_sub(1);
        let left = Mutex::new(pieces.iter_mut());
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some(piece) = next() {
                piece();
            }
        };
        thread::scope(|scope| {
            for _ in 0..others {
                // If a thread cannot be started, the others do its pieces.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
    }
}
