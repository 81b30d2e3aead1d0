//! The copy of a direction's data that is kept until it need not be sent again over another path.

use std::sync::Arc;

use crate::memory::{Held, Memory};

/// Most bytes of a direction that are kept, beside those of one read. Chosen: a first flight of a
/// few hundred segments is not stopped while a relay has not answered yet.
const MOST_KEPT_BYTES: usize = 256 << 10;

/// A copy of the data that a direction has read, while it may have to be written to another socket.
#[derive(Debug, Default)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    /// The copy, where memory is limited.
    held: Option<Held>,
}

impl Kept {
    /// Returns true if no more may be read before the copy is used or dropped.
    pub(super) fn is_full(&self, memory: Option<&Arc<Memory>>) -> bool {
        let most = memory.map_or(MOST_KEPT_BYTES, |memory| memory.most().min(MOST_KEPT_BYTES));
        self.bytes.len() >= most
    }

    pub(super) fn account(&mut self, memory: &Arc<Memory>) {
        if self.held.as_ref().map_or(0, Held::bytes) < self.bytes.len() {
            self.held = None;
            self.held = Some(memory.hold(self.bytes.len()));
        }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use tradewind_units::Bytes;

    use super::*;

    #[test]
    fn what_is_kept_counts_as_held_and_where_memory_is_short_little_is_kept() {
        let memory = Memory::new(Bytes::new(1 << 20), 0);
        let mut kept = Kept::default();
        while !kept.is_full(Some(&memory)) {
            kept.add(&[7; 4096]);
            kept.account(&memory);
        }
        assert!(memory.held() >= 32 << 10 && memory.held() < 128 << 10, "{}", memory.held());
        assert!(!kept.is_full(None));
        let rest = memory.hold(memory.free());
        let mut other = Kept::default();
        assert!(!other.is_full(Some(&memory)), "no session stands still");
        other.add(&[7; 4096]);
        assert!(other.is_full(Some(&memory)));
        drop((kept, other, rest));
        assert_eq!(memory.held(), 0);
    }
}
