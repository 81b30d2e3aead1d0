//! `auto` where setting up relays is what costs: a few of the family of sixty that the example
//! `auto_holds` runs as a whole, by work instead of time.

#![cfg(feature = "highs")]
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::family;
use tradewind_plan::solver::{self, SolveError};
use tradewind_plan::{Limits, Plan, Problem, verify};

/// How much longer than the best known a plan may take, as a part.
const MOST: f64 = 0.01;

/// Returns the plan of `auto` for the problem of this number by so much work.
fn auto(number: usize, work: u64) -> (Problem, Plan) {
    let problem = family::problem(number);
    let plan = planned("auto", &problem, work).unwrap();
    assert_eq!(verify(&problem, &plan), vec![]);
    (problem, plan)
}

/// Returns the plan of the algorithm of this name, whether or not it came to its end.
fn planned(name: &str, problem: &Problem, work: u64) -> Option<Plan> {
    match solver::by_name(name)?.solve(problem, &Limits::work(work)) {
        Ok(plan) => Some(plan),
        Err(SolveError::WorkLimit { best, .. }) => best.map(|plan| *plan),
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn plans_are_near_the_best_known_where_set_up_dominates() {
    for number in [0, 5] {
        let (problem, plan) = auto(number, 150_000);
        let found = plan.score(&problem).0.as_secs_f64();
        let known = family::best_known_s(number).unwrap();
        assert!(found <= known * (1.0 + MOST), "{number}: {found} against {known}");
        assert!(plan.bound.as_secs_f64() <= known * (1.0 + 1e-6), "{number}: {:?}", plan.bound);
    }
}

#[test]
fn more_work_brings_a_better_plan_and_bound() {
    let ((problem, short), (_, long)) = (auto(1, 3_000), auto(1, 100_000));
    assert!(long.score(&problem) < short.score(&problem));
    assert!(long.bound > short.bound);
}

#[test]
fn every_problem_has_a_best_known_plan() {
    let known: Vec<f64> = (0..family::COUNT).filter_map(family::best_known_s).collect();
    assert_eq!(known.len(), family::COUNT);
    assert!(known.iter().all(|seconds| *seconds > 0.0));
}
