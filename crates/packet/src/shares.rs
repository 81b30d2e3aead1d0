//! Bounded storage shared by owners, with eviction from the owner with most.
//!
//! Bounded by age, bytes and number. Beyond the bounds the oldest entry of the owner with most is
//! evicted, so that an owner who sends much cannot evict others' entries.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use tradewind_units::{Duration, Timestamp};

use crate::capacity;
use crate::id::Tenant;

/// The number of owners whose comparison counts as one kept entry. Chosen: about what keeping one
/// costs.
const ENTRIES_OF_A_LOOK: usize = 8;

/// The bounds of the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) age: Duration,
    pub(crate) bytes: u64,
    pub(crate) count: usize,
}

/// The entries by owner, each represented by its `T`. The keeper forgets the entries that are
/// handed to `forget`, which returns their bytes.
#[derive(Debug, Clone)]
pub(crate) struct Shares<T> {
    bounds: Bounds,
    bytes: u64,
    count: usize,
    by_owner: BTreeMap<Tenant, Share<T>>,
    /// The owner with most at the last comparison, and how many of its entries may be evicted
    /// before the next one.
    largest: (Tenant, usize),
}

/// The entries of one owner, in order of arrival.
#[derive(Debug, Clone)]
struct Share<T> {
    bytes: u64,
    entries: VecDeque<(Timestamp, T)>,
}

impl<T> Shares<T> {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, bytes: 0, count: 0, by_owner: BTreeMap::new(), largest: (Tenant(0), 0) }
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns how many entries are kept.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the bytes of all entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether an entry of this length can be kept at all.
    pub(crate) fn may_hold(&self, bytes: u64) -> bool {
        bytes <= self.bounds.bytes && self.bounds.count > 0
    }

    /// Adds an entry of `owner`.
    pub(crate) fn add(&mut self, now: Timestamp, owner: Tenant, entry: T, bytes: u64) {
        let share = self.by_owner.entry(owner);
        let share = share.or_insert_with(|| Share { bytes: 0, entries: VecDeque::new() });
        share.entries.push_back((now, entry));
        share.bytes += bytes;
        self.bytes += bytes;
        self.count += 1;
    }

    /// Notes that an entry of `owner` has become longer.
    pub(crate) fn lengthen(&mut self, owner: Tenant, bytes: u64) {
        if let Some(share) = self.by_owner.get_mut(&owner) {
            share.bytes += bytes;
            self.bytes += bytes;
        }
    }

    /// Evicts entries until `count` more, of so many bytes, are within the bounds: expired ones,
    /// then the oldest of the owner with most of whatever is over its bound. So many are evicted
    /// between two comparisons of all owners that these cost little for each.
    pub(crate) fn make_room(
        &mut self,
        now: Timestamp,
        (count, bytes): (usize, u64),
        mut forget: impl FnMut(T) -> u64,
    ) {
        let Bounds { bytes: most_bytes, count: most, .. } = self.bounds;
        let is_tight = |all: &Self| (all.bytes + bytes > most_bytes, all.count + count > most);
        while is_tight(self) != (false, false) && !self.is_empty() {
            let (owner, left) = self.largest;
            let is_there = self.by_owner.get(&owner).is_some_and(|share| !share.entries.is_empty());
            if left > 0 && is_there {
                self.largest.1 -= 1;
                self.pop(owner, &mut forget);
                continue;
            }
            self.expire(now, &mut forget);
            let (_, are_too_many) = is_tight(self);
            let size = |share: &Share<T>| {
                if are_too_many { share.entries.len() as u64 } else { share.bytes }
            };
            let largest = self.by_owner.iter().max_by_key(|(_, share)| size(share));
            let Some(owner) = largest.map(|(owner, _)| *owner) else { return };
            if is_tight(self) != (false, false) {
                self.largest = (owner, self.by_owner.len() / ENTRIES_OF_A_LOOK);
                self.pop(owner, &mut forget);
            }
        }
    }

    /// Removes expired entries, and owners without entries.
    pub(crate) fn expire(&mut self, now: Timestamp, mut forget: impl FnMut(T) -> u64) {
        let mut next = self.by_owner.keys().next().copied();
        while let Some(owner) = next {
            self.expire_of(owner, now, &mut forget);
            let later = (Bound::Excluded(owner), Bound::Unbounded);
            next = self.by_owner.range(later).next().map(|(owner, _)| *owner);
        }
        self.by_owner.retain(|_, share| !share.entries.is_empty());
        self.largest.1 = 0;
    }

    /// Removes expired entries of one owner.
    pub(crate) fn expire_of(
        &mut self,
        owner: Tenant,
        now: Timestamp,
        mut forget: impl FnMut(T) -> u64,
    ) {
        let Some(share) = self.by_owner.get(&owner) else { return };
        let is_old = |entry: &&(Timestamp, T)| now.since(entry.0) > self.bounds.age;
        let many = share.entries.iter().take_while(is_old).count();
        (0..many).for_each(|_| self.pop(owner, &mut forget));
    }

    fn pop(&mut self, owner: Tenant, forget: &mut impl FnMut(T) -> u64) {
        let Some(share) = self.by_owner.get_mut(&owner) else { return };
        let Some((_, entry)) = share.entries.pop_front() else { return };
        capacity::give_back(&mut share.entries);
        let bytes = forget(entry);
        share.bytes -= bytes;
        self.bytes -= bytes;
        self.count -= 1;
    }
}

#[cfg(test)]
impl<T> Shares<T> {
    /// Returns how many bytes each owner has.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        self.by_owner.values().map(|share| share.bytes)
    }
}
