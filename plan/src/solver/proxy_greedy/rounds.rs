//! One round after another, each in pieces that do not depend on each other.
//!
//! The pieces of a round are first the runs over its bases, then trials of relays added to them, in two waves: those that may gain most, and the
//! rest, of which most lose early against what the first wave found. Within a wave no piece knows of the others. So the steps
//! taken, and not only the plan, are the same whoever does the pieces.

use std::cmp::Reverse;

use super::base::Base;
use super::bounds::Bounds;
use super::found::Found;
use super::trials::Trials;
use super::{Change, Relays};
use crate::problem::Problem;
use crate::solver::crew::{Crew, OneByOne, each};
use crate::solver::flow_greedy::{Lists, Rank, Run};
use crate::solver::{Limits, Work};

/// Pieces of a wave. Chosen: enough to keep some processors busy when pieces are of unequal length.
const PIECES: usize = 8;

/// Bases of which trials are made together. Chosen: few rounds have more; each holds a state for each offer.
const MOST_BASES: usize = 16;

/// Trials of the first wave of a round. Chosen by trial: what they find ends most of the others early.
const FIRST_WAVE: usize = 2 * PIECES;

/// A relay's offer added to a base.
type Trial = (usize, usize);

/// What the rounds hold.
pub(super) struct Rounds<'a> {
    change: Change,
    crew: &'a dyn Crew,
    bounds: Option<Bounds<'a>>,
    bases: Vec<Base<'a>>,
    /// One for each piece of a wave.
    trials: Vec<Trials<'a>>,
    run: Run<'a>,
    pub(super) found: Found,
}

impl<'a> Rounds<'a> {
    pub(super) fn new(
        problem: &Problem,
        lists: &'a Lists,
        change: Change,
        limits: &Limits<'a>,
    ) -> Self {
        let run = Run::new(problem, lists);
        // 1-P makes too few runs for prices, or several hands, to pay.
        let is_short = change == Change::AddOne;
        Self {
            change,
            crew: if is_short { &OneByOne } else { limits.crew },
            bounds: if is_short { None } else { Bounds::new(lists, &run) },
            bases: Vec::new(),
            trials: (0..PIECES).map(|_| Trials::new(run.clone())).collect(),
            run,
            found: Found::default(),
        }
    }

    /// What F-FCT makes of this set.
    pub(super) fn taken_on(&mut self, set: &Relays) -> &[Rank] {
        self.trials[0].taken_on(set)
    }

    /// One pass of Algorithm 3's loop: tries all candidate sets.
    pub(super) fn pass(&mut self, set: &Relays, work: &mut Work<'_>) {
        if let Some(bounds) = &mut self.bounds {
            bounds.begin_round(set);
        }
        let mut all = bases(set, self.change).into_iter().enumerate().peekable();
        while all.peek().is_some() && !work.stopped {
            let mut count = 0;
            for (at, (removed, relays)) in all.by_ref().take(MOST_BASES) {
                if self.bases.len() == count {
                    self.bases.push(Base::new(self.run.clone()));
                }
                self.bases[count].become_that(at, removed, relays);
                count += 1;
            }
            self.run_bases(count, work);
            self.try_all(count, work);
        }
    }

    /// The runs over the first `count` bases.
    fn run_bases(&mut self, count: usize, work: &mut Work<'_>) {
        let share = work.share(count);
        let bases = self.bases.iter_mut().take(count);
        let mut pieces: Vec<_> = bases.map(|base| (base, share.clone())).collect();
        let (bounds, change, found) = (self.bounds.as_ref(), self.change, &self.found);
        each(self.crew, &mut pieces, |(base, work)| base.make_run(bounds, change, found, work));
        work.settle(&share, pieces.iter().map(|(_, work)| work));
    }

    /// All trials on the first `count` bases, in two waves.
    fn try_all(&mut self, count: usize, work: &mut Work<'_>) {
        let offers = self.run.supply.len();
        let on_base = |base: usize| (0..offers).map(move |one| (base, one));
        let mut all: Vec<Trial> = (0..count).flat_map(on_base).collect();
        all.sort_by_cached_key(|(base, one)| Reverse(self.bases[*base].hope_with(*one)));
        let (first, rest) = all.split_at(FIRST_WAVE.min(all.len()));
        self.try_wave(first, work);
        self.try_wave(rest, work);
    }

    fn try_wave(&mut self, wave: &[Trial], work: &mut Work<'_>) {
        if wave.is_empty() || work.stopped {
            return;
        }
        let share = work.share(PIECES);
        let trials = self.trials.iter_mut().enumerate();
        let mut pieces: Vec<_> =
            trials.map(|(at, trials)| (at, trials, self.found.clone(), share.clone())).collect();
        let (bases, ground) = (&self.bases, (self.bounds.as_ref(), self.change));
        each(self.crew, &mut pieces, |(at, trials, found, work)| {
            for (base, one) in wave.iter().skip(*at).step_by(PIECES) {
                trials.with(&bases[*base], *one, ground, found, work);
            }
        });
        work.settle(&share, pieces.iter().map(|(.., work)| work));
        let found: Vec<Found> = pieces.into_iter().map(|(_, _, found, _)| found).collect();
        found.iter().for_each(|found| self.found.merge(found));
    }
}

/// The sets that relays are added to, each with the offer that a relay was removed from.
fn bases(relays: &Relays, change: Change) -> Vec<(Option<usize>, Relays)> {
    let empty = relays.iter().all(|count| *count == 0);
    if change != Change::RemoveOneAddTwo || empty {
        return vec![(None, relays.clone())];
    }
    let without = |(removed, _): (usize, &usize)| {
        let mut less = relays.clone();
        less[removed] -= 1;
        (Some(removed), less)
    };
    relays.iter().enumerate().filter(|(_, count)| **count > 0).map(without).collect()
}
