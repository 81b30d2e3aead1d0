//! F-FCT on a set that relays are added to, with the states from which runs over more relays
//! resume.

use super::bounds::{Bounds, Prospects};
use super::found::Found;
use super::{Change, Relays};
use crate::solver::Work;
use crate::solver::flow_greedy::{Events, Run, Value};

/// A set that relays are added to. Reused between rounds to save allocations.
#[derive(Debug)]
pub(super) struct Base<'a> {
    run: Run<'a>,
    /// Its index in the listing.
    pub(super) at: usize,
    pub(super) relays: Relays,
    /// The offer that a relay was removed from.
    removed: Option<usize>,
    /// F-FCT's value on it. None when no set of two more can be better.
    pub(super) value: Option<Value>,
    /// The first lacks of relays in its run.
    pub(super) events: Events,
    pub(super) prospects: Option<Prospects>,
}

impl<'a> Base<'a> {
    pub(super) fn new(run: Run<'a>) -> Self {
        let offers = run.supply.len();
        Self {
            run,
            at: 0,
            relays: Vec::new(),
            removed: None,
            value: None,
            events: Events::new(offers),
            prospects: None,
        }
    }

    /// Replaces the base by another one.
    pub(super) fn become_that(&mut self, at: usize, removed: Option<usize>, relays: Relays) {
        (self.at, self.removed, self.relays) = (at, removed, relays);
    }

    /// Runs F-FCT on this set and records the relays that it lacks.
    pub(super) fn make_run(
        &mut self,
        bounds: Option<&Bounds<'_>>,
        change: Change,
        found: &Found,
        work: &mut Work<'_>,
    ) {
        let lacks = if change == Change::AddOne { 1 } else { 2 };
        self.events.begin(lacks);
        self.run.supply.clone_from(&self.relays);
        self.run.start(lacks);
        if let Some(bounds) = bounds {
            let prospects = self.prospects.get_or_insert_default();
            bounds.look_up(&self.relays, prospects);
            self.run.state.hope = prospects.of_set;
            for one in 0..self.relays.len() {
                let more = prospects.more_by_two(one);
                self.events.threshold[one] = found.threshold(self.at).saturating_sub(more);
            }
        }
        let threshold = self.events.least_threshold();
        let race = bounds.zip(self.prospects.as_ref());
        let race = race.map(|(bounds, p)| bounds.race(&p.most, threshold));
        self.value = self.run.finish(race, Some(&mut self.events), work);
    }

    /// Returns whether no earlier base leads to the set with relays of both offers more: the first
    /// base leads to all sets in which the removed relay is added again.
    pub(super) fn is_new(&self, one: usize, two: usize) -> bool {
        self.at == 0 || self.removed.is_none_or(|removed| removed != one && removed != two)
    }

    /// Returns a cheap upper bound on the values of all sets with one more relay of this offer.
    pub(super) fn hope_with(&self, one: usize) -> i128 {
        let hope = |prospects: &Prospects| prospects.of_set + prospects.more_by_two(one);
        self.prospects.as_ref().map_or(i128::MAX, hope)
    }
}
