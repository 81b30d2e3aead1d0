//! What a session's two directions are lent to move with.

use std::sync::Arc;

use super::GiveWay;
use crate::counts::DirectionCounts;
use crate::memory::Memory;
use crate::stock::Stock;

/// What a direction moves with: the worker's shared things, and where it counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) stock: &'a Stock,
    pub(crate) counts: &'a DirectionCounts,
    pub(crate) give_way: &'a GiveWay,
    /// The memory, where it is limited.
    pub(crate) memory: Option<&'a Arc<Memory>>,
}

impl<'a> Means<'a> {
    /// The same, bound by `memory`.
    pub(crate) const fn within(self, memory: Option<&'a Arc<Memory>>) -> Self {
        Self { memory, ..self }
    }
}
