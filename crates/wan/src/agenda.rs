//! The event queue: the head of every FIFO that is not empty, ordered by time.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
};

use crate::{link::LineKind, segment::Nanos};

/// A FIFO of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineId(u32);

impl LineId {
    pub(crate) fn new(link: usize, kind: LineKind) -> Self {
        let link = u32::try_from(link).expect("links are counted in 30 bits");
        Self(link << 2 | kind as u32)
    }

    pub(crate) fn link(self) -> usize {
        (self.0 >> 2) as usize
    }

    pub(crate) fn kind(self) -> LineKind {
        match self.0 & 3 {
            0 => LineKind::Queue,
            1 => LineKind::Wire,
            _ => LineKind::Late,
        }
    }
}

/// FIFOs ordered by the time of their head. An entry whose time differs from its head's is out of
/// date (a rate changed) and is skipped.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agenda(BinaryHeap<Reverse<(Nanos, LineId)>>);

impl Agenda {
    pub(crate) fn add(&mut self, at: Nanos, line: LineId) {
        self.0.push(Reverse((at, line)));
    }

    /// Returns the earliest entry; among equals the FIFO with the smallest number.
    pub(crate) fn first(&self) -> Option<(Nanos, LineId)> {
        self.0.peek().map(|entry| entry.0)
    }

    /// Reschedules the FIFO of the earliest entry at `next`, or removes the entry.
    pub(crate) fn replace_first(&mut self, next: Option<Nanos>) {
        let Some(mut first) = self.0.peek_mut() else { return };
        match next {
            Some(at) => first.0.0 = at,
            None => {
                PeekMut::pop(first);
            }
        }
    }

    /// Returns all entries, in no particular order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Nanos, LineId)> {
        self.0.iter().map(|entry| entry.0)
    }
}
