//! The state that the pump passes on when a leg of the session is striped.

use std::io;

use bytes::Bytes;

use super::{Direction, IoContext, Load};
use crate::access_log::Follower;
use crate::limits::quota::Meter;

/// The reason that the pump has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Both directions have ended in order.
    Over,
    /// A connection has joined a leg: the session continues striped.
    Joined,
}

/// The state of a direction that the pump passes on.
#[derive(Debug)]
pub struct StoppedDirection {
    /// Bytes read from one socket, and not written to the other.
    pub raw: Bytes,
    /// The number of these that are not the flow's own.
    pub(crate) overhead: usize,
    /// Bytes written to the other socket.
    pub(crate) moved: u64,
    pub(crate) meter: Option<Box<Meter>>,
    /// The record of its session; absent without an access log.
    pub(crate) follower: Option<Follower>,
    /// True if its end of file was read, and passed on as far as the other socket took it: nothing
    /// may follow.
    pub(crate) ended: bool,
    /// True if its end of file has been passed on.
    pub(crate) over: bool,
}

impl StoppedDirection {
    /// Returns the bytes of the flow that were read from the one socket.
    pub fn bytes_read(&self) -> u64 {
        self.moved + (self.raw.len() - self.overhead) as u64
    }
}

impl Direction {
    /// Returns the data read ahead and not written yet, of a direction that has not begun to move.
    pub fn into_leading(self) -> Vec<u8> {
        match self.load {
            Load::Bytes { mut buffer, given } => buffer.split_off(given),
            _ => Vec::new(),
        }
    }

    /// Returns its state. The data that it holds counts as moved by its successor.
    ///
    /// # Errors
    /// When the kernel cannot read its pipe.
    pub fn leave(self, io_context: IoContext<'_>) -> io::Result<StoppedDirection> {
        // An end of file waits only if it has been enciphered already.
        let ended = self.ended || matches!(self.load, Load::End);
        let raw = match self.load {
            // The reply that the path is open waits no longer for data.
            // Enciphered data leaves with the data that follows, or by itself.
            Load::Nothing | Load::Sealed | Load::End => Bytes::from(self.answer),
            Load::Bytes { buffer, given } => Bytes::from(buffer).split_off(given),
            Load::Piped(mut pipe) => {
                let bytes = pipe.take_out()?;
                io_context.buffer_pool.put_pipe(pipe);
                bytes.into()
            }
        };
        let (overhead, moved) = (self.overhead, self.moved);
        io_context.counts.moved(raw.len() - overhead);
        let (meter, follower) = (self.meter, self.follower);
        follower.iter().for_each(|follower| follower.moved((raw.len() - overhead) as u64));
        Ok(StoppedDirection { raw, overhead, moved, meter, follower, ended, over: self.ended })
    }
}
