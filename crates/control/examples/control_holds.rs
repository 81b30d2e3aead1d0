//! Runs the simulation of the control plane under a thousand seeds, or as many as are asked for; it
//! panics where an invariant breaks, and names the seed.
//!
//! `cargo run --release -p tradewind-control --example control_holds [seeds] [first]`

#![allow(clippy::unwrap_used, reason = "the tests' simulation")]
#![allow(clippy::disallowed_methods, reason = "a program, not the pure crate")]

#[path = "../tests/simulation/mod.rs"]
mod simulation;

/// Seeds, unless the argument says otherwise.
const SEEDS: u64 = 1000;

fn main() {
    let argument = |index: usize| std::env::args().nth(index).map(|text| text.parse::<u64>());
    let number = |index: usize| argument(index).map(|number| number.expect("a number"));
    let (seeds, first) = (number(1).unwrap_or(SEEDS), number(2).unwrap_or(0));
    let (mut rollouts, mut crashes, mut paths, mut plans) = (0, 0, 0, 0);
    for seed in first..first + seeds {
        let outcome = simulation::run(seed);
        rollouts += outcome.rollouts;
        crashes += outcome.crashes;
        paths += outcome.paths;
        plans += outcome.plans;
    }
    let scenarios = [
        simulation::scenarios::planted_measurement_is_taken_back,
        simulation::scenarios::slowed_leg_moves_flows_within_a_minute,
        simulation::scenarios::noise_moves_no_flows,
        simulation::scenarios::spent_budget_stops_all_until_the_next_day,
        simulation::scenarios::demand_that_changes_by_hour_is_forecast,
    ];
    scenarios.iter().for_each(|scenario| scenario());
    println!(
        "{seeds} seeds: {plans} plans, {rollouts} rollouts, {crashes} crashes; {paths} times a \
         relayed path was checked and allowed"
    );
}
