//! What the pump leaves to whoever goes on in its place, when a leg of the session is striped.

use std::io;

use bytes::Bytes;

use super::{Direction, IoContext, Load};
use crate::access_log::Follower;
use crate::quota::Meter;

/// Why the pump has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Both directions have ended in order.
    Over,
    /// A connection has joined a leg: the session goes on in another way.
    Joined,
}

/// What a direction leaves to whoever goes on in its place.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Taken from one socket, and not given to the other.
    pub(crate) raw: Bytes,
    /// Bytes of these that are not the flow's own.
    pub(crate) overhead: usize,
    /// Given to the other socket.
    pub(crate) moved: u64,
    pub(crate) meter: Option<Box<Meter>>,
    /// The record of its session; absent without an access log.
    pub(crate) follower: Option<Follower>,
    /// Whether its end of file was read, and the other socket was told as far as it took that:
    /// nothing may follow.
    pub(crate) ended: bool,
    /// Whether its end of file has been passed on.
    pub(crate) over: bool,
}

impl Taken {
    /// Bytes of the flow that were taken from the one socket.
    pub(crate) fn taken(&self) -> u64 {
        self.moved + (self.raw.len() - self.overhead) as u64
    }
}

impl Direction {
    /// What was read ahead of it and has not been given yet, where it has not begun to move.
    pub(crate) fn into_leading(self) -> Vec<u8> {
        match self.load {
            Load::Bytes { mut buffer, given } => buffer.split_off(given),
            _ => Vec::new(),
        }
    }

    /// What it leaves to whoever goes on in its place. What it holds counts as moved there.
    ///
    /// # Errors
    /// When the kernel cannot read its pipe.
    pub(crate) fn leave(self, io_context: IoContext<'_>) -> io::Result<Taken> {
        // An end waits only where it has been enciphered already.
        let ended = self.ended || matches!(self.load, Load::End);
        let raw = match self.load {
            // The word that the path is open waits no longer for data.
            // What was enciphered leaves with what follows, or by itself.
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
        Ok(Taken { raw, overhead, moved, meter, follower, ended, over: self.ended })
    }
}
