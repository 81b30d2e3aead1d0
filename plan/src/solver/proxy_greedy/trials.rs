//! F-FCT on sets of relays that differ by one or two relays.
//!
//! For each base set there is one run over the base, one over each offer's relay added, and one over each two added. A run with one
//! relay more is the same as that without until the relay is lacking for the first time ([`Events`]), and is made from there only. Where it is never
//! lacking, no run is made. Of two added relays the one that is lacking first in the base's run comes first.

use super::bounds::Bounds;
use super::first::FirstPaths;
use super::{Change, Relays};
use crate::problem::Problem;
use crate::solver::flow_greedy::{Events, Lists, Rank, Run, Value};
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
        // A set of the same base may be as good and come first.
        value.gain - i128::from(self.place.is_some_and(|place| place.0 == base))
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

/// Which notes a run makes of what it lacks.
#[derive(Debug, Clone, Copy)]
enum Noted {
    OnBase,
    OnParent,
    Nowhere,
}

/// Runs on sets of relays.
#[derive(Debug)]
pub(super) struct Trials<'a> {
    run: Run<'a>,
    first: FirstPaths<'a>,
    bounds: Option<Bounds<'a>>,
    /// Where relays are lacking on the base, and on the base with one more.
    on_base: Events,
    on_parent: Events,
    /// By flow: the most reduced gain, on the base, with one relay more, and with two.
    most: [Vec<i64>; 3],
}

impl<'a> Trials<'a> {
    pub(super) fn new(problem: &Problem, lists: &'a Lists, change: Change) -> Self {
        let run = Run::new(problem, lists);
        let offers = problem.offers().len();
        Self {
            // 1-P makes too few runs for prices to pay.
            bounds: if change == Change::AddOne { None } else { Bounds::new(lists, &run) },
            run,
            first: FirstPaths::new(lists, offers),
            on_base: Events::new(offers),
            on_parent: Events::new(offers),
            most: Default::default(),
        }
    }

    /// What F-FCT makes of this set.
    pub(super) fn taken_on(&mut self, set: &Relays) -> &[Rank] {
        self.run.supply.clone_from(set);
        self.first.prepare(set);
        self.run.start(self.first.base());
        self.run.go(None, None, &mut Work::new(&Limits::work(u64::MAX)));
        self.run.taken()
    }

    /// Makes ready for sets that differ from this one by a relay less and some more.
    pub(super) fn begin_round(&mut self, set: &Relays) {
        if let Some(bounds) = &mut self.bounds {
            bounds.begin_round(set);
        }
    }

    /// Tries all sets of one or two relays more than this base, the `at`th, that are new.
    pub(super) fn on_base(
        &mut self,
        (at, base): (usize, &Relays),
        change: Change,
        is_new: &mut dyn FnMut(usize, usize) -> bool,
        found: &mut Found,
        work: &mut Work<'_>,
    ) {
        self.run.supply.clone_from(base);
        self.first.prepare(base);
        if let Some(bounds) = &mut self.bounds {
            bounds.prepare(base);
        }
        let adds_two = change != Change::AddOne;
        self.on_base.clear();
        let on_base = adds_two.then(|| self.run_on_base(found.beat(at), work)).flatten();
        for one in 0..base.len() {
            self.run.supply[one] += 1;
            if adds_two {
                let on_parent = if base[one] > 0 {
                    self.go_on_with(one, on_base, found.beat(at), work)
                } else {
                    self.run_with(one, true, found.beat(at), work)
                };
                self.on_parent((at, base), one, on_parent, is_new, found, work);
            } else if work.step() {
                let value = self.run_with(one, false, found.beat(at), work);
                found.keep_better(value, (at, one, None), &self.run.supply);
            }
            self.run.supply[one] -= 1;
            if work.stopped {
                return;
            }
        }
    }

    /// Tries the sets of one relay more than the base with `one`.
    fn on_parent(
        &mut self,
        (at, base): (usize, &Relays),
        one: usize,
        on_parent: Option<Value>,
        is_new: &mut dyn FnMut(usize, usize) -> bool,
        found: &mut Found,
        work: &mut Work<'_>,
    ) {
        for two in 0..base.len() {
            if !self.is_parent(one, two, base) || !is_new(one, two) {
                continue;
            }
            if work.stopped || !work.step() {
                return;
            }
            self.run.supply[two] += 1;
            let beat = found.beat(at);
            let value = if base[two] > 0 || one == two {
                let most = usize::from(base[one] == 0);
                self.go_on_with_both((two, most), on_parent, beat, work)
            } else {
                self.run_with_both(one, two, beat, work)
            };
            found.keep_better(value, (at, one.min(two), Some(one.max(two))), &self.run.supply);
            self.run.supply[two] -= 1;
        }
    }

