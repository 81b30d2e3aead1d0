//! What the sessions of one worker share: a buffer to read into, and pipes.
//!
//! A session at rest holds neither, so that its memory is its two sockets and its task.

use std::io;
use std::sync::{Mutex, PoisonError};

use tokio::io::Interest;
use tokio::net::TcpStream;
use tradewind_net::pipe_pool::PipePool;
use tradewind_net::splice::Pipe;
use tradewind_net::tcp;

/// Size of the shared read buffer, hence most that one read/write turn moves. Chosen: a full GRO
/// super-packet; larger moves go through a pipe.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;

/// Pipes that a worker keeps at rest. Chosen: two directions of 64 sessions that move data in the
/// same instant, and no more than unprivileged users may have (64 pipes of 1 MiB).
const MOST_RESTING_PIPES: usize = 64;

/// The shared things of one worker. Its lock is taken by that worker's thread alone while it serves, and
/// never held across a wait.
#[derive(Debug)]
pub(crate) struct Stock(Mutex<Shared>);

#[derive(Debug)]
struct Shared {
    buffer: Box<[u8]>,
    pipes: PipePool,
}

impl Stock {
    pub(crate) fn new() -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self(Mutex::new(Shared { buffer, pipes: PipePool::new(MOST_RESTING_PIPES) }))
    }

    /// Reads at most `most` bytes of what `stream` has received, and lends them to `act`. Lends
    /// nothing at the end of file.
    ///
    /// A read that leaves room in the buffer has emptied the socket, so the runtime is told that
    /// the socket is no longer readable: that spares the read that would only find out.
    pub(crate) fn receive<T>(
        &self,
        stream: &TcpStream,
        most: usize,
        act: impl FnOnce(&[u8]) -> T,
    ) -> io::Result<T> {
        let buffer = &mut self.lock().buffer[..most.min(BUFFER_BYTES)];
        let mut received = None;
        let attempt = stream.try_io(Interest::READABLE, || {
            let count = tcp::receive(stream, buffer)?;
            received = Some(count);
            match count {
                0 => Ok(()),
                count if count == buffer.len() => Ok(()),
                _ => Err(io::ErrorKind::WouldBlock.into()),
            }
        });
        match (received, attempt) {
            (Some(count), _) => Ok(act(&buffer[..count])),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => unreachable!("an attempt that succeeds has received"),
        }
    }

    /// Takes an empty pipe.
    pub(crate) fn take_pipe(&self) -> io::Result<Pipe> {
        self.lock().pipes.take()
    }

    /// Puts a pipe back.
    pub(crate) fn put_pipe(&self, pipe: Pipe) {
        self.lock().pipes.put(pipe);
    }

    /// Pipes at rest.
    pub(crate) fn resting_pipes(&self) -> usize {
        self.lock().pipes.resting()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
