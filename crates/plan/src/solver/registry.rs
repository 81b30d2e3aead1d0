//! The algorithms by name. A new one takes an entry in `ALGORITHMS`.

use super::portfolio::Portfolio;
use super::{
    Exhaustive, FlowGreedyCost, FlowGreedyFct, FlowGreedyRatio, Greedy, Limits, OneProxy,
    SolveError, Solver, TwoProxy, TwoProxyRollback,
};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};

/// The default algorithm.
pub const DEFAULT: &str = "auto";

/// An algorithm that users may choose.
pub struct Algorithm {
    /// Its name.
    pub name: &'static str,
    /// Its description in a few words.
    pub about: &'static str,
    make: fn() -> Box<dyn Solver>,
}

/// All of them, in the order of help texts and comparisons.
const ALGORITHMS: &[Algorithm] = &[
    Algorithm {
        name: "greedy",
        about: "grows a set of shared relays as long as that helps",
        make: || Box::new(Greedy),
    },
    Algorithm {
        name: "exhaustive",
        about: "exact search, for small problems",
        make: || Box::new(Exhaustive),
    },
    Algorithm {
        name: "f-fct",
        about: "flow by flow, the largest gain first [CP VI-A]",
        make: || Box::new(FlowGreedyFct),
    },
    Algorithm {
        name: "f-cost",
        about: "flow by flow, the largest gain for its cost first [CP VI-A]",
        make: || Box::new(FlowGreedyCost),
    },
    Algorithm {
        name: "f-ratio",
        about: "f-cost by the ratio of times instead of their difference",
        make: || Box::new(FlowGreedyRatio),
    },
    Algorithm { name: "1-p", about: "relay by relay [CP VI-B]", make: || Box::new(OneProxy) },
    Algorithm { name: "2-p", about: "two relays at a time [CP VI-B]", make: || Box::new(TwoProxy) },
    Algorithm {
        name: "2-p-rb",
        about: "two relays at a time, one of the earlier ones given up [CP VI-B]",
        make: || Box::new(TwoProxyRollback),
    },
    #[cfg(feature = "highs")]
    Algorithm {
        name: "exact-cp",
        about: "the paper's integer program, by HiGHS [CP Fig. 4]",
        make: || Box::new(super::ExactCp::default()),
    },
    #[cfg(feature = "highs")]
    Algorithm {
        name: "exact",
        about: "our integer program, by HiGHS",
        make: || Box::new(super::Exact::default()),
    },
    Algorithm {
        name: "auto",
        about: "the best plan within the limits, with a proven bound",
        make: || Box::new(Portfolio),
    },
];

/// Returns every algorithm.
#[must_use]
pub fn algorithms() -> &'static [Algorithm] {
    ALGORITHMS
}

/// Returns the names of all algorithms.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALGORITHMS.iter().map(|algorithm| algorithm.name)
}

/// Returns the algorithm of this name.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn Solver>> {
    ALGORITHMS.iter().find(|algorithm| algorithm.name == name).map(|algorithm| (algorithm.make)())
}

/// Returns the plan of a solver for any objective and any problem: a makespan by way of
/// [`super::makespan`]; where machines are paid for as long as the plan takes, by way of the
/// problems for each number of hours.
///
/// # Errors
/// Those of the solver.
pub fn solve(
    solver: &dyn Solver,
    problem: &Problem,
    limits: &Limits<'_>,
) -> Result<Plan, SolveError> {
    if problem.is_paid_by_the_hour() {
        return super::hours::solve(solver, problem, limits);
    }
    match problem.objective() {
        Objective::Makespan => super::makespan::solve(solver, problem, limits),
        Objective::TotalFct | Objective::Cost => solver.solve(problem, limits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_find_algorithms() {
        let all: Vec<&str> = names().collect();
        for (index, name) in all.iter().enumerate() {
            assert!(!all[..index].contains(name), "{name}");
            assert_eq!(by_name(name).map(|solver| solver.name()), Some(*name));
        }
        assert!(by_name(DEFAULT).is_some());
        assert!(by_name("sail").is_none());
    }
}
