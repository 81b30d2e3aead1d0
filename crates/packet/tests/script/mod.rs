//! A fuzzer's bytes, read as operations: shared by the fuzz targets and by the replay of their
//! corpora.

#![allow(dead_code, reason = "each fuzz target takes what it needs")]

/// The rest of the bytes, followed by zeros.
pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl<'a> Script<'a> {
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next `number` bytes, or as many as there are.
    pub(crate) fn bytes(&mut self, number: usize) -> &'a [u8] {
        let (bytes, left) = self.0.split_at(number.min(self.0.len()));
        self.0 = left;
        bytes
    }

    /// Returns the next byte as a number.
    pub(crate) fn byte(&mut self) -> usize {
        self.bytes(1).first().copied().map_or(0, usize::from)
    }

    /// Returns the next two bytes as a number.
    pub(crate) fn pair(&mut self) -> usize {
        256 * self.byte() + self.byte()
    }

    /// Returns a number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        if limit <= 256 { self.byte() % limit } else { self.pair() % limit }
    }
}
