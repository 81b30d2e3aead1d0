//! `auto` where setting up relays is what costs: a few of the family of sixty that the example
//! `auto_holds` runs as a whole, by work instead of time.

#![cfg(feature = "highs")]
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::family;
use tradewind_plan::solver::{self, SolveError};
use tradewind_plan::{Limits, verify};

/// How much longer than the best known a plan may take, as a part.
const MOST: f64 = 0.01;

#[test]
fn plans_are_near_the_best_known_where_set_up_dominates() {
    for number in [0, 5] {
        let problem = family::problem(number);
        let auto = solver::by_name("auto").unwrap();
        let plan = match auto.solve(&problem, &Limits::work(150_000)) {
            Ok(plan) => plan,
            Err(SolveError::WorkLimit { best: Some(plan), .. }) => *plan,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(verify(&problem, &plan), vec![]);
        let found = plan.score(&problem).0.as_secs_f64();
        let known = family::best_known_s(number).unwrap();
        assert!(found <= known * (1.0 + MOST), "{number}: {found} against {known}");
        assert!(plan.bound.as_secs_f64() <= known * (1.0 + 1e-6), "{number}: {:?}", plan.bound);
    }
}

#[test]
fn every_problem_has_a_best_known_plan() {
    let known: Vec<f64> = (0..family::COUNT).filter_map(family::best_known_s).collect();
    assert_eq!(known.len(), family::COUNT);
    assert!(known.iter().all(|seconds| *seconds > 0.0));
}
