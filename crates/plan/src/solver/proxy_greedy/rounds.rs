//! The rounds, each divided into independent pieces of work.
//!
//! First come the runs over a round's bases, then trials of relays added to them, by decreasing
//! upper bound: later trials mostly lose early against the best so far. Threads exchange the best
//! set after each trial. Which trials run to their end depends on the threads' timing; the best
//! set, and of equal ones the first in the listing, does not, since only trials that cannot win are
//! cut short. Where steps are limited there is one thread only, so that the limit gives the same
//! plan on every executor.

use std::cmp::Reverse;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::base::Base;
use super::bounds::Bounds;
use super::found::Found;
use super::trials::Trials;
use super::{Change, Relays};
use crate::problem::Problem;
use crate::solver::executor::{Executor, OneByOne, each};
use crate::solver::flow_greedy::{Lists, Rank, Run};
use crate::solver::{Limits, Work};

/// The most bases of which trials are made together. Chosen: few rounds have more; each holds a
/// state for each offer.
const MAX_BASES: usize = 16;

/// A base and an offer of which a relay is added.
type Trial = (usize, usize);

/// The state of the rounds.
pub(super) struct Rounds<'a> {
    change: Change,
    executor: &'a dyn Executor,
    bounds: Option<Bounds<'a>>,
    bases: Vec<Base<'a>>,
    /// One for each thread.
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
        // 1-P makes too few runs for prices, or several threads, to pay off.
        let is_short = change == Change::AddOne;
        let is_limited = limits.work < u64::MAX;
        let executor = if is_short || is_limited { &OneByOne } else { limits.executor };
        Self {
            change,
            executor,
            bounds: if is_short { None } else { Bounds::new(lists, &run) },
            bases: Vec::new(),
            trials: (0..executor.parallelism().get()).map(|_| Trials::new(run.clone())).collect(),
            run,
            found: Found::default(),
        }
    }

    /// Returns the paths that F-FCT takes on this set.
    pub(super) fn selected_on(&mut self, set: &Relays) -> &[Rank] {
        self.trials[0].selected_on(set)
    }

    /// Runs one pass of Algorithm 3's loop: tries all candidate sets.
    pub(super) fn pass(&mut self, set: &Relays, work: &mut Work<'_>) {
        if let Some(bounds) = &mut self.bounds {
            bounds.begin_round(set);
        }
        let mut all = bases(set, self.change).into_iter().enumerate().peekable();
        while all.peek().is_some() && !work.stopped {
            let mut count = 0;
            for (at, (removed, relays)) in all.by_ref().take(MAX_BASES) {
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

    /// Runs the first `count` bases.
    fn run_bases(&mut self, count: usize, work: &mut Work<'_>) {
        let share = work.share(count);
        let bases = self.bases.iter_mut().take(count);
        let mut pieces: Vec<_> = bases.map(|base| (base, share.clone())).collect();
        let (bounds, change, found) = (self.bounds.as_ref(), self.change, &self.found);
        each(self.executor, &mut pieces, |(base, work)| base.make_run(bounds, change, found, work));
        work.settle(&share, pieces.iter().map(|(_, work)| work));
    }

    /// Runs all trials on the first `count` bases, by decreasing upper bound.
    fn try_all(&mut self, count: usize, work: &mut Work<'_>) {
        let offers = self.run.supply.len();
        let on_base = |base: usize| (0..offers).map(move |one| (base, one));
        let mut all: Vec<Trial> = (0..count).flat_map(on_base).collect();
        all.sort_by_cached_key(|(base, one)| Reverse(self.bases[*base].hope_with(*one)));
        let (next, best) = (AtomicUsize::new(0), Mutex::new(self.found.clone()));
        let share = work.share(self.trials.len());
        let parallelism = self.trials.iter_mut();
        let mut parallelism: Vec<_> =
            parallelism.map(|trials| (trials, self.found.clone(), share.clone())).collect();
        let (bases, bounded) = (&self.bases, (self.bounds.as_ref(), self.change));
        each(self.executor, &mut parallelism, |(trials, found, work)| {
            while let Some((base, one)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                trials.with(&bases[*base], *one, bounded, found, work);
                found.exchange(&best);
            }
        });
        work.settle(&share, parallelism.iter().map(|(.., work)| work));
        self.found.exchange(&best);
    }
}

/// Returns the sets that relays are added to, each with the offer that a relay was removed from.
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
