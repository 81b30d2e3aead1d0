//! `auto` where setting up relays is what costs: a few of the family of sixty that the example
//! `auto_holds` runs as a whole, by work instead of time.

#![cfg(feature = "highs")]
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::family;
use common::near_regions::near_regions;
use tradewind_model::StartUp;
use tradewind_plan::solver::{self, SolveError};
use tradewind_plan::{Inputs, Limits, Plan, Problem, verify};

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
fn whole_counts_of_relays_bound_where_whole_paths_take_too_long() {
    // The relaxation without whole counts is 6.8 % below the best plan known.
    let (_, plan) = auto(30, 150_000);
    let (known, bound) = (family::best_known_s(30).unwrap(), plan.bound.as_secs_f64());
    assert!(bound <= known * (1.0 + 1e-6), "{bound} is above a plan of {known}");
    assert!(bound >= known / 1.015, "{bound} is far below {known}");
}

#[test]
fn more_work_brings_a_better_plan_and_bound() {
    let ((problem, short), (_, long)) = (auto(1, 3_000), auto(1, 100_000));
    assert!(long.score(&problem) < short.score(&problem));
    assert!(long.bound > short.bound);
}

#[test]
fn no_algorithm_finds_more_by_the_same_work() {
    for seed in 0..5 {
        let pattern = family::PATTERNS[seed % family::PATTERNS.len()];
        let inputs = near_regions(4, 0.4, pattern, seed as u64 + 1);
        let problem = Problem::new(Inputs { start_up: StartUp::Ignored, ..inputs }).unwrap();
        let auto = planned("auto", &problem, 12_000).unwrap();
        for name in solver::names() {
            let other = planned(name, &problem, 12_000).map(|plan| plan.score(&problem));
            assert!(other.is_none_or(|other| auto.score(&problem) <= other), "seed {seed}, {name}");
        }
    }
}

#[test]
fn every_problem_has_a_best_known_plan() {
    let known: Vec<f64> = (0..family::COUNT).filter_map(family::best_known_s).collect();
    assert_eq!(known.len(), family::COUNT);
    assert!(known.iter().all(|seconds| *seconds > 0.0));
}
