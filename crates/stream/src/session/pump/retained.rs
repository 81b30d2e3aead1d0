//! The copy of a direction's data that is retained until it need not be sent again over another
//! path.

use std::sync::Arc;

use crate::limits::memory::{Memory, Reservation};

/// Most bytes of a direction that are retained, beside those of one read. Chosen: a first flight of
/// a few hundred segments is not stopped while a relay has not answered yet.
const MAX_RETAINED_BYTES: usize = 256 << 10;

/// A copy of the data that a direction has read, while it may have to be written to another socket.
#[derive(Debug, Default)]
pub(super) struct Retained {
    bytes: Vec<u8>,
    /// The copy, where memory is limited.
    held: Option<Reservation>,
}

impl Retained {
    /// Returns true if no more may be read before the copy is used or dropped.
    pub(super) fn is_full(&self, memory: Option<&Arc<Memory>>) -> bool {
        let most =
            memory.map_or(MAX_RETAINED_BYTES, |memory| memory.most().min(MAX_RETAINED_BYTES));
        self.bytes.len() >= most
    }

    pub(super) fn account(&mut self, memory: &Arc<Memory>) {
        if self.held.as_ref().map_or(0, Reservation::bytes) < self.bytes.len() {
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
    fn retained_bytes_count_as_held_memory() {
        let memory = Memory::new(Bytes::new(1 << 20), 0);
        let mut retained = Retained::default();
        while !retained.is_full(Some(&memory)) {
            retained.add(&[7; 4096]);
            retained.account(&memory);
        }
        assert!(memory.held() >= 32 << 10 && memory.held() < 128 << 10, "{}", memory.held());
        assert!(!retained.is_full(None));
        let rest = memory.hold(memory.free());
        let mut other = Retained::default();
        assert!(!other.is_full(Some(&memory)), "no session stands still");
        other.add(&[7; 4096]);
        assert!(other.is_full(Some(&memory)));
        drop((retained, other, rest));
        assert_eq!(memory.held(), 0);
    }
}
