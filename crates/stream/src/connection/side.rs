//! One of a session's two sockets, whose read interest can be paused.
//!
//! The runtime is woken for every segment that arrives at a socket (edge-triggered, for reading and
//! writing at once). While the direction that reads it is blocked at the other socket, that would
//! wake its worker once for each segment with nothing to do. So a blocked direction pauses the read
//! interest of the socket that it reads: it is registered for writing only, which still reports a
//! reset. A paused socket is read without asking whether it is readable, and its read interest is
//! enabled again once it is empty.

use std::io::{self, Write};
use std::net;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tradewind_net::splice::Pipe;
use tradewind_net::{registration, tcp};

use crate::connection::{Connection, Seal};
use crate::session::pump::Ending;

/// One of a session's two sockets.
#[derive(Debug)]
pub enum Side<'a> {
    /// A borrowed connection, whose read interest is always enabled.
    Lent(&'a Connection),
    /// A connection whose read interest is enabled.
    ReadEnabled(Connection),
    /// A socket registered for writing and failure only, and its encryption.
    ReadPaused(AsyncFd<net::TcpStream>, Option<Box<Seal>>),
    /// A socket that was lost when its registration changed.
    Lost,
}

impl Side<'_> {
    /// Pauses the read interest.
    ///
    /// # Errors
    /// When the runtime cannot register the socket anew; the socket is closed then.
    pub(crate) fn pause_reads(&mut self) -> io::Result<()> {
        if matches!(self, Self::ReadEnabled(_))
            && let Self::ReadEnabled(connection) = std::mem::replace(self, Self::Lost)
        {
            let (stream, seal) = connection.into_parts();
            *self = Self::ReadPaused(registration::for_writing(stream.into_std()?)?, seal);
        }
        Ok(())
    }

    /// Returns true if its read interest is paused.
    pub(crate) const fn is_read_paused(&self) -> bool {
        matches!(self, Self::ReadPaused(..))
    }

    /// Enables the read interest again.
    ///
    /// # Errors
    /// As [`Side::pause_reads`].
    pub(crate) fn enable_reads(&mut self) -> io::Result<()> {
        if matches!(self, Self::ReadPaused(..))
            && let Self::ReadPaused(paused, seal) = std::mem::replace(self, Self::Lost)
        {
            let stream = TcpStream::from_std(paused.into_inner())?;
            *self = Self::ReadEnabled(Connection::from_parts(stream, seal));
        }
        Ok(())
    }

    /// Returns the connection, with its read interest enabled.
    ///
    /// # Errors
    /// As [`Side::pause_reads`].
    ///
    /// # Panics
    /// For a borrowed one: the caller's bug.
    pub(crate) fn into_connection(mut self) -> io::Result<Connection> {
        self.enable_reads()?;
        match self {
            Self::ReadEnabled(connection) => Ok(connection),
            Self::Lost => Err(io::ErrorKind::NotConnected.into()),
            Self::Lent(_) | Self::ReadPaused(..) => {
                unreachable!("a session's own socket, whose reads are enabled")
            }
        }
    }

    /// Ready when a read is worth trying; always if the read interest is paused.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Lent(connection) => connection.poll_read_ready(cx),
            Self::ReadEnabled(connection) => connection.poll_read_ready(cx),
            Self::ReadPaused(..) | Self::Lost => Poll::Ready(Ok(())),
        }
    }

    /// Ready with the error of a failed socket whose read interest is paused.
    ///
    /// A socket that both peers have closed in order looks the same to the runtime but has no
    /// error: its received data can still be read.
    pub(crate) fn poll_failure(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Self::ReadPaused(paused, _) = self else { return Poll::Pending };
        if let Err(error) = ready!(paused.poll_read_ready(cx)) {
            return Poll::Ready(error);
        }
        match paused.get_ref().take_error() {
            Ok(None) => Poll::Pending,
            Ok(Some(error)) | Err(error) => Poll::Ready(error),
        }
    }

    /// Returns true if the peer is known to have ended its direction; to be called after a read
    /// that has emptied the socket, when the runtime still reports it readable for that reason
    /// alone.
    pub(crate) fn is_ended(&self, cx: &mut Context<'_>) -> bool {
        match self {
            Self::Lent(connection) => connection.poll_read_ready(cx).is_ready(),
            Self::ReadEnabled(connection) => connection.poll_read_ready(cx).is_ready(),
            Self::ReadPaused(..) | Self::Lost => false,
        }
    }

    /// Returns its encryption, if there is any.
    pub(crate) fn seal(&self) -> Option<&Seal> {
        match self {
            Self::Lent(connection) => connection.seal(),
            Self::ReadEnabled(connection) => connection.seal(),
            Self::ReadPaused(_, seal) => seal.as_deref(),
            Self::Lost => None,
        }
    }

    /// Runs `read`, which reads the socket; `WouldBlock` when nothing has arrived.
    pub(crate) fn try_read_by<T>(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::Lent(connection) => connection.stream().try_io(Interest::READABLE, read),
            Self::ReadEnabled(connection) => connection.stream().try_io(Interest::READABLE, read),
            Self::ReadPaused(..) => read(),
            Self::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Reads what has arrived into `buffer`. `Ok(0)`: the end of file.
    pub(crate) fn try_receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.seal() {
            None => self.try_receive_raw(buffer),
            Some(seal) => seal.read(buffer, |sealed| self.try_receive_raw(sealed)),
        }
    }

    /// Reads the socket.
    ///
    /// A read that leaves space in the buffer has emptied the socket, or has stopped before an
    /// urgent byte. If it is empty, the runtime is informed that it is no longer readable: that
    /// saves a read that would return `WouldBlock`.
    fn try_receive_raw(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut received = None;
        let attempt = self.try_read_by(|| {
            let count = tcp::receive(self, buffer)?;
            received = Some(count);
            match count {
                0 => Ok(()),
                count if count == buffer.len() || tcp::holds_more(self) => Ok(()),
                _ => Err(io::ErrorKind::WouldBlock.into()),
            }
        });
        match (received, attempt) {
            (Some(count), _) => Ok(count),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => unreachable!("an attempt that succeeds has received"),
        }
    }

    /// Moves at most `most` received bytes into `pipe`. `None`: an urgent byte comes first, which
    /// only a read can take.
    pub(crate) fn try_fill(&self, pipe: &mut Pipe, most: usize) -> io::Result<Option<usize>> {
        self.try_read_by(|| match pipe.fill_from(self, most) {
            Ok(0) if tcp::holds_more(self) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && tcp::holds_more(self) => {
                Ok(None)
            }
            filled => filled.map(Some),
        })
    }

    /// Ready when a write is worth trying.
    pub(crate) fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Lent(connection) => connection.stream().poll_write_ready(cx),
            Self::ReadEnabled(connection) => connection.stream().poll_write_ready(cx),
            Self::ReadPaused(paused, _) => paused.poll_write_ready(cx).map_ok(drop),
            Self::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Writes as much of `bytes` as it takes; on an encrypted connection some of them may wait to
    /// be sent.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.seal() {
            None => self.try_write_raw(bytes),
            Some(seal) => seal.write(bytes, |sealed| self.try_write_raw(sealed)),
        }
    }

    fn try_write_raw(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Lent(connection) => connection.stream().try_write(bytes),
            Self::ReadEnabled(connection) => connection.stream().try_write(bytes),
            Self::ReadPaused(paused, _) => {
                paused.try_io(Interest::WRITABLE, |mut stream| stream.write(bytes))
            }
            Self::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// As [`Side::try_write`], but the bytes are coalesced with what follows at once: the end, or
    /// more. Those of an encrypted socket leave as they are.
    pub(crate) fn try_write_with_next(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.seal() {
            None => self.try_write_by(|| tcp::send_with_next(self, bytes)),
            Some(_) => self.try_write(bytes),
        }
    }

    /// Returns the bytes that were written and wait to be sent.
    pub(crate) fn waits(&self) -> usize {
        self.seal().map_or(0, Seal::waits)
    }

    /// Sends the waiting bytes.
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        self.seal().map_or(Ok(()), |seal| seal.flush(|sealed| self.try_write_raw(sealed)))
    }

    /// Sends the bytes that the kernel holds back until more are written; does nothing for a lost
    /// socket.
    pub(crate) fn send_held_back(&self) {
        if !matches!(self, Self::Lost) {
            let _gone = tcp::send_held_back(self);
        }
    }

    /// Passes an end of file on. `WouldBlock`: to be tried again when there is space to write.
    pub(crate) fn try_end(&self, ending: Ending) -> io::Result<()> {
        if let Some(seal) = self.seal() {
            seal.end(|sealed| self.try_write_raw(sealed))?;
        }
        match ending {
            Ending::Shut => tcp::finish_sending(self),
            Ending::Close => Ok(()),
        }
    }

    /// Runs `write`, which writes to the socket; `WouldBlock` when there is no space.
    pub(crate) fn try_write_by<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::Lent(connection) => connection.stream().try_io(Interest::WRITABLE, write),
            Self::ReadEnabled(connection) => connection.stream().try_io(Interest::WRITABLE, write),
            Self::ReadPaused(paused, _) => paused.try_io(Interest::WRITABLE, |_| write()),
            Self::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl AsFd for Side<'_> {
    /// # Panics
    /// When the socket was lost, which ended its session.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Lent(connection) => connection.as_fd(),
            Self::ReadEnabled(connection) => connection.as_fd(),
            Self::ReadPaused(paused, _) => paused.get_ref().as_fd(),
            Self::Lost => unreachable!("the loss of a socket ends its session"),
        }
    }
}
