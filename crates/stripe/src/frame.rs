//! The frames of a striped leg, version 1. Each begins with a byte that tells its type; numbers are
//! big-endian. An *offset* counts the bytes of one direction from the session's first.
//!
//! ```text
//! type  frame  fields
//!    1  START  offset 8: what the sender has put on the first connection without frames ends here
//!    2  KNOWN  none: the sender has seen a START of the other
//!    3  DATA   offset 8, length 4 (1 to 262,144), then so many bytes of the stream
//!    4  END    total 8: the direction has so many bytes and no more
//!    5  ACK    connection 4, frames 8, cumulative 8, limit 8
//!    6  RESET  none: the session is broken off; what has not arrived never will
//!    7  FULL   limit 8: all that this limit allows was sent, before a higher one came
//! ```
//!
//! START is the first frame on every joined connection, in both directions. On the first connection
//! frames follow the offset that START names, and only after a KNOWN was received: before, the peer
//! would take them for bytes of the stream.
//!
//! An ACK tells how many DATA and END frames have arrived on one connection (`frames`); that the
//! stream has arrived without a gap up to `cumulative`, which is one more than the total once END
//! has arrived as well; and that bytes up to `limit` may be sent. Before the first ACK the limit is
//! START's offset plus [`INITIAL_WINDOW`].

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// Most bytes of one DATA frame.
pub const MAX_PAYLOAD: usize = 256 << 10;

/// Window before the first ACK, in bytes.
pub const INITIAL_WINDOW: u64 = 256 << 10;

/// Length of a whole START, which a relay reads from a joined connection before it knows the
/// session that it belongs to.
pub const START_BYTES: usize = 9;

/// Most DATA and END frames between `cumulative` and the last one sent: a receiver keeps at most so
/// many pieces, however small they are.
pub const MAX_PIECES: usize = 4096;

const DATA_HEAD: usize = 13;

/// Payloads shorter than this are copied, so that a waiting one does not keep the whole receive
/// buffer alive. Chosen: a quarter of what one read returns.
const COPY_BELOW: usize = 32 << 10;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The end of the bytes that the sender has put on the first connection without frames.
    Start(u64),
    /// The sender has received a START.
    Known,
    /// Bytes of the stream.
    Data {
        /// Offset of the first byte.
        offset: u64,
        /// One to [`MAX_PAYLOAD`] bytes.
        payload: Bytes,
    },
    /// The total number of bytes of the direction.
    End(u64),
    /// An acknowledgement and a new limit.
    Ack(Ack),
    /// The session is broken off.
    Reset,
    /// All that this limit allows was sent.
    Full(u64),
}

/// An acknowledgement and a new limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// The connection that `frames` counts.
    pub connection: u32,
    /// Frames DATA and END that have arrived on it.
    pub frames: u64,
    /// Offset before which the stream has arrived; one more than its total when its end has.
    pub cumulative: u64,
    /// Bytes before this offset may be sent.
    pub limit: u64,
}

/// The reason why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// An unknown type.
    #[error("frame of type {0}: expected 1 to 7")]
    Type(u8),
    /// A DATA frame without bytes, or with too many.
    #[error("data frame of {0} bytes: expected 1 to 262144")]
    Length(u32),
    /// A DATA frame that would end beyond the largest offset.
    #[error("data frame at offset {0}: beyond the end of every stream")]
    Offset(u64),
}

impl Frame {
    /// Appends the frame without its payload, which follows.
    pub fn put_head(&self, out: &mut Vec<u8>) {
        match self {
            Self::Start(offset) => {
                out.put_u8(1);
                out.put_u64(*offset);
            }
            Self::Known => out.put_u8(2),
            Self::Data { offset, payload } => {
                out.put_u8(3);
                out.put_u64(*offset);
                out.put_u32(u32::try_from(payload.len()).expect("at most MAX_PAYLOAD"));
            }
            Self::End(total) => {
                out.put_u8(4);
                out.put_u64(*total);
            }
            Self::Ack(ack) => {
                out.put_u8(5);
                out.put_u32(ack.connection);
                out.put_u64(ack.frames);
                out.put_u64(ack.cumulative);
                out.put_u64(ack.limit);
            }
            Self::Reset => out.put_u8(6),
            Self::Full(limit) => {
                out.put_u8(7);
                out.put_u64(*limit);
            }
        }
    }

    /// Returns the payload that follows the head; empty except for DATA.
    #[must_use]
    pub fn into_payload(self) -> Bytes {
        match self {
            Self::Data { payload, .. } => payload,
            _ => Bytes::new(),
        }
    }

