//! F-FCT on sets of relays that differ by one or two relays.
//!
//! For each base set there is one run over the base, one over each offer's relay added (a parent), and one over each two added. A run with one
//! relay more is the same as that without until the relay is lacking for the first time ([`Events`]), and is made from there only. Where it is never
//! lacking, no run is made; nor where a bound tells then that nothing can be won. Of two added relays the one that is lacking first in the
//! base's run comes first. So that no path over both is missed, the base's run notes both relays of a path that lacks two.

use std::cmp::Reverse;

use super::bounds::Bounds;
use super::{Change, Relays};
use crate::problem::Problem;
use crate::solver::flow_greedy::{Events, Lack, Lists, Rank, Run, Value};
use crate::solver::{Limits, Work};

/// The best set so far.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) relays: Option<Relays>,
    value: Option<Value>,
    /// Its place in this round's listing; none if it is of an earlier round.
    place: Option<Place>,
}

/// A set's place in the listing, of which the first of equals counts: the base, the offers added.
type Place = (usize, usize, Option<usize>);

impl Found {
    /// Forgets in which place the best set came; says whether there was a better one in this round.
    pub(super) fn end_round(&mut self) -> bool {
        self.place.take().is_some()
    }

    /// What the gain of a set on this base must exceed to matter.
    fn beat(&self, base: usize) -> i128 {
        let Some(value) = self.value else { return i128::MIN };
        // A set of this base may be as good and come first.
        value.gain - i128::from(self.place.is_some_and(|place| place.0 >= base))
    }

    fn keep_better(&mut self, value: Option<Value>, place: Place, relays: &Relays) {
        let Some(value) = value else { return };
        let is_better = |best: Value| {
            value > best || value == best && self.place.is_some_and(|first| place < first)
        };
        if self.value.is_none_or(is_better) {
            let relays = Some(relays.clone());
            *self = Self { relays, value: Some(value), place: Some(place) };
        }
    }
}

/// Which run notes what it lacks.
#[derive(Debug, Clone, Copy)]
enum Noted {
    OnBase,
    OnParent,
}

/// A set that relays are added to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base<'b> {
    /// Its place in the listing.
    pub(super) at: usize,
    pub(super) relays: &'b Relays,
    /// The offer that a relay was removed from.
    pub(super) removed: Option<usize>,
}

impl Base<'_> {
    /// Whether the set with relays of both offers more is none that an earlier base has led to: with what was removed put
    /// back, the first base has led to all.
    fn is_new(&self, one: usize, two: usize) -> bool {
        self.at == 0 || self.removed.is_none_or(|removed| removed != one && removed != two)
    }
}

/// Runs on sets of relays.
#[derive(Debug)]
pub(super) struct Trials<'a> {
    run: Run<'a>,
    bounds: Option<Bounds<'a>>,
    /// Where relays are lacking on the base, and on a parent.
    on_base: Events,
    on_parent: Events,
    /// By flow: the most reduced gain, on the base, on a parent, and with two relays more.
    most: [Vec<i64>; 3],
    /// Scratch: the first offers and the second ones.
    parents: Vec<usize>,
    children: Vec<usize>,
}

impl<'a> Trials<'a> {
    pub(super) fn new(problem: &Problem, lists: &'a Lists, change: Change) -> Self {
        let run = Run::new(problem, lists);
        let offers = problem.offers().len();
        Self {
            // 1-P makes too few runs for prices to pay.
            bounds: if change == Change::AddOne { None } else { Bounds::new(lists, &run) },
            run,
            on_base: Events::new(offers),
            on_parent: Events::new(offers),
            most: Default::default(),
            parents: Vec::new(),
            children: Vec::new(),
        }
    }

    /// What F-FCT makes of this set.
    pub(super) fn taken_on(&mut self, set: &Relays) -> &[Rank] {
        self.run.supply.clone_from(set);
        self.run.start(0);
        self.run.go(None, None, &mut Work::new(&Limits::work(u64::MAX)));
        self.run.taken()
    }

    /// Makes ready for sets that differ from this one by a relay less and some more.
    pub(super) fn begin_round(&mut self, set: &Relays) {
        if let Some(bounds) = &mut self.bounds {
            bounds.begin_round(set);
        }
    }

    /// Tries all sets of one or two relays more than this base that are new.
    pub(super) fn on_base(
        &mut self,
        base: Base<'_>,
        change: Change,
        found: &mut Found,
        work: &mut Work<'_>,
    ) {
        self.run.supply.clone_from(base.relays);
        if let Some(bounds) = &mut self.bounds {
            bounds.prepare(base.relays);
        }
        let adds_two = change != Change::AddOne;
        let on_base = self.run_on_base(adds_two, found.beat(base.at), work);
        let mut parents = std::mem::take(&mut self.parents);
        parents.clear();
        parents.extend(0..base.relays.len());
        if let Some(bounds) = &self.bounds {
            // The sooner a good set is found, the more others have lost; listed order decides between equals all the same.
            parents.sort_by_cached_key(|one| Reverse(bounds.more_by(*one)));
        }
        for one in parents.iter().copied() {
            if work.stopped || !work.step() {
                break;
            }
            if adds_two {
                self.on_parent(base, one, on_base, found, work);
            } else {
                let value = self.run_with(one, on_base, work);
                self.run.supply[one] += 1;
                found.keep_better(value, (base.at, one, None), &self.run.supply);
                self.run.supply[one] -= 1;
            }
        }
        self.parents = parents;
    }

