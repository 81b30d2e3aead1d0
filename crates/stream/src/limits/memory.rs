//! The limit of bytes that sessions hold: read from one side and not yet written to the other.
//!
//! Only after a read is it known that the other side takes nothing, so the limit is applied before:
//! a read may take a part of what is still free, and always a little, so that no session stalls.
//! Room for that little is set aside for every session, which is why a memory limit bounds their
//! number as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tradewind_units::Bytes;

/// Bytes that every read may take. Chosen: an ordinary request or answer.
const ALWAYS: usize = 4096;

/// Bytes set aside for a session: [`ALWAYS`] in each direction, its task, and its head while it
/// opens.
pub(crate) const SET_ASIDE: usize = 16 << 10;

/// The divisor of the free bytes that one read takes at most, so that concurrent reads stay within
/// them.
const PART: usize = 16;

/// The bytes that all sessions, or those of one grant or source, share beyond what is set aside for
/// each.
#[derive(Debug)]
pub struct Memory {
    shared: AtomicUsize,
    held: AtomicUsize,
    /// Further limits on the same sessions.
    above: Vec<Arc<Self>>,
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Memory {
    /// Returns the number of sessions that `limit` allows: half is set aside for them, half is
    /// shared.
    pub(crate) fn sessions(limit: Bytes) -> usize {
        in_memory(limit) / 2 / SET_ASIDE
    }

    /// Creates the shared rest of `limit` when `sessions` have theirs set aside.
    pub(crate) fn new(limit: Bytes, sessions: usize) -> Arc<Self> {
        Self::sharing(shared_of(Some(limit), sessions), Vec::new())
    }

    /// Returns the limit that replaces `held`: the same object if there was one, so that open
    /// sessions are bound by `limit` as well.
    pub(crate) fn of_limit(
        held: Option<&Arc<Self>>,
        limit: Option<Bytes>,
        sessions: usize,
    ) -> Option<Arc<Self>> {
        match held {
            Some(held) => {
                held.set(limit, sessions);
                Some(Arc::clone(held))
            }
            None => limit.map(|limit| Self::new(limit, sessions)),
        }
    }

    /// Changes the shared bytes to the rest of `limit` when `sessions` have theirs set aside; to no
    /// limit if it is absent.
    pub(crate) fn set(&self, limit: Option<Bytes>, sessions: usize) {
        self.shared.store(shared_of(limit, sessions), Relaxed);
    }

    fn sharing(shared: usize, above: Vec<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self { shared: AtomicUsize::new(shared), held: AtomicUsize::new(0), above })
    }

    /// Returns the limit of a session that all of `parts` bind; `None` if there are none.
    pub(crate) fn joint(mut parts: Vec<Arc<Self>>) -> Option<Arc<Self>> {
        if parts.len() < 2 {
            return parts.pop();
        }
        Some(Self::sharing(usize::MAX, parts))
    }

    /// Returns the most bytes that one read may take now.
    pub fn most(&self) -> usize {
        (self.free() / PART).max(ALWAYS)
    }

    /// Returns the bytes that are not held now.
    pub(crate) fn free(&self) -> usize {
        let own = self.shared.load(Relaxed).saturating_sub(self.held.load(Relaxed));
        self.above.iter().map(|above| above.free()).fold(own, usize::min)
    }

    /// Returns true if nothing is left but what was set aside: a session that holds something must
    /// wait.
    pub(crate) fn is_short(&self) -> bool {
        self.most() <= ALWAYS
    }

    /// Returns the bytes held now.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Counts `bytes` as held.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Reservation {
        self.add(bytes);
        Reservation { memory: Arc::clone(self), bytes }
    }

    fn add(&self, bytes: usize) {
        self.held.fetch_add(bytes, Relaxed);
        self.above.iter().for_each(|above| above.add(bytes));
    }

    fn take_away(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
        self.above.iter().for_each(|above| above.take_away(bytes));
    }
}

impl Reservation {
    /// Returns their number.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

fn shared_of(limit: Option<Bytes>, sessions: usize) -> usize {
    limit.map_or(usize::MAX, |limit| in_memory(limit).saturating_sub(sessions * SET_ASIDE))
}

/// Returns the limit as `usize`.
fn in_memory(limit: Bytes) -> usize {
    usize::try_from(limit.as_u64()).unwrap_or(usize::MAX)
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.memory.take_away(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternating_reads_stay_within_the_limit() {
        let limit = Bytes::new(1 << 20);
        let sessions = Memory::sessions(limit);
        assert_eq!(sessions, 32);
        let memory = Memory::new(limit, sessions);
        let held: Vec<_> = (0..2 * sessions).map(|_| memory.hold(memory.most())).collect();
        let overhead = sessions * (SET_ASIDE - 2 * ALWAYS);
        assert!(memory.held() + overhead <= in_memory(limit), "{} held", memory.held());
        assert_eq!(memory.most(), ALWAYS, "what is left is what was set aside");
        assert!(memory.is_short());
        drop(held);
        assert_eq!(memory.held(), 0);
        assert!(!memory.is_short());
    }

    #[test]
    fn another_limit_binds_who_was_bound_before() {
        let memory = Memory::new(Bytes::new(1 << 20), 0);
        let held = memory.hold(1 << 19);
        memory.set(Some(Bytes::new(1 << 18)), 0);
        assert!(memory.is_short());
        memory.set(None, 0);
        assert!(!memory.is_short());
        drop(held);
        assert_eq!(memory.held(), 0);
    }

    #[test]
    fn tighter_of_two_limits_applies() {
        let (all, own) =
            (Memory::new(Bytes::new(64 << 20), 0), Memory::new(Bytes::new(1 << 20), 0));
        let both = Memory::joint(vec![Arc::clone(&all), Arc::clone(&own)]).unwrap();
        assert_eq!((both.free(), both.most()), (own.free(), own.most()));
        let held = both.hold(own.free());
        assert!(both.is_short() && own.is_short());
        assert!(!all.is_short(), "others go on");
        assert_eq!(all.held(), 1 << 20);
        drop(held);
        assert_eq!((all.held(), own.held(), both.held()), (0, 0, 0));
        assert!(Memory::joint(Vec::new()).is_none());
    }
}
