//! Trains: datagrams of one length back to back, as joined and split by the kernel.
//!
//! Each train has a buffer of its own, which is passed on whole: received trains are sent on
//! without being copied.

/// Size of a buffer: the longest train that the kernel joins or splits.
pub(super) const BUFFER: usize = 64 << 10;

/// A buffer for a train.
pub(super) type Buffer = Box<[u8]>;

/// Creates buffers.
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
    /// Returns the datagrams, back to back; none after the train was given away
    /// ([`SendBatch::take`](super::SendBatch::take)).
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.length]
    }

    /// Returns the length of each datagram except the last, which may be shorter; at least 1.
    #[must_use]
    pub fn segment(&self) -> usize {
        self.segment
    }

    /// Returns the number of datagrams, if none is empty.
    #[must_use]
    pub fn count(&self) -> usize {
        self.length.div_ceil(self.segment)
    }
}
