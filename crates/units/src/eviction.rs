//! An eviction queue of connections: the source that holds most of them loses its oldest.
//!
//! So one host that opens connections by the thousand, quickly or slowly, evicts its own. Among
//! sources that hold equally many the oldest connection is evicted; a trusted source loses one only
//! where there is no other.
//!
//! A task is the handle by which the caller ends a connection.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::Source;

/// A source as it is ranked for eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// True if it loses connections only where there is no other source.
    pub is_trusted: bool,
    /// The source.
    pub source: Source,
}

/// Connections that may be evicted, by number in the order of their arrival.
#[derive(Debug)]
pub struct EvictionQueue<T> {
    waiting: BTreeMap<u64, (Holder, T)>,
    by_holder: BTreeMap<Holder, BTreeSet<u64>>,
    /// The sources ranked; the last one is evicted from next.
    ranks: BTreeSet<Rank>,
}

/// A source's place in the order of eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_untrusted: bool,
    held: usize,
    oldest: Reverse<u64>,
    holder: Holder,
}

impl<T> EvictionQueue<T> {
    /// Creates an empty queue.
    #[must_use]
    pub const fn new() -> Self {
        Self { waiting: BTreeMap::new(), by_holder: BTreeMap::new(), ranks: BTreeSet::new() }
    }

    /// Returns how many connections there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether this one is there.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.waiting.contains_key(&number)
    }

    /// Returns what serves a connection, if it is there still.
    pub fn task(&self, number: u64) -> Option<&T> {
        self.waiting.get(&number).map(|(_, task)| task)
    }

    /// Adds a connection, which `task` serves.
    pub fn insert(&mut self, number: u64, holder: Holder, task: T) {
        self.waiting.insert(number, (holder, task));
        self.change(holder, |theirs| theirs.insert(number));
    }

    /// Removes a connection, if it is there still.
    pub fn remove(&mut self, number: u64) -> Option<(Holder, T)> {
        let (holder, task) = self.waiting.remove(&number)?;
        self.change(holder, |theirs| theirs.remove(&number));
        Some((holder, task))
    }

    /// Removes the oldest connection of the source that holds most, and returns its task.
    pub fn evict(&mut self) -> Option<T> {
        let Rank { oldest: Reverse(number), .. } = *self.ranks.last()?;
        self.remove(number).map(|(_, task)| task)
    }

    /// Changes what a source holds, and its rank with it.
    fn change(&mut self, holder: Holder, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        let theirs = self.by_holder.entry(holder).or_default();
        if let Some(rank) = Rank::of(holder, theirs) {
            self.ranks.remove(&rank);
        }
        change(theirs);
        match Rank::of(holder, theirs) {
            Some(rank) => {
                self.ranks.insert(rank);
            }
            None => {
                self.by_holder.remove(&holder);
            }
        }
    }
}

impl Rank {
    /// Returns the rank of a source that holds `theirs`; `None` when that is nothing.
    fn of(holder: Holder, theirs: &BTreeSet<u64>) -> Option<Self> {
        let oldest = Reverse(*theirs.first()?);
        Some(Self { is_untrusted: !holder.is_trusted, held: theirs.len(), oldest, holder })
    }
}

impl<T> Default for EvictionQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(last: u8) -> Holder {
        Holder { is_trusted: false, source: Source::of([192, 0, 2, last].into()) }
    }

    #[test]
    fn oldest_of_largest_holder_is_evicted() {
        let mut queue = EvictionQueue::new();
        let trusted = Holder { is_trusted: true, ..holder(7) };
        let arrivals = [trusted, trusted, trusted, holder(1), holder(2), holder(2)];
        for (number, holder) in (0..).zip(arrivals) {
            queue.insert(number, holder, number);
        }
        let evicted: Vec<u64> = std::iter::from_fn(|| queue.evict()).collect();
        assert_eq!(evicted, [4, 3, 5, 0, 1, 2]);
        assert!(queue.is_empty() && queue.by_holder.is_empty() && queue.ranks.is_empty());
    }

    #[test]
    fn removed_connections_do_not_count() {
        let mut queue = EvictionQueue::new();
        for (number, last) in [(1, 9), (2, 9), (3, 1)] {
            queue.insert(number, holder(last), number);
        }
        assert_eq!(queue.remove(1), Some((holder(9), 1)));
        assert_eq!(queue.remove(1), None);
        assert!(queue.contains(2) && !queue.contains(1));
        assert_eq!(queue.evict(), Some(2), "the oldest of equals");
        assert_eq!(queue.len(), 1);
    }
}
