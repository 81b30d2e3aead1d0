//! The head of a connection: a header, a reply, a proxy request. It is read under a limit, and
//! bytes read beyond it belong to the data that follows.

use std::io;

use crate::connection::Connection;
use crate::connection::side::Side;
use crate::session::buffer_pool::BufferPool;

/// Most bytes that one read takes while a head is incomplete, so that a peer which is not
/// authenticated yet makes a session hold at most this and the head's own limit.
const READ_BYTES: usize = 4096;

/// The result of parsing the bytes received so far.
pub enum Progress<T> {
    /// More bytes are needed.
    Incomplete,
    /// A whole head, and its length.
    Complete(T, usize),
}

/// The reason that no head was read.
#[derive(Debug, thiserror::Error)]
pub enum HeadError<E> {
    /// The connection failed.
    #[error("{}", crate::failure::plain(.0))]
    Io(#[from] io::Error),
    /// It ended after so many bytes.
    #[error("connection ended after {0} bytes of an incomplete head")]
    Ended(usize),
    /// The head is longer than allowed.
    #[error("head is longer than {0} bytes")]
    TooLong(usize),
    /// The bytes are no valid head.
    #[error("{0}")]
    Parse(E),
}

/// Bytes that were read from a connection and not used yet.
#[derive(Debug, Default)]
pub struct ReadAhead(Vec<u8>);

impl ReadAhead {
    /// Reads until `parse` has a whole head of at most `limit` bytes, and returns it.
    pub async fn read_head<T, E>(
        &mut self,
        connection: &Connection,
        buffer_pool: &BufferPool,
        limit: usize,
        mut parse: impl FnMut(&[u8]) -> Result<Progress<T>, E>,
    ) -> Result<T, HeadError<E>> {
        loop {
            if !self.0.is_empty() {
                match parse(&self.0).map_err(HeadError::Parse)? {
                    Progress::Complete(head, length) => {
                        self.0.drain(..length);
                        return Ok(head);
                    }
                    Progress::Incomplete if self.0.len() >= limit => {
                        return Err(HeadError::TooLong(limit));
                    }
                    Progress::Incomplete => {}
                }
            }
            if self.read_more(connection, buffer_pool, READ_BYTES).await? == 0 {
                return Err(HeadError::Ended(self.0.len()));
            }
        }
    }

    /// Creates one with bytes that were read ahead elsewhere.
    pub const fn of(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns true if no bytes have been received after the last head.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes received so far after the last head.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Drops the first `count` of them.
    pub fn use_up(&mut self, count: usize) {
        self.0.drain(..count);
    }

    /// Returns the bytes that follow the last head.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Reads at most `most` bytes, and returns how many; none at the end of file.
    pub async fn read_more(
        &mut self,
        connection: &Connection,
        buffer_pool: &BufferPool,
        most: usize,
    ) -> io::Result<usize> {
        loop {
            connection.readable().await?;
            let read = buffer_pool.receive(&Side::Lent(connection), most, |bytes| {
                self.0.extend_from_slice(bytes);
                bytes.len()
            });
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}
