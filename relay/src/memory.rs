//! How much sessions may hold that one side has given and the other has not taken.
//!
//! A read learns only afterwards that the other side takes nothing, so the limit is kept before it: a read may
//! take a part of what is still free, and always a little, so that no session stands still. Room for that
//! little is set aside for every session, which is why a limit of memory bounds their number as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What every read may take. Chosen: an ordinary request or answer.
const ALWAYS: usize = 4096;

/// What is set aside for a session: [`ALWAYS`] in each direction, its task, and its head while it opens.
pub(crate) const SET_ASIDE: usize = 16 << 10;

/// A read takes this part of what is free at most, so that readers at the same time stay within it.
const PART: usize = 16;

/// What all sessions share beyond what is set aside for each.
#[derive(Debug)]
pub(crate) struct Memory {
    shared: usize,
    held: AtomicUsize,
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Memory {
    /// The sessions that `limit` bytes allow: half is set aside for them, half is shared.
    pub(crate) const fn sessions(limit: usize) -> usize {
        limit / 2 / SET_ASIDE
    }

    /// What is left of `limit` bytes when `sessions` have theirs set aside.
    pub(crate) fn new(limit: usize, sessions: usize) -> Arc<Self> {
        let shared = limit.saturating_sub(sessions * SET_ASIDE);
        Arc::new(Self { shared, held: AtomicUsize::new(0) })
    }

    /// Most bytes that one read may take now.
    pub(crate) fn most(&self) -> usize {
        (self.free() / PART).max(ALWAYS)
    }

    /// Bytes that are not held now.
    pub(crate) fn free(&self) -> usize {
        self.shared.saturating_sub(self.held.load(Relaxed))
    }

    /// Whether there is nothing left but what was set aside: a session that holds something is to wait.
    pub(crate) fn is_short(&self) -> bool {
        self.most() <= ALWAYS
    }

    /// Bytes that wait now.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Counts `bytes` that wait.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.held.fetch_add(bytes, Relaxed);
        Held { memory: Arc::clone(self), bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.held.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_in_turn_never_hold_more_than_the_limit() {
        let limit = 1 << 20;
        let sessions = Memory::sessions(limit);
        assert_eq!(sessions, 32);
        let memory = Memory::new(limit, sessions);
        let held: Vec<_> = (0..2 * sessions).map(|_| memory.hold(memory.most())).collect();
        let overhead = sessions * (SET_ASIDE - 2 * ALWAYS);
        assert!(memory.held() + overhead <= limit, "{} held", memory.held());
        assert_eq!(memory.most(), ALWAYS, "what is left is what was set aside");
        assert!(memory.is_short());
        drop(held);
        assert_eq!(memory.held(), 0);
        assert!(!memory.is_short());
    }
}
