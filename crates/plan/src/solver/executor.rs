//! Executors of independent pieces of work: one after another, or several in parallel.
//!
//! Solvers start no threads. They divide their work into pieces and combine the results so that the
//! plan does not depend on the executor.

use std::num::NonZeroUsize;

/// A piece of work, to be run once.
pub type Piece<'p> = &'p mut (dyn FnMut() + Send);

/// An executor of pieces of work.
pub trait Executor: Sync {
    /// Returns how many pieces may run in parallel: at least one.
    fn parallelism(&self) -> NonZeroUsize;

    /// Runs every piece once, in any order, and returns when all are done.
    fn work_off(&self, pieces: &mut [Piece<'_>]);
}

/// An executor that runs one piece after another.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneByOne;

impl Executor for OneByOne {
    fn parallelism(&self) -> NonZeroUsize {
        NonZeroUsize::MIN
    }

    fn work_off(&self, pieces: &mut [Piece<'_>]) {
        pieces.iter_mut().for_each(|piece| piece());
    }
}

/// Runs `work` for each item on the executor.
pub(super) fn each<T: Send>(
    executor: &dyn Executor,
    items: &mut [T],
    work: impl Fn(&mut T) + Sync,
) {
    let work = &work;
    let mut closures: Vec<_> = items.iter_mut().map(|item| move || work(item)).collect();
    let mut pieces: Vec<Piece<'_>> = Vec::with_capacity(closures.len());
    pieces.extend(closures.iter_mut().map(|closure| closure as Piece<'_>));
    executor.work_off(&mut pieces);
}
