//! One of a session's two sockets, which can be made deaf.
//!
//! The runtime hears of every segment that arrives at a socket (edge-triggered, for reading and
//! writing at once). While the direction that reads it is blocked at the other socket that would
//! wake its worker for nothing, once for each segment: more often than there is anything to do. So a
//! blocked direction makes the socket it reads deaf: it is registered for writing only, which still
//! tells of a reset. A deaf socket is read without asking whether it is readable, and is heard again
//! once it has nothing.

use std::io::{self, Write};
use std::net;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tradewind_net::{registration, tcp};

/// One of a session's two sockets.
#[derive(Debug)]
pub(crate) enum Side<'a> {
    /// A socket of somebody else, always heard.
    Lent(&'a TcpStream),
    /// A socket whose every event is heard.
    Heard(TcpStream),
    /// A socket of which only room to write and failure are heard.
    Deaf(AsyncFd<net::TcpStream>),
    /// A socket that was lost when it changed from one to the other.
    Lost,
}

impl Side<'_> {
    /// Hears no more of what arrives.
    ///
    /// # Errors
    /// When the runtime cannot register the socket anew; the socket is closed then.
    pub(crate) fn deafen(&mut self) -> io::Result<()> {
        if matches!(self, Self::Heard(_))
            && let Self::Heard(stream) = std::mem::replace(self, Self::Lost)
        {
            *self = Self::Deaf(registration::for_writing(stream.into_std()?)?);
        }
        Ok(())
    }

    /// Hears everything again.
    ///
    /// # Errors
    /// As [`Side::deafen`].
    pub(crate) fn hear(&mut self) -> io::Result<()> {
        if matches!(self, Self::Deaf(_))
            && let Self::Deaf(deaf) = std::mem::replace(self, Self::Lost)
        {
            *self = Self::Heard(TcpStream::from_std(deaf.into_inner())?);
        }
        Ok(())
    }

    /// Ready when a read is worth trying; a deaf socket always is.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Lent(stream) => stream.poll_read_ready(cx),
            Self::Heard(stream) => stream.poll_read_ready(cx),
            Self::Deaf(_) | Self::Lost => Poll::Ready(Ok(())),
        }
    }

    /// Ready with the error of a deaf socket that has failed.
    ///
    /// A socket that both peers have ended in order looks the same to the runtime but has no error:
    /// what it has received can still be read.
    pub(crate) fn poll_failure(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Self::Deaf(deaf) = self else { return Poll::Pending };
        if let Err(error) = ready!(deaf.poll_read_ready(cx)) {
            return Poll::Ready(error);
        }
        match deaf.get_ref().take_error() {
            Ok(None) => Poll::Pending,
            Ok(Some(error)) | Err(error) => Poll::Ready(error),
        }
    }

    /// Whether the peer is known to have ended its direction; to be asked after a read that has emptied
    /// the socket, when the runtime still says readable for that reason alone.
    pub(crate) fn is_ended(&self, cx: &mut Context<'_>) -> bool {
        match self {
            Self::Lent(stream) => stream.poll_read_ready(cx).is_ready(),
            Self::Heard(stream) => stream.poll_read_ready(cx).is_ready(),
            Self::Deaf(_) | Self::Lost => false,
        }
    }

    /// Runs `read`, which reads the socket; `WouldBlock` when nothing has arrived.
    pub(crate) fn try_read_by<T>(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::Lent(stream) => stream.try_io(Interest::READABLE, read),
            Self::Heard(stream) => stream.try_io(Interest::READABLE, read),
            Self::Deaf(_) => read(),
            Self::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Ready when a write is worth trying.
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Lent(stream) => stream.poll_write_ready(cx),
            Self::Heard(stream) => stream.poll_write_ready(cx),
            Self::Deaf(deaf) => deaf.poll_write_ready(cx).map_ok(drop),
            Self::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Writes what the socket takes of `bytes`.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Lent(stream) => stream.try_write(bytes),
            Self::Heard(stream) => stream.try_write(bytes),
            Self::Deaf(deaf) => deaf.try_io(Interest::WRITABLE, |mut stream| stream.write(bytes)),
            Self::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// As [`Side::try_write`], but the bytes travel with what follows at once: the end, or more.
    pub(crate) fn try_write_with_next(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write_by(|| tcp::send_with_next(self, bytes))
    }

    /// Runs `write`, which writes to the socket; `WouldBlock` when there is no room.
    pub(crate) fn try_write_by<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::Lent(stream) => stream.try_io(Interest::WRITABLE, write),
            Self::Heard(stream) => stream.try_io(Interest::WRITABLE, write),
            Self::Deaf(deaf) => deaf.try_io(Interest::WRITABLE, |_| write()),
            Self::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl AsFd for Side<'_> {
    /// # Panics
    /// When the socket was lost, which ended its session.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Lent(stream) => stream.as_fd(),
            Self::Heard(stream) => stream.as_fd(),
            Self::Deaf(deaf) => deaf.get_ref().as_fd(),
            Self::Lost => unreachable!("the loss of a socket ends its session"),
        }
    }
}
