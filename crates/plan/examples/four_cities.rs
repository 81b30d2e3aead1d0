//! Plans CP's four cities and prints the plan, with the time of each step.
//!
//! `cargo run --release -p tradewind-plan --example four_cities -- [BUDGET_USD [STEPS]]`

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a command that reads a clock and the tests' problems, not part of the pure library"
)]

mod command;
#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use command::Words;
use tradewind_plan::solver::{Exhaustive, Greedy};
use tradewind_plan::{Limits, Plan, Problem, SolveError, Solver};

const REGIONS: [&str; 12] = [
    "gcp:us-east4",
    "gcp:us-west1",
    "gcp:us-central1",
    "gcp:southamerica-east1",
    "gcp:southamerica-west1",
    "gcp:europe-west2",
    "gcp:europe-west3",
    "gcp:europe-north1",
    "gcp:asia-northeast1",
    "gcp:asia-southeast1",
    "gcp:asia-south1",
    "gcp:us-east1",
];

fn main() {
    let words = Words::of("four_cities");
    let (budget_usd, steps) = (words.number(0, 6.0), words.number(1, 1e6));
    let start = Instant::now();
    let problem = Problem::new(common::four_cities(&REGIONS, budget_usd)).expect("it makes sense");
    let paths: usize = (0..12).map(|flow| problem.candidates(flow).len()).sum();
    println!("problem: {paths} paths worth considering, {:?}", start.elapsed());
    for solver in [&Greedy as &dyn Solver, &Exhaustive] {
        let start = Instant::now();
        match solver.solve(&problem, &Limits::work(steps as u64)) {
            Ok(plan) => print(&plan, "", start),
            Err(SolveError::WorkLimit { best: Some(plan), .. }) => print(&plan, ", stopped", start),
            Err(error) => println!("{}: {error}", solver.name()),
        }
    }
}

fn print(plan: &Plan, note: &str, start: Instant) {
    println!(
        "\n{}: {:?}{note}; total {:.2} s (at least {:.2} s), {:.2} times faster, {}, {} relays",
        plan.solver,
        start.elapsed(),
        plan.total_fct.as_secs_f64(),
        plan.bound.as_secs_f64(),
        plan.acceleration().unwrap_or(1.0),
        plan.cost,
        plan.relays.len()
    );
    for flow in &plan.flows {
        let path: Vec<&str> = flow.path.iter().map(|relay| relay.as_str()).collect();
        let direct = flow.fct_direct.unwrap_or_default().as_secs_f64();
        println!(
            "  {:<18} {direct:>7.2} s -> {:>6.2} s  {}",
            flow.id,
            flow.fct.as_secs_f64(),
            path.join(" ")
        );
    }
}
