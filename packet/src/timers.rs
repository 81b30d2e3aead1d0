//! What is due when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tradewind_units::Timestamp;

/// Deadlines with what they are for; equal ones in the order of their keys, so that a run is the same each time.
///
/// Nothing is taken back: whoever set a deadline that no longer holds ignores it when it is due.
#[derive(Debug, Clone)]
pub(crate) struct Timers<K> {
    heap: BinaryHeap<Reverse<(Timestamp, K)>>,
}

impl<K: Ord> Default for Timers<K> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new() }
    }
}

impl<K: Ord + Copy> Timers<K> {
    /// Sets a deadline.
    pub(crate) fn set(&mut self, at: Timestamp, key: K) {
        self.heap.push(Reverse((at, key)));
    }

    /// The first deadline.
    pub(crate) fn first(&self) -> Option<(Timestamp, K)> {
        self.heap.peek().map(|Reverse(first)| *first)
    }

    /// Takes the first deadline if it is due.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<(Timestamp, K)> {
        self.first().filter(|(at, _)| *at <= now)?;
        self.heap.pop().map(|Reverse(first)| first)
    }
}
