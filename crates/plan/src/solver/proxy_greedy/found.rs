//! The best set so far.

use std::sync::{Mutex, PoisonError};

use super::Relays;
use crate::solver::flow_greedy::Value;

/// The best set so far.
#[derive(Debug, Default, Clone)]
pub(super) struct Found {
    pub(super) relays: Option<Relays>,
    value: Option<Value>,
    /// Its position in this round's listing; none if it is of an earlier round.
    place: Option<ListingPosition>,
}

/// A set's position in the listing, of which the first of equals counts: the base, the offers
/// added.
pub(super) type ListingPosition = (usize, usize, Option<usize>);

impl Found {
    /// Clears the position of the best set; returns whether this round found a better one.
    pub(super) fn end_round(&mut self) -> bool {
        self.place.take().is_some()
    }

    /// Returns the gain that a set on this base must exceed to matter.
    pub(super) fn threshold(&self, base: usize) -> i128 {
        let Some(value) = self.value else { return i128::MIN };
        // A set of this base may be as good and come first in the listing.
        value.gain - i128::from(self.place.is_some_and(|place| place.0 >= base))
    }

    pub(super) fn keep_better(
        &mut self,
        value: Option<Value>,
        place: ListingPosition,
        relays: &Relays,
    ) {
        let Some(value) = value else { return };
        let is_better = |best: Value| {
            value > best || value == best && self.place.is_some_and(|first| place < first)
        };
        if self.value.is_none_or(is_better) {
            let relays = Some(relays.clone());
            *self = Self { relays, value: Some(value), place: Some(place) };
        }
    }

    /// Sets both to the better one of this and of `others`, found in the same round.
    pub(super) fn exchange(&mut self, others: &Mutex<Self>) {
        let mut best = others.lock().unwrap_or_else(PoisonError::into_inner);
        if (best.value, best.place) == (self.value, self.place) {
            return;
        }
        if let (Some(place), Some(relays)) = (self.place, &self.relays) {
            best.keep_better(self.value, place, relays);
        }
        self.clone_from(&best);
    }
}
