//! Runs the simulation of the control plane under a thousand seeds; it panics where an invariant
//! breaks, and names the seed.
//!
//! `cargo run --release -p tradewind-control --example control_holds`

#![allow(clippy::unwrap_used, reason = "the tests' simulation")]

#[path = "../tests/simulation/mod.rs"]
mod simulation;

const SEEDS: u64 = 1000;

fn main() {
    let (mut rollouts, mut crashes, mut paths, mut plans) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let outcome = simulation::run(seed);
        rollouts += outcome.rollouts;
        crashes += outcome.crashes;
        paths += outcome.paths;
        plans += outcome.plans;
    }
    println!(
        "{SEEDS} seeds: {plans} plans, {rollouts} rollouts, {crashes} crashes; {paths} times a \
         relayed path was checked and allowed"
    );
}
