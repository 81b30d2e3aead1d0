//! The I/O context of a session's two directions.

use std::sync::Arc;

use super::Yielding;
use crate::buffer_pool::BufferPool;
use crate::counts::DirectionCounts;
use crate::memory::Memory;

/// The context in which a direction moves: the worker's shared resources, and its counters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IoContext<'a> {
    pub(crate) buffer_pool: &'a BufferPool,
    pub(crate) counts: &'a DirectionCounts,
    pub(crate) yielding: &'a Yielding,
    /// The memory limit, if there is one.
    pub(crate) memory: Option<&'a Arc<Memory>>,
}

impl<'a> IoContext<'a> {
    /// Returns the same, limited by `memory`.
    pub(crate) const fn within(self, memory: Option<&'a Arc<Memory>>) -> Self {
        Self { memory, ..self }
    }
}
