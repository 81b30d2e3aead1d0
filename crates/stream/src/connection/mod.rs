//! A connection of a leg: plain TCP, or TLS over it.
//!
//! A plain one is its socket and nothing more, which splice uses directly. A sealed one has a
//! `Seal` beside it, and its socket carries records that only the seal may read or write.

mod handshake;
pub mod head;
mod identities;
mod seal;
pub mod side;
mod tickets;

use std::io::{self, IoSlice};
use std::net;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tradewind_grant::PublicIdentity;
use tradewind_net::tcp;

use crate::connection::side::Side;

#[cfg(test)]
use handshake::NotSealed;
pub(crate) use handshake::is_tls;
pub use handshake::{NO_TLS, TLS_WANTED};
pub use identities::Tls;
pub(crate) use seal::Seal;

/// Most bytes that one read of a sealed connection asks for. Chosen: about as many as one read of
/// its socket returns.
const MAX_OPENED_BYTES: usize = 64 * 1024;

/// A connection that is registered with a runtime.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Absent where the leg is not encrypted.
    seal: Option<Box<Seal>>,
}

/// A connection that is registered with no runtime, which any worker may take.
#[derive(Debug)]
pub(crate) struct Resting {
    stream: net::TcpStream,
    seal: Option<Box<Seal>>,
}

impl Connection {
    /// Creates a connection that is not encrypted.
    pub const fn plain(stream: TcpStream) -> Self {
        Self { stream, seal: None }
    }

    /// Returns its socket. Its bytes are the session's own only if the connection is plain.
    pub const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns its encryption, if there is any.
    pub fn seal(&self) -> Option<&Seal> {
        self.seal.as_deref()
    }

    /// Splits it into its two parts.
    pub(crate) fn into_parts(self) -> (TcpStream, Option<Box<Seal>>) {
        (self.stream, self.seal)
    }

    pub(crate) const fn from_parts(stream: TcpStream, seal: Option<Box<Seal>>) -> Self {
        Self { stream, seal }
    }

    /// Returns the identity that the peer proved by the handshake; `None` where there was none.
    pub fn peer(&self) -> Option<PublicIdentity> {
        self.seal()?.peer()
    }

    /// Returns the address of the other end, for log lines.
    pub fn remote(&self) -> String {
        tcp::peer(self).map_or_else(|| "a peer that is gone".to_owned(), |peer| peer.to_string())
    }

    /// Deregisters it from the runtime.
    pub(crate) fn rest(self) -> io::Result<Resting> {
        Ok(Resting { stream: self.stream.into_std()?, seal: self.seal })
    }

    /// Ready when a read is worth trying.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.seal() {
            Some(seal) if seal.has_arrived() => Poll::Ready(Ok(())),
            _ => self.stream.poll_read_ready(cx),
        }
    }

    /// Waits until a read is worth trying.
    pub async fn readable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_read_ready(cx)).await
    }

    /// Waits until a write is worth trying.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    /// Writes as much of `bytes` as it takes; on a sealed connection some of them may wait to be
    /// sent.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.seal() {
            None => self.stream.try_write(bytes),
            Some(seal) => seal.write(bytes, |sealed| self.stream.try_write(sealed)),
        }
    }

    /// Writes as much as it takes of several parts, which leave together; otherwise as
    /// [`Connection::try_write`].
    fn try_write_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.seal() {
            None => self.stream.try_write_vectored(parts),
            Some(seal) => seal.write_parts(parts, |sealed| self.stream.try_write(sealed)),
        }
    }

    /// Writes all of `bytes`, and waits until the socket has them.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.writable().await?;
            match self.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        std::future::poll_fn(|cx| self.poll_flushed(cx)).await
    }

    /// Ends this side's direction, in order.
    pub async fn end(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_end(cx)).await
    }

    /// Reads the socket. (The runtime's own read takes a socket for empty that has stopped before
    /// an urgent byte.)
    fn poll_fill(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            let (space, mut received) = (buffer.remaining(), false);
            let attempt = self.stream.try_io(Interest::READABLE, || {
                let count = tcp::receive_into(&self.stream, buffer)?;
                received = true;
                match count {
                    0 => Ok(()),
                    count if count == space || tcp::holds_more(&self.stream) => Ok(()),
                    _ => Err(io::ErrorKind::WouldBlock.into()),
                }
            });
            match attempt {
                _ if received => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                attempt => return Poll::Ready(attempt),
            }
        }
    }

    /// Runs `work`, unless the peer resets the connection before it is done.
    pub async fn unless_reset<T>(&self, work: impl Future<Output = T>) -> io::Result<T> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            error = self.failure() => Err(error),
        }
    }

    /// Waits until the connection fails. An end of file is no failure.
    pub async fn failure(&self) -> io::Error {
        let pending = self.stream.async_io(Interest::ERROR, || match self.stream.take_error()? {
            Some(error) => Ok(error),
            None => Err(io::ErrorKind::WouldBlock.into()),
        });
        pending.await.unwrap_or_else(|error| error)
    }

    fn poll_flushed(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(seal) = self.seal() else { return Poll::Ready(Ok(())) };
        while seal.waits() > 0 {
            match seal.flush(|sealed| self.stream.try_write(sealed)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.stream.poll_write_ready(cx))?;
                }
                flushed => return Poll::Ready(flushed),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(seal) = self.seal() {
            while let Err(error) = seal.end(|sealed| self.stream.try_write(sealed)) {
                if error.kind() != io::ErrorKind::WouldBlock {
                    return Poll::Ready(Err(error));
                }
                ready!(self.stream.poll_write_ready(cx))?;
            }
        }
        Poll::Ready(tcp::finish_sending(&self.stream))
    }
}

impl Resting {
    /// Registers it with the runtime of the caller.
    pub(crate) fn wake(self) -> io::Result<Connection> {
        Ok(Connection { stream: TcpStream::from_std(self.stream)?, seal: self.seal })
    }

    /// Returns true if nothing was received: an end, an error or unexpected data would all make it
    /// useless.
    pub(crate) fn is_quiet(&self) -> bool {
        let silent = matches!(self.stream.peek(&mut [0]), Err(error)
            if error.kind() == io::ErrorKind::WouldBlock);
        silent && !self.seal.as_ref().is_some_and(|seal| seal.has_arrived())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsFd for Resting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.seal.is_none() {
            return self.poll_fill(cx, buffer);
        }
        // More than one read of the socket returns need not be initialized.
        let most = buffer.remaining().min(MAX_OPENED_BYTES);
        loop {
            ready!(self.poll_read_ready(cx))?;
            match Side::Lent(&self).try_receive(buffer.initialize_unfilled_to(most)) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.try_write_parts(parts) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flushed(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(cx)
    }
}

#[cfg(test)]
pub(crate) mod tests;
