//! A pool of idle pipes, for sessions that have bulk data to move.
//!
//! A session takes a pipe when bulk data has arrived and returns it once it is empty, so there are
//! as many pipes as sessions whose data waits for a slow receiver, and a few idle ones.

use std::io;

use crate::splice::Pipe;

/// A bounded pool of empty pipes.
#[derive(Debug)]
pub struct PipePool {
    resting: Vec<Pipe>,
    most_resting: usize,
}

impl PipePool {
    /// Creates a pool that keeps at most `most_resting` pipes, and creates none in advance.
    #[must_use]
    pub const fn new(most_resting: usize) -> Self {
        Self { resting: Vec::new(), most_resting }
    }

    /// Takes a pipe from the pool, or creates one.
    ///
    /// # Errors
    /// When no descriptor is left to create one.
    pub fn take(&mut self) -> io::Result<Pipe> {
        match self.resting.pop() {
            Some(pipe) => Ok(pipe),
            None => Pipe::new(),
        }
    }

    /// Returns a pipe to the pool. One that still holds bytes of a broken session is closed, as is
    /// one beyond the limit.
    pub fn put(&mut self, pipe: Pipe) {
        if pipe.held() == 0 && self.resting.len() < self.most_resting {
            self.resting.push(pipe);
        }
    }

    /// Returns the number of idle pipes.
    #[must_use]
    pub fn resting(&self) -> usize {
        self.resting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_idle_pipes_is_bounded() {
        let mut pool = PipePool::new(2);
        let pipes: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
        for pipe in pipes {
            pool.put(pipe);
        }
        assert_eq!(pool.resting(), 2);
        pool.take().unwrap();
        assert_eq!(pool.resting(), 1);
    }
}
