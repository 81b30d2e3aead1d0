//! F-FCT on sets of relays that differ by one or two relays.
//!
//! For each base set there is one run over the base, one over each offer's relay added (a parent),
//! and one over each two added. A run with one more relay is the same as that without until the
//! relay is lacking for the first time ([`Events`]), and is resumed from there. Where it is never
//! lacking, no run is made; nor where a bound shows that the run cannot win. Of two added relays
//! the one that is lacking first in the base's run is added first. So that no path over both is
//! missed, the base's run records both relays of a path that lacks two.

use std::cmp::Reverse;

use super::base::Base;
use super::bounds::{Bounds, Prospects};
use super::found::Found;
use super::{Change, Relays};
use crate::solver::flow_greedy::{Events, Lack, Rank, Run, Value};
use crate::solver::{Limits, Work};

/// Runs with relays added to a base. Reused to save allocations.
#[derive(Debug)]
pub(super) struct Trials<'a> {
    run: Run<'a>,
    /// The first lacks of relays in a parent's run.
    on_parent: Events,
    /// By flow: the greatest reduced gain, on a parent, and with two more relays.
    most: [Vec<i64>; 2],
    /// Scratch: the second offers.
    children: Vec<usize>,
}

/// A base, and the bounds on the runs over it, if any.
#[derive(Debug, Clone, Copy)]
struct BoundedBase<'b> {
    base: &'b Base<'b>,
    bounds: Option<(&'b Bounds<'b>, &'b Prospects)>,
}

impl<'a> Trials<'a> {
    pub(super) fn new(run: Run<'a>) -> Self {
        let on_parent = Events::new(run.supply.len());
        Self { run, on_parent, most: Default::default(), children: Vec::new() }
    }

    /// Returns the paths that F-FCT takes on this set.
    pub(super) fn selected_on(&mut self, set: &Relays) -> &[Rank] {
        self.run.supply.clone_from(set);
        self.run.start(0);
        self.run.go(None, None, &mut Work::new(&Limits::work(u64::MAX)));
        self.run.selected()
    }

    /// Tries the new sets of this base and a relay of the offer, or of it and one of those that are
    /// not lacking earlier.
    pub(super) fn with(
        &mut self,
        base: &Base<'_>,
        one: usize,
        (bounds, change): (Option<&Bounds<'_>>, Change),
        found: &mut Found,
        work: &mut Work<'_>,
    ) {
        if work.stopped || !work.step() || base.hope_with(one) <= found.threshold(base.at) {
            return;
        }
        let bounded = BoundedBase { base, bounds: bounds.zip(base.prospects.as_ref()) };
        self.run.supply.clone_from(&base.relays);
        self.run.supply[one] += 1;
        if change == Change::AddOne {
            let value = self.run_with_one(bounded, one, work);
            found.keep_better(value, (base.at, one, None), &self.run.supply);
        } else {
            self.with_two(bounded, one, found, work);
        }
    }

    /// Runs the base with one more relay, the last to be added.
    fn run_with_one(
        &mut self,
        bounded: BoundedBase<'_>,
        one: usize,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        let state = match bounded.base.events.lack(one) {
            Lack::Never => return bounded.base.value,
            Lack::Lost => return None,
            Lack::Since(state) => state,
        };
        self.run.resume(state, one);
        self.run.keep_within(0);
        self.run.finish(None, None, work)
    }

    /// Tries the sets of one more relay than the base with `one`.
    fn with_two(
        &mut self,
        bounded: BoundedBase<'_>,
        one: usize,
        found: &mut Found,
        work: &mut Work<'_>,
    ) {
        let BoundedBase { base, bounds } = bounded;
        let is_child = |two: usize| {
            let comes_first = (base.events.time(one), one) <= (base.events.time(two), two);
            comes_first && base.is_new(one, two)
        };
        let mut children = std::mem::take(&mut self.children);
        children.clear();
        children.extend((0..base.relays.len()).filter(|two| is_child(*two)));
        if let Some((_, prospects)) = bounds {
            // The sooner a good set is found, the more of the others end early; the order in the
            // listing still decides between equals.
            children.sort_by_cached_key(|two| Reverse(prospects.more_by_second(one, *two)));
        }
        let threshold = found.threshold(base.at);
        let on_parent = self.run_on_parent(bounded, one, &children, threshold, work);
        for two in children.iter().copied() {
            if work.stopped || !work.step() {
                break;
            }
            let pair = (one, two);
            let value =
                self.run_with_both(bounded, pair, on_parent, found.threshold(base.at), work);
            self.run.supply[two] += 1;
            let place = (base.at, one.min(two), Some(one.max(two)));
            found.keep_better(value, place, &self.run.supply);
            self.run.supply[two] -= 1;
        }
        self.children = children;
    }

    /// Runs the base with `one` and records its lacks of the children's offers. Returns none when
    /// none of them can be better.
    fn run_on_parent(
        &mut self,
        BoundedBase { base, bounds }: BoundedBase<'_>,
        one: usize,
        children: &[usize],
        threshold: i128,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        self.on_parent.begin(1);
        let state = match base.events.lack(one) {
            Lack::Never => return base.value,
            Lack::Since(state) if !children.is_empty() => state,
            Lack::Lost | Lack::Since(_) => {
                self.on_parent.lose_the_rest();
                return None;
            }
        };
        self.run.resume(state, one);
        self.run.keep_within(1);
        self.on_parent.threshold.fill(i128::MAX);
        for two in children.iter().copied() {
            let more = bounds.map_or(0, |(_, prospects)| prospects.more_by_second(one, two));
            self.on_parent.threshold[two] = threshold.saturating_sub(more);
        }
        let threshold = self.on_parent.least_threshold();
        let [most, _] = &mut self.most;
        if let Some((_, prospects)) = bounds {
            most.clone_from(&prospects.most);
            let state = &mut self.run.state;
            state.hope += prospects.raise(one, None, &state.is_done, most);
        }
        let race = bounds.map(|(bounds, _)| bounds.race(most, threshold));
        self.run.finish(race, Some(&mut self.on_parent), work)
    }

    /// Runs the base with relays of both offers.
    fn run_with_both(
        &mut self,
        bounded: BoundedBase<'_>,
        (one, two): (usize, usize),
        on_parent: Option<Value>,
        threshold: i128,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        let state = match self.on_parent.lack(two) {
            Lack::Never => return on_parent,
            Lack::Lost => return None,
            Lack::Since(state) => state,
        };
        let mut hope = state.hope;
        let [on_parent, most] = &mut self.most;
        if let Some((_, prospects)) = bounded.bounds {
            if hope + prospects.more_by_second(one, two) <= threshold {
                return None;
            }
            most.clone_from(on_parent);
            hope += prospects.raise(two, Some(one), &state.is_done, most);
            if hope <= threshold {
                return None;
            }
        }
        self.run.supply[two] += 1;
        self.run.resume(state, two);
        self.run.state.hope = hope;
        self.run.keep_within(0);
        let race = bounded.bounds.map(|(bounds, _)| bounds.race(most, threshold));
        let value = self.run.finish(race, None, work);
        self.run.supply[two] -= 1;
        value
    }
}
