//! The states from which runs over a larger supply can be resumed.
//!
//! Until a run lacks a relay of an offer for the first time, it equals step by step the run over a
//! supply with one more of them. So that run need not start from the beginning: it resumes from the
//! state saved there; and where no relay was ever lacking, it is the same run.

use super::list::Rank;
use super::run::State;

/// The first lack of a relay of each offer in one run. Reused between runs to save allocations.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The most offers without a relay that a recorded path may have.
    pub(super) lacks: usize,
    first: Vec<Option<Rank>>,
    is_lost: Vec<bool>,
    states: Vec<State>,
    /// By offer: the value that a run resumed with one more relay must exceed.
    pub(crate) threshold: Vec<i128>,
}

/// The state of a run at its first lack of a relay.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lack<'e> {
    /// No relay was lacking.
    Never,
    /// A relay was lacking when the run could not win any more.
    Lost,
    /// A relay was lacking in this state.
    Since(&'e State),
}

impl Events {
    pub(crate) fn new(offers: usize) -> Self {
        Self {
            lacks: 1,
            first: vec![None; offers],
            is_lost: vec![false; offers],
            states: vec![State::default(); offers],
            threshold: vec![i128::MIN; offers],
        }
    }

    /// Clears the last run's records. In the next one, only paths are recorded that lack relays of
    /// at most so many offers.
    pub(crate) fn begin(&mut self, lacks: usize) {
        self.lacks = lacks;
        self.first.fill(None);
        self.threshold.fill(i128::MIN);
    }

    /// Returns the least value to exceed over all offers.
    pub(crate) fn least_threshold(&self) -> i128 {
        self.threshold.iter().copied().min().unwrap_or(i128::MIN)
    }

    /// Returns whether a lack of the offer has been recorded.
    pub(super) fn has(&self, offer: usize) -> bool {
        self.first[offer].is_some()
    }

    /// Records that the path of this rank lacks a relay of the offer, if it is the first one.
    pub(super) fn note(&mut self, offer: usize, time: Rank, state: &State) {
        if self.has(offer) {
            return;
        }
        self.first[offer] = Some(time);
        self.is_lost[offer] = state.hope <= self.threshold[offer];
        if !self.is_lost[offer] {
            self.states[offer].clone_from(state);
        }
    }

    /// Records that a run with one more relay cannot win, for all offers not lacking so far.
    pub(crate) fn lose_the_rest(&mut self) {
        for offer in 0..self.first.len() {
            if !self.has(offer) {
                self.first[offer] = Some(Rank::MAX);
                self.is_lost[offer] = true;
            }
        }
    }

    /// Returns a sort key by the first lack of the offer; offers that never lack a relay come last.
    pub(crate) fn time(&self, offer: usize) -> (bool, Option<Rank>) {
        (self.first[offer].is_none(), self.first[offer])
    }

    /// Returns the state at the first lack of the offer.
    pub(crate) fn lack(&self, offer: usize) -> Lack<'_> {
        match self.first[offer] {
            None => Lack::Never,
            Some(_) if self.is_lost[offer] => Lack::Lost,
            Some(_) => Lack::Since(&self.states[offer]),
        }
    }
}