    /// Whether the base with `one` is what the run on the base with both goes on from.
    fn is_parent(&self, one: usize, two: usize, base: &Relays) -> bool {
        let time = |offer| (self.on_base.first(offer).map_or(u64::MAX, |(time, _)| time), offer);
        match (base[one] > 0, base[two] > 0) {
            _ if one == two => true,
            (true, true) => time(one) < time(two),
            (false, false) => one < two,
            (is_there, _) => !is_there,
        }
    }

    /// The run on the base alone, with what it lacks noted. None when no set of two more can be better.
    fn run_on_base(&mut self, beat: i128, work: &mut Work<'_>) -> Option<Value> {
        self.run.start(self.first.base());
        if let Some(bounds) = &self.bounds {
            self.run.state.hope = bounds.with(None, None, &mut self.most[0]);
        }
        let beat = beat.saturating_sub(2 * self.most_more());
        self.finish_run(0, beat, Noted::OnBase, work)
    }

    /// The run on the base with a relay of this offer, of which it has some.
    fn go_on_with(
        &mut self,
        one: usize,
        on_base: Option<Value>,
        beat: i128,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        self.on_parent.clear();
        let Some((_, state)) = self.on_base.first(one) else { return on_base };
        self.run.resume(state, Some(&mut self.on_parent));
        self.hope_for_more(one);
        let beat = beat.saturating_sub(self.most_more());
        self.finish_run(0, beat, Noted::OnParent, work)
    }

    /// The same for an offer of which the base has none.
    fn run_with(
        &mut self,
        one: usize,
        notes: bool,
        beat: i128,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        self.on_parent.clear();
        self.run.start(self.first.heads(one, None));
        if let Some(bounds) = &self.bounds {
            self.run.state.hope = bounds.with(Some(one), None, &mut self.most[1]);
        }
        let beat = if notes { beat.saturating_sub(self.most_more()) } else { beat };
        let noted = if notes { Noted::OnParent } else { Noted::Nowhere };
        self.finish_run(1, beat, noted, work)
    }

    /// The run on the base with relays of two offers, of the second of which there were some.
    fn go_on_with_both(
        &mut self,
        (two, most): (usize, usize),
        on_parent: Option<Value>,
        beat: i128,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        let Some((_, state)) = self.on_parent.first(two) else { return on_parent };
        if self.bounds.as_ref().is_some_and(|bounds| state.hope + bounds.more_by(two) <= beat) {
            return None;
        }
        self.run.resume(state, None);
        self.hope_for_more(two);
        self.finish_run(most, beat, Noted::Nowhere, work)
    }

    /// The same where the base has neither.
    fn run_with_both(
        &mut self,
        one: usize,
        two: usize,
        beat: i128,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        let mut hope = i128::MAX;
        if let Some(bounds) = &self.bounds {
            if bounds.at_a_glance(one, two) <= beat {
                return None;
            }
            hope = bounds.with(Some(one), Some(two), &mut self.most[2]);
            if hope <= beat {
                return None;
            }
        }
        self.run.start(self.first.heads(one, Some(two)));
        self.run.state.hope = hope;
        self.finish_run(2, beat, Noted::Nowhere, work)
    }

    /// Steps to the run's end; none when that cannot exceed `beat`.
    fn finish_run(
        &mut self,
        most: usize,
        beat: i128,
        noted: Noted,
        work: &mut Work<'_>,
    ) -> Option<Value> {
        let race = self.bounds.as_ref().map(|bounds| bounds.race(&self.most[most], beat));
        let events = match noted {
            Noted::OnBase => Some(&mut self.on_base),
            Noted::OnParent => Some(&mut self.on_parent),
            Noted::Nowhere => None,
        };
        if race.is_some() && self.run.state.hope <= beat {
            return None;
        }
        self.run.go(race, events, work).then(|| self.run.value())
    }

    fn hope_for_more(&mut self, offer: usize) {
        if let Some(bounds) = &self.bounds {
            self.run.state.hope += bounds.more_by(offer);
        }
    }

    /// What any one relay more may add to what a run can come to.
    fn most_more(&self) -> i128 {
        let all = |bounds: &Bounds<'_>| {
            (0..self.run.supply.len()).map(|offer| bounds.more_by(offer)).max()
        };
        self.bounds.as_ref().and_then(all).unwrap_or(0)
    }
}
