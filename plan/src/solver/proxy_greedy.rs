//! CP's proxy-greedy heuristics 1-P, 2-P and 2-P RB [CP VI-B, Algorithms 3 to 5].
//!
//! A set of relays grows as long as that helps: of all sets with one relay more (1-P), with two more
//! (2-P), or with one less and two more (2-P RB), the one is kept on which F-FCT makes the best plan. The set
//! says how many relays of each offer there are; set-up is paid only for those that F-FCT uses.
//!
//! **Repairs of the text.**
//!
//! - Lines 6 and 8 of Algorithm 3 name the set `P_l`; the loop of line 5 calls it `P`. They are one.
//! - 2-P RB has no candidate sets from an empty set, since it removes a relay first: there it starts with
//!   ADD-TWO-PROXIES.
//! - The score starts at infinity, so the first round always takes a set, as printed.
//! - A set is better if its score is less, as printed; of equals the first stays. Sets come in the order of
//!   the listings, offers in the problem's.
//! - Algorithm 4 lists each pair of offers twice, Algorithm 5 the same set for several relays that are
//!   removed: the second never wins, so it is left out.
//!
//! **Beyond the paper.** Relays of several types are several offers. Relays that run are in the first set:
//! keeping them costs nothing. Where only cost counts, the cheaper plan is the better one.
//!
//! **Speed.** Results are those of the listings; only work that cannot change them is saved.
//! Paths are sorted once. For each set that relays are added to, the paths that a flow would start with
//! are looked up for all additions together ([`first`]). A run ends as soon as it could not win
//! even if all flows left got their best path. Costs O(m P L) runs of O(m + n) steps for 1-P, with L offers and P
//! relays in the end; L times that for 2-P and L^2 times for 2-P RB.

use tradewind_units::Duration;

use super::flow_greedy::{Gain, Lists, Outcome, Run, finish};
use super::{Limits, SolveError, Solver, Work, unlimited_bound};
use crate::plan::Plan;
use crate::problem::Problem;

mod first;

use first::FirstPaths;

/// 1-P: one relay more at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneProxy;

/// 2-P: two relays more at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct TwoProxy;

/// 2-P RB: one relay less and two more at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct TwoProxyRollback;

/// How a set's candidates differ from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    AddOne,
    AddTwo,
    RemoveOneAddTwo,
}

impl Solver for OneProxy {
    fn name(&self) -> &'static str {
        "1-p"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        solve(problem, limits, Change::AddOne, self.name())
    }
}

impl Solver for TwoProxy {
    fn name(&self) -> &'static str {
        "2-p"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        solve(problem, limits, Change::AddTwo, self.name())
    }
}

impl Solver for TwoProxyRollback {
    fn name(&self) -> &'static str {
        "2-p-rb"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        solve(problem, limits, Change::RemoveOneAddTwo, self.name())
    }
}

/// How many relays of each offer there are.
type Relays = Vec<usize>;

fn solve(
    problem: &Problem,
    limits: &Limits<'_>,
    change: Change,
    name: &'static str,
) -> Result<Plan, SolveError> {
    let bound: Duration = unlimited_bound(problem);
    let lists = Lists::new(problem, Gain::Fct);
    let mut work = Work::new(limits);
    let mut search = Search::new(problem, &lists);
    while search.improve(change, &mut work) {}
    let best = search.best_or_first(&mut work);
    finish(problem, &lists, &best, name, bound, &work)
}

/// The best set so far, and the outcome on it.
struct Search<'a> {
    lists: &'a Lists,
    run: Run<'a>,
    first: FirstPaths<'a>,
    relays: Relays,
    best: Option<Outcome>,
}

impl<'a> Search<'a> {
    fn new(problem: &Problem, lists: &'a Lists) -> Self {
        let relays: Relays = problem.offers().iter().map(|offer| offer.running).collect();
        let run = Run::new(problem, lists);
        let first = FirstPaths::new(lists, relays.len());
        Self { lists, run, first, relays, best: None }
    }

    /// One pass of Algorithm 3's loop: moves to the best candidate set; false if none is better.
    fn improve(&mut self, change: Change, work: &mut Work<'_>) -> bool {
        let offers = self.relays.len();
        let mut found: Option<Relays> = None;
        // Offers of which one more has been tried, with what was removed put back.
        let mut put_back = vec![false; offers];
        for (removed, base) in bases(&self.relays, change) {
            self.first.prepare(&base);
            for (one, two) in additions(offers, change) {
                let returned = match removed {
                    Some(removed) if removed == one => two,
                    Some(removed) if two == Some(removed) => Some(one),
                    _ => None,
                };
                if let Some(other) = returned
                    && std::mem::replace(&mut put_back[other], true)
                {
                    continue;
                }
                if !work.step() {
                    return false;
                }
                if self.evaluate(&base, one, two, work) {
                    self.best = Some(self.run.outcome());
                    let mut set = base.clone();
                    set[one] += 1;
                    two.into_iter().for_each(|two| set[two] += 1);
                    found = Some(set);
                }
            }
        }
        let improved = found.is_some();
        self.relays = found.unwrap_or_else(|| std::mem::take(&mut self.relays));
        improved
    }

    /// Whether `base` with one or two relays more is better than the best so far.
    fn evaluate(
        &mut self,
        base: &Relays,
        one: usize,
        two: Option<usize>,
        work: &mut Work<'_>,
    ) -> bool {
        let beat = self.best.as_ref().map(|best| best.value);
        self.run.start(base);
        self.run.supply_more(one);
        two.into_iter().for_each(|two| self.run.supply_more(two));
        let heads = self.first.heads(one, two);
        let ended = self.run.go(heads, beat.as_ref(), work);
        ended && beat.is_none_or(|beat| self.run.value() > beat)
    }

    /// The best outcome; without any set, that on the first one.
    fn best_or_first(self, work: &mut Work<'_>) -> Outcome {
        let Self { lists, mut run, relays, best, .. } = self;
        best.unwrap_or_else(|| {
            run.start(&relays);
            run.go(lists.heads(), None, work);
            run.outcome()
        })
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

/// The offers of the relays to add, each pair once.
fn additions(offers: usize, change: Change) -> Vec<(usize, Option<usize>)> {
    let pairs = |one| (one..offers).map(move |two| (one, Some(two)));
    match change {
        Change::AddOne => (0..offers).map(|one| (one, None)).collect(),
        Change::AddTwo | Change::RemoveOneAddTwo => (0..offers).flat_map(pairs).collect(),
    }
}
