//! The control plane in virtual time, with faults, under several seeds.

#![allow(clippy::unwrap_used, reason = "a simulation that stops at the first surprise")]

mod simulation;

use simulation::scenarios;

/// Seeds of this test. `make test-long` runs 1,000.
const SEEDS: u64 = 6;

#[test]
fn control_plane_converges_and_never_takes_a_path_away() {
    let outcomes: Vec<_> = (0..SEEDS).map(simulation::run).collect();
    // The runs do what they are for.
    assert!(outcomes.iter().map(|outcome| outcome.rollouts).sum::<usize>() > 2 * SEEDS as usize);
    assert!(outcomes.iter().map(|outcome| outcome.crashes).sum::<usize>() > 2 * SEEDS as usize);
    assert!(outcomes.iter().any(|outcome| outcome.plans > 3));
}

#[test]
fn planted_measurement_is_taken_back() {
    scenarios::planted_measurement_is_taken_back();
}

#[test]
fn slowed_leg_moves_flows_within_a_minute() {
    scenarios::slowed_leg_moves_flows_within_a_minute();
}

#[test]
fn noise_moves_no_flows() {
    scenarios::noise_moves_no_flows();
}

#[test]
fn spent_budget_stops_all_until_the_next_day() {
    scenarios::spent_budget_stops_all_until_the_next_day();
}

#[test]
fn demand_that_changes_by_hour_is_forecast() {
    scenarios::demand_that_changes_by_hour_is_forecast();
}

#[test]
fn same_seed_gives_the_same_records() {
    let (first, second) = (simulation::run(7), simulation::run(7));
    assert_eq!(first, second);
    assert_ne!(first.digest, simulation::run(8).digest);
}
