//! The planner: relays to run and a path for each flow, within a budget [CP V].
//!
//! A [`Problem`] is parsed once; a [`Solver`] turns it into a [`Plan`]; [`verify()`] checks a plan
//! of any origin from the problem alone.
//!
//! | module | holds |
//! |---|---|
//! | [`problem`] | flows, candidate regions, legs, prices, budget, and queries over them |
//! | [`candidates`] | the paths worth considering for each flow |
//! | [`mod@file`] | problem files: TOML and CSV in, a problem out |
//! | [`plan`] | a plan: relays, paths, cost, predicted times; serialisable |
//! | [`forecast`] | the next period's flows from a log of past ones, and the cost of a wrong forecast |
//! | [`routing`] | paths by their largest RTT, and advice on whether a relay pays off for one pair |
//! | [`packets`] | packet flows: the cheapest packet service for each, over the streams' relays where they help |
//! | [`solver`] | the trait, its limits and errors; exhaustive search, a greedy one, CP's five heuristics |
//! | [`mod@verify`] | violations in a plan |
//! | [`answer`] | the output for users: a plan, or why there is none, with figures; serialisable |
//! | [`assumptions`] | the legs and figures that each predicted time rests on |
//! | [`mod@explain`] | why a flow takes its path, and the cost and gain of the alternatives |

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
    Flow, Inputs, LegEnd, Legs, Objective, Offer, Problem, ProblemError, RelayType, Running,
};
pub use solver::{Limits, SolveError, Solver};
pub use verify::{Violation, verify};
