//! The I/O context of a session's two directions.

use std::sync::Arc;

use super::Yielding;
use crate::counts::DirectionCounts;
use crate::limits::memory::Memory;
use crate::session::buffer_pool::BufferPool;

/// The context in which a direction moves: the worker's shared resources, and its counters.
#[derive(Debug, Clone, Copy)]
pub struct IoContext<'a> {
    /// The buffers to share.
    pub buffer_pool: &'a BufferPool,
    /// The counts of the direction.
    pub counts: &'a DirectionCounts,
    pub(crate) yielding: &'a Yielding,
    /// The memory limit, if there is one.
    pub memory: Option<&'a Arc<Memory>>,
}

impl<'a> IoContext<'a> {
    /// Returns the same, limited by `memory`.
    pub const fn within(self, memory: Option<&'a Arc<Memory>>) -> Self {
        Self { memory, ..self }
    }
}
