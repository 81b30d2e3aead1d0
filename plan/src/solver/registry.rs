//! The algorithms by the names that users give. A new one takes a line in `ALGORITHMS`.

use super::{Exhaustive, Greedy, Limits, SolveError, Solver, best_of};
use crate::plan::Plan;
use crate::problem::{Objective, Problem};

/// The algorithm of a user who names none.
pub const DEFAULT: &str = "best";

/// An algorithm that users may name.
pub struct Algorithm {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    make: fn() -> Box<dyn Solver>,
}

/// All of them, in the order that help and comparisons show.
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
        name: "best",
        about: "the better of greedy and exhaustive",
        make: || Box::new(Best),
    },
];

/// Every algorithm.
#[must_use]
pub fn algorithms() -> &'static [Algorithm] {
    ALGORITHMS
}

/// The names of all algorithms.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALGORITHMS.iter().map(|algorithm| algorithm.name)
}

/// The algorithm of this name.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn Solver>> {
    ALGORITHMS.iter().find(|algorithm| algorithm.name == name).map(|algorithm| (algorithm.make)())
}

/// The plan of a solver for whatever the problem wants to be least.
///
/// # Errors
/// Those of the solver; and no solver serves the makespan by itself.
pub fn solve(
    solver: &dyn Solver,
    problem: &Problem,
    limits: &Limits<'_>,
) -> Result<Plan, SolveError> {
    match problem.objective() {
        objective @ Objective::Makespan => {
            Err(SolveError::Objective { solver: solver.name(), objective })
        }
        Objective::TotalFct | Objective::Cost => solver.solve(problem, limits),
    }
}

/// The better plan of the greedy and the exhaustive solver.
#[derive(Debug, Clone, Copy, Default)]
struct Best;

impl Solver for Best {
    fn name(&self) -> &'static str {
        "best"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        best_of(&[&Greedy, &Exhaustive], problem, limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_there_once_and_finds_its_algorithm() {
        let all: Vec<&str> = names().collect();
        for (index, name) in all.iter().enumerate() {
            assert!(!all[..index].contains(name), "{name}");
            assert_eq!(by_name(name).map(|solver| solver.name()), Some(*name));
        }
        assert!(by_name(DEFAULT).is_some());
        assert!(by_name("sail").is_none());
    }
}
