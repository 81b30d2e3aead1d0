//! Where a run would have gone on otherwise with one relay more.
//!
//! Until a run lacks a relay of an offer for the first time, it is step for step the run over a supply with one
//! more of them. So that one need not be made from its beginning: it goes on from the state noted there; and where
//! no relay was ever lacking, it is the same run.

use super::run::State;

/// The first lack of a relay of each offer in one run. Kept between runs for its memory.
#[derive(Debug, Default)]
pub(crate) struct Events {
    first: Vec<Option<u64>>,
    states: Vec<State>,
}

impl Events {
    pub(crate) fn new(offers: usize) -> Self {
        Self { first: vec![None; offers], states: vec![State::default(); offers] }
    }

    /// Forgets the last run.
    pub(crate) fn clear(&mut self) {
        self.first.fill(None);
    }

    /// Notes that a relay of the offer is lacking, if it is the first time.
    pub(crate) fn note(&mut self, offer: usize, time: u64, state: &State) {
        if self.first[offer].is_none() {
            self.first[offer] = Some(time);
            self.states[offer].clone_from(state);
        }
    }

    /// When that was, on a scale of its own, and how far the run was.
    pub(crate) fn first(&self, offer: usize) -> Option<(u64, &State)> {
        self.first[offer].map(|time| (time, &self.states[offer]))
    }
}
