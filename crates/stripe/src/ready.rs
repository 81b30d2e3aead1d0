//! The bytes received in order that wait to be read: in few buffers, however small the frames were.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Payloads shorter than this are appended to the one before, if that is still unread. Chosen: a
/// buffer's own cost is small beside it, and a copy costs less than passing it on by itself.
const SMALL: usize = 4 << 10;

/// Size of a buffer into which small payloads are copied.
const BUFFER: usize = 16 << 10;

/// Bytes in order.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    buffers: VecDeque<Bytes>,
    /// Small payloads, which follow those in `buffers`.
    small: BytesMut,
}

impl Ready {
    /// Appends `bytes`.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        if bytes.len() >= SMALL || self.is_empty() {
            self.close();
            self.buffers.push_back(bytes);
            return;
        }
        if self.small.len() + bytes.len() > BUFFER {
            self.close();
        }
        self.small.extend_from_slice(&bytes);
    }

    /// Returns the first bytes, in a buffer of any length.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        if self.buffers.is_empty() {
            self.close();
        }
        self.buffers.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffers.is_empty() && self.small.is_empty()
    }

    fn close(&mut self) {
        if !self.small.is_empty() {
            self.buffers.push_back(std::mem::take(&mut self.small).freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_of_any_length_keep_their_order() {
        let mut ready = Ready::default();
        let lengths =
            [1, SMALL - 1, 1, SMALL, 7, BUFFER, SMALL - 1, SMALL - 1, SMALL - 1, 9_000, 3];
        let stream: Vec<u8> = (0..lengths.iter().sum()).map(|at: usize| (at % 251) as u8).collect();
        let mut rest = Bytes::from(stream.clone());
        for length in lengths {
            ready.push(rest.split_to(length));
        }
        let read: Vec<u8> = std::iter::from_fn(|| ready.pop()).flatten().collect();
        assert_eq!(read, stream);
        assert!(ready.is_empty());
    }

    #[test]
    fn single_bytes_are_coalesced() {
        let mut ready = Ready::default();
        let bytes = 1 << 20;
        (0..bytes).for_each(|_| ready.push(Bytes::from_static(b"x")));
        let buffers = std::iter::from_fn(|| ready.pop()).count();
        assert!(buffers <= bytes / BUFFER + 2, "{buffers}");
    }
}
