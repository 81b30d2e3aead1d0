//! What happens next: the head of every line that is not empty, in order of time.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
};

use crate::{link::LineKind, segment::Nanos};

/// A line of a link.
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

/// Lines by the time of their head. An entry whose time is not its line's head's is out of date
/// (a rate changed) and to be passed over.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agenda(BinaryHeap<Reverse<(Nanos, LineId)>>);

impl Agenda {
    pub(crate) fn add(&mut self, at: Nanos, line: LineId) {
        self.0.push(Reverse((at, line)));
    }

    /// The earliest entry; among equals the line with the smallest number.
    pub(crate) fn first(&self) -> Option<(Nanos, LineId)> {
        self.0.peek().map(|entry| entry.0)
    }

    /// Gives the earliest entry's line its next time, or takes it off.
    pub(crate) fn replace_first(&mut self, next: Option<Nanos>) {
        let Some(mut first) = self.0.peek_mut() else { return };
        match next {
            Some(at) => first.0.0 = at,
            None => {
                PeekMut::pop(first);
            }
        }
    }

    /// All entries, in no particular order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Nanos, LineId)> {
        self.0.iter().map(|entry| entry.0)
    }
}
