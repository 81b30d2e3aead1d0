//! A map of numbered values of several owners, such as the packets of flows or the blocks of
//! relays, by owner and number.
//!
//! Values are found by their distance from an owner's lowest number, since most numbers come in
//! order, with few gaps, and are removed in the same order. Numbers far from all others are kept
//! apart, and unused memory is freed, so that no choice of numbers is expensive. While an owner's
//! numbers come and go in order, nothing is allocated once there is memory for as many as are known
//! at a time.

use std::collections::{BTreeMap, VecDeque};

use crate::capacity;

/// Gaps that may be kept beside the known numbers, for late ones. Chosen: more than packets
/// overtake each other.
const SPARE_GAPS: usize = 64;
/// Places, of known numbers and gaps, for each known number, beyond which numbers are kept apart.
/// Chosen: more gaps than usual arrivals leave.
const MAX_SPREAD: usize = 4;

/// The map.
#[derive(Debug, Clone)]
pub(crate) struct Numbered<K, T> {
    owners: BTreeMap<K, Series<T>>,
}

/// The values of one owner.
#[derive(Debug, Clone)]
struct Series<T> {
    /// The number of the first place in `near`.
    first: u64,
    /// The values from `first` on, `None` for gaps; begins with a value, unless it is empty.
    near: VecDeque<Option<T>>,
    /// The number of values in `near`.
    known: usize,
    remote: BTreeMap<u64, T>,
}

impl<K, T> Default for Numbered<K, T> {
    fn default() -> Self {
        Self { owners: BTreeMap::new() }
    }
}

impl<K: Ord, T> Numbered<K, T> {
    pub(crate) fn get(&self, owner: K, number: u64) -> Option<&T> {
        self.owners.get(&owner)?.get(number)
    }

    pub(crate) fn get_mut(&mut self, owner: K, number: u64) -> Option<&mut T> {
        self.owners.get_mut(&owner)?.get_mut(number)
    }

    /// Adds a value whose number is not known yet.
    pub(crate) fn insert(&mut self, owner: K, number: u64, value: T) {
        self.owners.entry(owner).or_insert_with(Series::new).insert(number, value);
    }

    pub(crate) fn remove(&mut self, owner: K, number: u64) -> Option<T> {
        let series = self.owners.get_mut(&owner)?;
        let removed = series.remove(number);
        if series.near.is_empty() && series.remote.is_empty() {
            self.owners.remove(&owner);
        }
        removed
    }
}

impl<T> Series<T> {
    fn new() -> Self {
        Self { first: 0, near: VecDeque::new(), known: 0, remote: BTreeMap::new() }
    }

    /// Returns the place in `near` that a number has or would have.
    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }

    fn get(&self, number: u64) -> Option<&T> {
        let near = self.place(number).and_then(|place| self.near.get(place)?.as_ref());
        near.or_else(|| self.remote.get(&number))
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = self.place(number);
        let near = place.and_then(|place| self.near.get_mut(place)?.as_mut());
        near.or_else(|| self.remote.get_mut(&number))
    }

    fn insert(&mut self, number: u64, value: T) {
        debug_assert!(self.get(number).is_none(), "number {number} is known");
        if self.near.is_empty() {
            self.first = number;
        }
        let most_places = 2 * self.known + SPARE_GAPS;
        let Some(place) = self.place(number).filter(|place| *place <= most_places) else {
            self.remote.insert(number, value);
            return;
        };
        while self.near.len() <= place {
            self.near.push_back(None);
        }
        self.near[place] = Some(value);
        self.known += 1;
    }

    fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.place(number);
        let Some(removed) = place.and_then(|place| self.near.get_mut(place)?.take()) else {
            return self.remote.remove(&number);
        };
        self.known -= 1;
        while let Some(None) = self.near.front() {
            self.near.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        while let Some(None) = self.near.back() {
            self.near.pop_back();
        }
        self.give_back();
        Some(removed)
    }

    /// Frees memory that is much more than needed.
    fn give_back(&mut self) {
        if self.near.len() > MAX_SPREAD * (self.known + SPARE_GAPS) {
            let apart = std::mem::take(&mut self.near).into_iter().enumerate();
            let first = self.first;
            self.remote
                .extend(apart.filter_map(|(place, value)| Some((first + place as u64, value?))));
            self.known = 0;
        } else {
            capacity::give_back(&mut self.near);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The last number, and others near it.
    #[test]
    fn last_number_is_the_maximum() {
        let mut numbered = Numbered::default();
        for number in [u64::MAX, 0, u64::MAX - 1, u64::MAX - 70] {
            numbered.insert((), number, number);
            assert_eq!(numbered.get((), number), Some(&number));
        }
        for number in [u64::MAX - 70, u64::MAX, 0, u64::MAX - 1] {
            assert_eq!(numbered.remove((), number), Some(number));
        }
        assert!(numbered.owners.is_empty());
    }

    /// Returns steps from number to number that leave gaps of all kinds.
    fn steps() -> impl Strategy<Value = i64> {
        prop_oneof![8 => Just(1_i64), 4 => -5..6_i64, 1 => -300..300_i64,
            1 => -1_000_000..1_000_000_i64]
    }

    proptest! {
        #[test]
        fn numbered_agrees_with_map(
            changes in prop::collection::vec((0..3_u8, steps(), 0..3_u8), 1..400),
        ) {
            let (mut numbered, mut map) = (Numbered::default(), BTreeMap::new());
            let mut number = 5_000_000_u64;
            let mut order = VecDeque::new();
            for (index, (owner, step, also_removed)) in changes.into_iter().enumerate() {
                number = number.saturating_add_signed(step);
                let removed = map.remove(&(owner, number));
                if removed.is_some() {
                    prop_assert_eq!(numbered.remove(owner, number), removed);
                } else {
                    numbered.insert(owner, number, index);
                    map.insert((owner, number), index);
                    order.push_back((owner, number));
                }
                for _ in 0..also_removed {
                    if let Some((owner, number)) = order.pop_front() {
                        prop_assert_eq!(numbered.remove(owner, number),
                            map.remove(&(owner, number)));
                    }
                }
                for ((owner, number), value) in &map {
                    prop_assert_eq!(numbered.get(*owner, *number), Some(value));
                    prop_assert_eq!(numbered.get_mut(*owner, *number).copied(), Some(*value));
                }
                prop_assert_eq!(numbered.get(owner, number + 1), map.get(&(owner, number + 1)));
            }
            map.into_iter().for_each(|((owner, number), value)| {
                assert_eq!(numbered.remove(owner, number), Some(value));
            });
            prop_assert!(numbered.owners.is_empty());
        }
    }

    #[test]
    fn sparse_numbers_use_bounded_memory() {
        let mut numbered = Numbered::default();
        for number in 0..10_000_u64 {
            numbered.insert((), number * 60, ());
        }
        let series = &numbered.owners[&()];
        assert_eq!(series.known + series.remote.len(), 10_000);
        assert!(series.near.capacity() < 50_000, "{} places", series.near.capacity());
    }

    #[test]
    fn memory_is_freed_whichever_number_stays() {
        let last = 100_000 - 1;
        for stays in [0, last / 2, last] {
            let mut numbered = Numbered::default();
            (0..=last).for_each(|number| numbered.insert((), number, number));
            for number in (0..=last).filter(|number| *number != stays) {
                assert_eq!(numbered.remove((), number), Some(number));
            }
            assert_eq!(numbered.get((), stays), Some(&stays));
            let places = numbered.owners[&()].near.capacity();
            assert!(places <= 2 * capacity::SPARE, "{places} places for one number");
        }
    }
}