    /// Takes the first frame off `bytes`; `None` while it is incomplete, which it is for at most
    /// [`MAX_PAYLOAD`] bytes and a head.
    ///
    /// # Errors
    /// When the bytes are no frame; `bytes` is then unchanged.
    pub fn take(bytes: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let Some(kind) = bytes.first().copied() else { return Ok(None) };
        let head = match kind {
            1 | 4 | 7 => START_BYTES,
            2 | 6 => 1,
            3 => DATA_HEAD,
            5 => 29,
            other => return Err(FrameError::Type(other)),
        };
        if bytes.len() < head {
            return Ok(None);
        }
        if kind == 3 {
            return Self::take_data(bytes);
        }
        bytes.advance(1);
        Ok(Some(match kind {
            1 => Self::Start(bytes.get_u64()),
            2 => Self::Known,
            4 => Self::End(bytes.get_u64()),
            5 => Self::Ack(Ack {
                connection: bytes.get_u32(),
                frames: bytes.get_u64(),
                cumulative: bytes.get_u64(),
                limit: bytes.get_u64(),
            }),
            6 => Self::Reset,
            _ => Self::Full(bytes.get_u64()),
        }))
    }

    fn take_data(bytes: &mut BytesMut) -> Result<Option<Self>, FrameError> {
        let mut head = &bytes[1..DATA_HEAD];
        let (offset, length) = (head.get_u64(), head.get_u32());
        let size = length as usize;
        if !(1..=MAX_PAYLOAD).contains(&size) {
            return Err(FrameError::Length(length));
        }
        // One below the largest, so that the end has an offset, too.
        if offset.checked_add(u64::from(length)).is_none_or(|end| end == u64::MAX) {
            return Err(FrameError::Offset(offset));
        }
        if bytes.len() < DATA_HEAD + size {
            bytes.reserve(DATA_HEAD + size - bytes.len());
            return Ok(None);
        }
        bytes.advance(DATA_HEAD);
        let payload = if size < COPY_BELOW {
            Bytes::copy_from_slice(&bytes.split_to(size))
        } else {
            bytes.split_to(size).freeze()
        };
        Ok(Some(Self::Data { offset, payload }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.put_head(&mut bytes);
        bytes.extend_from_slice(&frame.clone().into_payload());
        bytes
    }

    fn all() -> Vec<Frame> {
        vec![
            Frame::Start(7),
            Frame::Known,
            Frame::Data { offset: 1 << 40, payload: Bytes::from_static(b"abc") },
            Frame::End(9),
            Frame::Ack(Ack { connection: 3, frames: 5, cumulative: 1 << 33, limit: u64::MAX }),
            Frame::Reset,
            Frame::Full(11),
        ]
    }

    #[test]
    fn frames_round_trip_in_pieces_of_any_size() {
        let bytes: Vec<u8> = all().iter().flat_map(encoded).collect();
        for step in [1, 2, 7, bytes.len()] {
            let (mut buffer, mut decoded) = (BytesMut::new(), Vec::new());
            for piece in bytes.chunks(step) {
                buffer.extend_from_slice(piece);
                while let Some(frame) = Frame::take(&mut buffer).unwrap() {
                    decoded.push(frame);
                }
            }
            assert_eq!(decoded, all());
            assert!(buffer.is_empty());
        }
        assert_eq!(encoded(&Frame::Start(0)).len(), START_BYTES);
    }

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let data = Frame::Data { offset: 258, payload: Bytes::from_static(b"x") };
        assert_eq!(encoded(&data), [3, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, b'x']);
    }

    #[test]
    fn invalid_frame_is_refused_before_it_is_complete() {
        let take = |bytes: &[u8]| Frame::take(&mut BytesMut::from(bytes));
        assert_eq!(take(&[0]), Err(FrameError::Type(0)));
        assert_eq!(take(&[8]), Err(FrameError::Type(8)));
        let data = |offset: u64, length: u32| {
            let mut bytes = vec![3];
            bytes.put_u64(offset);
            bytes.put_u32(length);
            bytes
        };
        assert_eq!(take(&data(0, 0)), Err(FrameError::Length(0)));
        assert_eq!(take(&data(0, 262_145)), Err(FrameError::Length(262_145)));
        assert_eq!(take(&data(u64::MAX, 1)), Err(FrameError::Offset(u64::MAX)));
        assert_eq!(take(&data(0, 262_144)), Ok(None));
    }
}
