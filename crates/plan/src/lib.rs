//! Which relays to run and which path each flow takes, within a budget [CP V].
//!
//! A [`Problem`] is parsed once; a [`Solver`] turns it into a [`Plan`]; [`verify()`]
//! checks the plan from the problem alone, whoever made it.
//!
//! | module | holds |
//! |---|---|
//! | [`problem`] | flows, candidate regions, legs, prices, budget; the questions one may ask of them |
//! | [`candidates`] | the paths worth considering for each flow |
//! | [`mod@file`] | problem files: TOML and CSV in, a problem out |
//! | [`plan`] | the answer: relays, paths, cost, predicted times; serialisable |
//! | [`forecast`] | the next period's flows from a log of past ones, and what a wrong guess costs |
//! | [`routing`] | paths by their largest RTT, and whether a relay is worth it for one pair |
//! | [`packets`] | packet flows: the cheapest packet service for each, over the streams' relays where they help |
//! | [`solver`] | the trait, its limits and errors; exhaustive search, a greedy one, CP's five heuristics |
//! | [`mod@verify`] | what is wrong with a plan |
//! | [`answer`] | what a user gets: a plan, or why there is none, with figures; serialisable |
//! | [`assumptions`] | what each predicted time rests on |
//! | [`mod@explain`] | why a flow takes its path, and what the others would have cost and gained |

pub mod answer;
pub mod assumptions;
pub mod candidates;
pub mod explain;
pub mod file;
pub mod forecast;
pub mod packets;
mod packing;
pub mod plan;
pub mod problem;
pub mod routing;
pub mod service;
pub mod solver;
pub mod verify;

pub use answer::{Answer, Status};
pub use candidates::Candidate;
pub use explain::{Explanation, explain};
pub use packets::{PacketFlow, PacketPlan, Packets};
pub use plan::{Plan, PlannedFlow, PlannedRelay};
pub use problem::{
    Flow, Inputs, Legs, Objective, Offer, Place, Problem, ProblemError, RelayType, Running,
};
pub use solver::{Limits, SolveError, Solver};
pub use verify::{Violation, verify};
