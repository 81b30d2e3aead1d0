//! Which relays to run and which path each flow takes, within a budget [CP V].
//!
//! A [`Problem`] is parsed once; a [`Solver`] turns it into a [`Plan`]; [`verify()`]
//! checks the plan from the problem alone, whoever made it.
//!
//! | module | holds |
//! |---|---|
//! | [`problem`] | flows, candidate regions, legs, prices, budget; the questions one may ask of them |
//! | [`candidates`] | the paths worth considering for each flow |
//! | [`plan`] | the answer: relays, paths, cost, predicted times; serialisable |
//! | [`solver`] | the trait, its limits and errors; exhaustive search, a greedy one, CP's five heuristics |
//! | [`mod@verify`] | what is wrong with a plan |

pub mod candidates;
mod packing;
pub mod plan;
pub mod problem;
pub mod solver;
pub mod verify;

pub use candidates::Candidate;
pub use plan::{Plan, PlannedFlow, PlannedRelay};
pub use problem::{
    Flow, Inputs, Legs, Objective, Offer, Place, Problem, ProblemError, RelayType, Running,
};
pub use solver::{Limits, SolveError, Solver};
pub use verify::{Violation, verify};
