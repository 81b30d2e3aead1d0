//! Trains: datagrams of one length that lie one behind the other, as the kernel joins and cuts them.
//!
//! Each lies in a buffer of its own, and a buffer changes hands whole: what came is sent on without being copied.

/// Bytes of a buffer: the longest train that the kernel joins or cuts.
pub(super) const BUFFER: usize = 64 << 10;

/// Room for a train.
pub(super) type Buffer = Box<[u8]>;

/// So many buffers.
pub(super) fn buffers(count: usize) -> Vec<Buffer> {
    std::iter::repeat_with(|| vec![0; BUFFER].into_boxed_slice()).take(count).collect()
}

/// Datagrams of one sender that arrived together.
#[derive(Debug)]
pub struct Train<'a> {
    pub(super) buffer: &'a mut Buffer,
    pub(super) length: usize,
    pub(super) segment: usize,
}

impl Train<'_> {
    /// The datagrams, one behind the other; none after the train was given away ([`SendBatch::take`](super::SendBatch::take)).
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.length]
    }

    /// Bytes of each datagram but the last, which may be shorter; 1 at least.
    #[must_use]
    pub fn segment(&self) -> usize {
        self.segment
    }

    /// How many datagrams there are, if none is empty.
    #[must_use]
    pub fn count(&self) -> usize {
        self.length.div_ceil(self.segment)
    }
}
