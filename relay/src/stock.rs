//! What the sessions of one worker share: a buffer to read into, and pipes.
//!
//! A session at rest holds neither, so that its memory is its two sockets and its task.

use std::io;
use std::sync::{Mutex, PoisonError};

use tradewind_net::pipe_pool::PipePool;
use tradewind_net::splice::Pipe;

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

    /// Lends the buffer to `act`.
    pub(crate) fn with_buffer<T>(&self, act: impl FnOnce(&mut [u8]) -> T) -> T {
        act(&mut self.lock().buffer)
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