    /// The run on the base alone, with what it lacks noted. None when no set of two more can be better.
    fn run_on_base(&mut self, adds_two: bool, beat: i128, work: &mut Work<'_>) -> Option<Value> {
        let lacks = if adds_two { 2 } else { 1 };
        self.on_base.begin(lacks);
        self.run.start(lacks);
        if let Some(bounds) = &self.bounds {
            self.run.state.hope = bounds.of_set(&mut self.most[0]);
            let offers = 0..self.run.supply.len();
            for one in offers.clone() {
                let second = offers.clone().map(|two| bounds.more_by_second(one, two)).max();
                let more = bounds.more_by(one) + second.unwrap_or(0);
                self.on_base.beat[one] = beat.saturating_sub(more);
            }
        }
        let beat = self.on_base.least_to_beat();
        self.finish(0, beat, Some(Noted::OnBase), work)
    }

    /// The run on the base with one relay more, which is the last to be added.
    fn run_with(
        &mut self,
        one: usize,
        on_base: Option<Value>,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        let state = match self.on_base.lack(one) {
            Lack::Never => return on_base,
            Lack::Lost => return None,
            Lack::Since(state) => state,
        };
        self.run.supply[one] += 1;
        self.run.resume(state, one);
        self.run.keep_within(0);
        let value = self.finish(0, i128::MIN, None, work);
        self.run.supply[one] -= 1;
        value
    }

    /// Tries the sets of one relay more than the base with `one`.
    fn on_parent(
        &mut self,
        base: Base<'_>,
        one: usize,
        on_base: Option<Value>,
        found: &mut Found,
        work: &mut Work<'_>,
    ) {
        let is_child = |trials: &Self, two: usize| {
            let comes_first = (trials.on_base.time(one), one) <= (trials.on_base.time(two), two);
            comes_first && base.is_new(one, two)
        };
        let mut children = std::mem::take(&mut self.children);
        children.clear();
        children.extend((0..base.relays.len()).filter(|two| is_child(self, *two)));
        if let Some(bounds) = &self.bounds {
            children.sort_by_cached_key(|two| Reverse(bounds.more_by_second(one, *two)));
        }
        self.run.supply[one] += 1;
        let on_parent = self.run_on_parent(one, &children, on_base, found.beat(base.at), work);
        for two in children.iter().copied() {
            if work.stopped || !work.step() {
                break;
            }
            let value = self.run_with_both(one, two, on_parent, found.beat(base.at), work);
            self.run.supply[two] += 1;
            let place = (base.at, one.min(two), Some(one.max(two)));
            found.keep_better(value, place, &self.run.supply);
            self.run.supply[two] -= 1;
        }
        self.run.supply[one] -= 1;
        self.children = children;
    }

    /// The run on the base with `one`, with what it lacks of the children's offers noted. None when none of them can be better.
    fn run_on_parent(
        &mut self,
        one: usize,
        children: &[usize],
        on_base: Option<Value>,
        beat: i128,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        self.on_parent.begin(1);
        let state = match self.on_base.lack(one) {
            Lack::Never => return on_base,
            Lack::Since(state) if !children.is_empty() => state,
            Lack::Lost | Lack::Since(_) => {
                self.on_parent.lose_the_rest();
                return None;
            }
        };
        self.run.resume(state, one);
        self.run.keep_within(1);
        self.on_parent.beat.fill(i128::MAX);
        for two in children.iter().copied() {
            let more = |bounds: &Bounds<'_>| bounds.more_by_second(one, two);
            let more = self.bounds.as_ref().map_or(0, more);
            self.on_parent.beat[two] = beat.saturating_sub(more);
        }
        if let Some(bounds) = &self.bounds {
            let [on_base, most, _] = &mut self.most;
            most.clone_from(on_base);
            let state = &mut self.run.state;
            state.hope += bounds.raise(one, None, &state.is_done, most);
        }
        let beat = self.on_parent.least_to_beat();
        self.finish(1, beat, Some(Noted::OnParent), work)
    }

    /// The run on the base with relays of both offers.
    fn run_with_both(
        &mut self,
        one: usize,
        two: usize,
        on_parent: Option<Value>,
        beat: i128,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        let state = match self.on_parent.lack(two) {
            Lack::Never => return on_parent,
            Lack::Lost => return None,
            Lack::Since(state) => state,
        };
        let mut hope = state.hope;
        if let Some(bounds) = &self.bounds {
            if hope + bounds.more_by_second(one, two) <= beat {
                return None;
            }
            let [_, on_parent, most] = &mut self.most;
            most.clone_from(on_parent);
            hope += bounds.raise(two, Some(one), &state.is_done, most);
            if hope <= beat {
                return None;
            }
        }
        self.run.supply[two] += 1;
        self.run.resume(state, two);
        self.run.state.hope = hope;
        self.run.keep_within(0);
        let value = self.finish(2, beat, None, work);
        self.run.supply[two] -= 1;
        value
    }

    /// Steps to the run's end; none when that cannot exceed `beat`.
    fn finish(
        &mut self,
        most: usize,
        beat: i128,
        noted: Option<Noted>,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        let race = self.bounds.as_ref().map(|bounds| bounds.race(&self.most[most], beat));
        let mut events = match noted {
            Some(Noted::OnBase) => Some(&mut self.on_base),
            Some(Noted::OnParent) => Some(&mut self.on_parent),
            None => None,
        };
        let is_lost = race.is_some() && self.run.state.hope <= beat;
        if !is_lost && self.run.go(race, events.as_deref_mut(), work) {
            return Some(self.run.value());
        }
        events.into_iter().for_each(Events::lose_the_rest);
        None
    }
}
