//! Where a run would have gone on otherwise with one relay more.
//!
//! Until a run lacks a relay of an offer for the first time, it is step for step the run over a
//! supply with one more of them. So that one need not be made from its beginning: it goes on from
//! the state noted there; and where no relay was ever lacking, it is the same run.

use super::list::Rank;
use super::run::State;

/// The first lack of a relay of each offer in one run. Kept between runs for its memory.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// How many offers a path may lack a relay of to be noted.
    pub(super) lacks: usize,
    first: Vec<Option<Rank>>,
    is_lost: Vec<bool>,
    states: Vec<State>,
    /// By offer: what a run may come to must exceed this where it goes on with a relay more.
    pub(crate) beat: Vec<i128>,
}

/// What came of a relay that a run might lack.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lack<'e> {
    /// It was never lacking.
    Never,
    /// It was, when nothing could be won any more.
    Lost,
    /// It was, and this was the state.
    Since(&'e State),
}

impl Events {
    pub(crate) fn new(offers: usize) -> Self {
        Self {
            lacks: 1,
            first: vec![None; offers],
            is_lost: vec![false; offers],
            states: vec![State::default(); offers],
            beat: vec![i128::MIN; offers],
        }
    }

    /// Forgets the last run. In the next one, paths count that lack relays of at most so many
    /// offers.
    pub(crate) fn begin(&mut self, lacks: usize) {
        self.lacks = lacks;
        self.first.fill(None);
        self.beat.fill(i128::MIN);
    }

    /// What a run may come to must exceed this for any relay more to matter.
    pub(crate) fn least_to_beat(&self) -> i128 {
        self.beat.iter().copied().min().unwrap_or(i128::MIN)
    }

    /// Whether it has been noted that a relay of the offer is lacking.
    pub(super) fn has(&self, offer: usize) -> bool {
        self.first[offer].is_some()
    }

    /// Notes that a relay of the offer is lacking by the path of this rank, if it is the first
    /// time.
    pub(super) fn note(&mut self, offer: usize, time: Rank, state: &State) {
        if self.has(offer) {
            return;
        }
        self.first[offer] = Some(time);
        self.is_lost[offer] = state.hope <= self.beat[offer];
        if !self.is_lost[offer] {
            self.states[offer].clone_from(state);
        }
    }

    /// Notes that nothing can be won with what was not lacking so far.
    pub(crate) fn lose_the_rest(&mut self) {
        for offer in 0..self.first.len() {
            if !self.has(offer) {
                self.first[offer] = Some(Rank::MAX);
                self.is_lost[offer] = true;
            }
        }
    }

    /// When a relay of the offer was lacking first; if never, after all others.
    pub(crate) fn time(&self, offer: usize) -> (bool, Option<Rank>) {
        (self.first[offer].is_none(), self.first[offer])
    }

    /// How far the run was then.
    pub(crate) fn lack(&self, offer: usize) -> Lack<'_> {
        match self.first[offer] {
            None => Lack::Never,
            Some(_) if self.is_lost[offer] => Lack::Lost,
            Some(_) => Lack::Since(&self.states[offer]),
        }
    }
}
