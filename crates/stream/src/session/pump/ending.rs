//! Passing on of a direction's end of file.

use std::io;
use std::task::{Context, Poll, ready};

use super::Direction;
use crate::connection::side::Side;

/// The way in which a direction's end of file is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The sending direction is shut: the other direction goes on.
    Shut,
    /// Nothing is done: the other direction has ended, and both sockets are about to be closed.
    Close,
}

impl Ending {
    /// Returns the way in which one direction ends, given the other.
    pub(super) const fn after(other: &Direction) -> Self {
        if other.ended { Self::Close } else { Self::Shut }
    }
}

/// Passes an end of file on.
pub(super) fn poll_end(
    cx: &mut Context<'_>,
    to: &Side<'_>,
    ending: Ending,
) -> Poll<io::Result<()>> {
    loop {
        match to.try_end(ending) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready!(to.poll_write_ready(cx))?;
            }
            ended => return Poll::Ready(ended),
        }
    }
}
