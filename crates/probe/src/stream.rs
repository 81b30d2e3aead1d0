//! Transfer of bytes through one data connection, and of frames through a control connection.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::protocol::{self, ProtocolError};

/// Bytes moved with one system call. Chosen: larger calls gain nothing on Linux.
const CHUNK_BYTES: usize = 128 * 1024;

/// One data connection, shared by the task that moves its bytes and the meter that reads them.
#[derive(Debug, Clone)]
pub(crate) struct Data {
    pub(crate) socket: Arc<TcpStream>,
    moved: Arc<AtomicU64>,
    share: Option<u64>,
}

impl Data {
    /// Creates a connection for `share` bytes, or for an endless transfer.
    pub(crate) fn new(socket: TcpStream, share: Option<u64>) -> Self {
        Self { socket: Arc::new(socket), moved: Arc::default(), share }
    }

    /// Returns the payload transferred so far.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Hands payload to the kernel until the share is complete.
    pub(crate) async fn send(self) -> io::Result<()> {
        let payload = payload();
        while let Some(next_bytes) = self.next_bytes() {
            self.socket.writable().await?;
            match self.socket.try_write(&payload[..next_bytes]) {
                Ok(count) => self.count(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives payload from the kernel until the share is complete.
    pub(crate) async fn receive(self) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Some(next_bytes) = self.next_bytes() {
            self.socket.readable().await?;
            match self.socket.try_read(&mut buffer[..next_bytes]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.count(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns how much the next call may move; `None` when the share is complete.
    fn next_bytes(&self) -> Option<usize> {
        let Some(share) = self.share else { return Some(CHUNK_BYTES) };
        let left = share.saturating_sub(self.moved());
        let next_bytes = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        (next_bytes > 0).then_some(next_bytes)
    }

    fn count(&self, count: usize) {
        self.moved.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Returns the share of `volume` on connection `index` of `connections`: equal parts, the first
/// ones a byte more when it does not divide.
pub(crate) fn share_of(volume: u64, connections: u32, index: u32) -> u64 {
    let connections = u64::from(connections.max(1));
    volume / connections + u64::from(u64::from(index) < volume % connections)
}

/// Returns the payload: bytes without pattern, so that no device on the path can compress them.
/// Made by xorshift64 (Marsaglia 2003) from a fixed seed.
fn payload() -> &'static [u8] {
    static PAYLOAD: OnceLock<Vec<u8>> = OnceLock::new();
    PAYLOAD.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_ne_bytes()
        };
        (0..CHUNK_BYTES / 8).flat_map(|_| next()).collect()
    })
}

/// The reason why a frame could not be read.
#[derive(Debug)]
pub(crate) enum FrameError {
    /// The connection failed.
    Io(io::Error),
    /// The peer violated the protocol.
    Protocol(ProtocolError),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<ProtocolError> for FrameError {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => f.write_str(&crate::error::in_words(error)),
            Self::Protocol(error) => error.fmt(f),
        }
    }
}

/// Reads one frame of at most `limit` bytes. Not safe to cancel.
pub(crate) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    limit: usize,
) -> Result<Vec<u8>, FrameError> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).await?;
    let mut frame = vec![0; protocol::frame_length(header, limit)?];
    stream.read_exact(&mut frame).await?;
    Ok(frame)
}

/// Sends one frame. Not safe to cancel.
pub(crate) async fn write_frame(
    stream: &mut (impl AsyncWrite + Unpin),
    payload: &[u8],
) -> io::Result<()> {
    stream.write_all(&protocol::frame(payload)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_volume() {
        for (volume, connections) in [(10, 3), (2, 4), (1_000_003, 7), (5, 1)] {
            let shares = (0..connections).map(|index| share_of(volume, connections, index));
            assert_eq!(shares.sum::<u64>(), volume);
        }
    }

    #[test]
    fn payload_has_no_short_pattern() {
        let payload = payload();
        assert_eq!(payload.len(), CHUNK_BYTES);
        let distinct: std::collections::BTreeSet<_> = payload.chunks(8).collect();
        assert_eq!(distinct.len(), CHUNK_BYTES / 8);
    }
}
