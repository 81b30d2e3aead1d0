//! Resources shared by the sessions of one worker: a buffer to read into, and pipes.
//!
//! A session at rest holds neither, so that its memory is its two sockets and its task.

use std::io;
use std::sync::{Mutex, PoisonError};

use tradewind_net::pipe_pool::PipePool;
use tradewind_net::splice::Pipe;

use crate::connection::side::Side;

/// Size of the shared read buffer, hence the most that one read and write moves. Chosen: a full GRO
/// super-packet; larger moves go through a pipe.
pub const BUFFER_BYTES: usize = 64 * 1024;

/// The number of idle pipes that a worker keeps. Chosen: two directions of 16 sessions that move
/// data at the same instant; unprivileged users may have four times as many.
const MAX_RESTING_PIPES: usize = 32;

/// The buffer and pipes of one worker. Its lock is acquired by that worker's thread alone while it
/// serves, and never held across a wait.
#[derive(Debug)]
pub struct BufferPool(Mutex<Shared>);

#[derive(Debug)]
struct Shared {
    buffer: Box<[u8]>,
    pipes: PipePool,
}

/// The result of a read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// True if the socket holds no more.
    pub(crate) has_emptied: bool,
}

impl Default for BufferPool {
    fn default() -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self(Mutex::new(Shared { buffer, pipes: PipePool::new(MAX_RESTING_PIPES) }))
    }
}

impl BufferPool {
    /// Reads at most `most` received bytes from `side`, and passes them to `act`: none at the end
    /// of file.
    pub fn receive<T>(
        &self,
        side: &Side<'_>,
        most: usize,
        act: impl FnOnce(&[u8]) -> T,
    ) -> io::Result<T> {
        self.receive_behind(&[], side, most, |bytes, _| act(bytes))
    }

    /// As [`BufferPool::receive`], but the received bytes follow `before` in the slice passed.
    pub(crate) fn receive_behind<T>(
        &self,
        before: &[u8],
        side: &Side<'_>,
        most: usize,
        act: impl FnOnce(&[u8], Received) -> T,
    ) -> io::Result<T> {
        let mut shared = self.lock();
        let (front, buffer) = shared.buffer.split_at_mut(before.len());
        front.copy_from_slice(before);
        let space = most.min(buffer.len());
        let bytes = side.try_receive(&mut buffer[..space])?;
        // An encrypted one may hold more without its socket knowing.
        let has_emptied = bytes < space && side.seal().is_none();
        let received = Received { bytes, has_emptied };
        Ok(act(&shared.buffer[..before.len() + bytes], received))
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
