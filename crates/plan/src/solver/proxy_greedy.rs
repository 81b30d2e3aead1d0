//! CP's proxy-greedy heuristics 1-P, 2-P and 2-P RB [CP VI-B, Algorithms 3 to 5].
//!
//! A set of relays grows as long as that helps: of all sets with one relay more (1-P), with two
//! more (2-P), or with one less and two more (2-P RB), the one is retained on which F-FCT makes the
//! best plan. The set is the number of relays of each offer; set-up is paid only for those that
//! F-FCT uses.
//!
//! **Repairs of the text.**
//!
//! - Lines 6 and 8 of Algorithm 3 name the set `P_l`; the loop of line 5 calls it `P`. They are
//!   one.
//! - 2-P RB has no candidate sets from an empty set, since it removes a relay first: there it
//!   starts with ADD-TWO-PROXIES.
//! - The score starts at infinity, so the first round always takes a set, as printed.
//! - A set is better if its score is less, as printed; of equals the first stays. Sets come in the
//!   order of the listings, offers in the problem's.
//! - Algorithm 4 lists each pair of offers twice, Algorithm 5 the same set for several relays that
//!   are removed: the second never wins, so it is left out.
//!
//! **Beyond the paper.** Relays of several types are several offers. Relays that run are in the
//! first set: keeping them costs nothing. Where only cost counts, the cheaper plan is the better
//! one.
//!
//! **Speed.** Results are those of the listings; only work that cannot change them is saved. Paths
//! are sorted once. A run over one more relay resumes where the relay was first lacking
//! ([`trials`]), and ends as soon as it cannot win any more ([`bounds`]). Costs O(m P L) runs of
//! O(m + n) steps for 1-P, with L offers and P relays in the end; L times that for 2-P and L^2
//! times for 2-P RB.

use tradewind_units::Duration;

use super::flow_greedy::{Gain, Lists, finish};
use super::{Limits, SolveError, Solver, Work, unlimited_bound};
use crate::plan::Plan;
use crate::problem::Problem;

mod base;
mod bounds;
mod found;
mod rounds;
mod trials;

use rounds::Rounds;

/// 1-P: one relay more at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneProxy;

/// 2-P: two relays more at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct TwoProxy;

/// 2-P RB: one relay less and two more at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct TwoProxyRollback;

/// The change from a set to its candidates.
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

/// The number of relays of each offer.
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
    let mut rounds = Rounds::new(problem, &lists, change, limits);
    let mut relays: Relays = problem.offers().iter().map(|offer| offer.running).collect();
    loop {
        rounds.pass(&relays, &mut work);
        let improved = rounds.found.end_round();
        relays = rounds.found.relays.clone().unwrap_or(relays);
        if !improved || work.stopped {
            break;
        }
    }
    finish(problem, &lists, rounds.selected_on(&relays), name, bound, &work)
}
