//! Who does pieces of work that do not depend on each other: one after another, or several at a
//! time.
//!
//! Solvers start no threads. They cut their work into pieces and put what comes of them together so
//! that the plan does not depend on the crew.

use std::num::NonZeroUsize;

/// A piece of work, to be done once.
pub type Piece<'p> = &'p mut (dyn FnMut() + Send);

/// Someone who does pieces of work.
pub trait Executor: Sync {
    /// How many pieces may be done at a time: one at least.
    fn hands(&self) -> NonZeroUsize;

    /// Does every piece once, in any order, and comes back when all are done.
    fn work_off(&self, pieces: &mut [Piece<'_>]);
}

/// Does one piece after another.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneByOne;

impl Executor for OneByOne {
    fn hands(&self) -> NonZeroUsize {
        NonZeroUsize::MIN
    }

    fn work_off(&self, pieces: &mut [Piece<'_>]) {
        pieces.iter_mut().for_each(|piece| piece());
    }
}

/// Has the crew do `work` for each item.
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
