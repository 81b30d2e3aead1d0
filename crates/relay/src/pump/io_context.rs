//! What a session's two directions are lent to move with.

use std::sync::Arc;

use super::Yielding;
use crate::buffer_pool::BufferPool;
use crate::counts::DirectionCounts;
use crate::memory::Memory;

/// What a direction moves with: the worker's shared things, and where it counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IoContext<'a> {
    pub(crate) buffer_pool: &'a BufferPool,
    pub(crate) counts: &'a DirectionCounts,
    pub(crate) yielding: &'a Yielding,
    /// The memory, where it is limited.
    pub(crate) memory: Option<&'a Arc<Memory>>,
}

impl<'a> IoContext<'a> {
    /// The same, bound by `memory`.
    pub(crate) const fn within(self, memory: Option<&'a Arc<Memory>>) -> Self {
        Self { memory, ..self }
    }
}
