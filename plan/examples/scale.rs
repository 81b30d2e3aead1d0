//! Plans problems of growing size by `Auto` and prints time, plan and proven gap.
//!
//! `cargo run --release -p tradewind-plan --example scale -- [SECONDS [USD_PER_FLOW [ignored|cold|warm [FLOWS REGIONS]]]]`
//!
//! Regions and sites lie at random places on land-like latitudes; RTTs follow the fitted model; windows and caps are
//! CP's. Flows of 0.5 to 8 GB join random sites. SECONDS (10) are for all: building the problem, planning, verifying.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a command that reads a clock and the tests' problems, not part of the pure library"
)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use tradewind_model::StartUp;
use tradewind_plan::solver::Auto;
use tradewind_plan::{Limits, Objective, Problem, Solver, verify};

const SIZES: [(usize, usize); 5] = [(12, 12), (60, 18), (300, 40), (2_000, 100), (10_000, 100)];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: f64| {
        arguments.get(at).map_or(default, |text| text.parse().expect("a number is expected"))
    };
    let start_up = match arguments.get(2).map(String::as_str) {
        Some("cold") => StartUp::Cold,
        Some("warm") => StartUp::Warm,
        _ => StartUp::Ignored,
    };
    let (seconds, usd_per_flow) = (number(0, 10.0), number(1, 0.5));
    println!(
        " flows regions candidates  build s  plan s verify s  faster      cost   relays    gap"
    );
    let asked = (number(3, 0.0) as usize, number(4, 0.0) as usize);
    let sizes = if asked.0 > 0 { vec![asked] } else { SIZES.to_vec() };
    for (flows, regions) in sizes {
        run(flows, regions, seconds, usd_per_flow, start_up);
    }
}

fn run(flows: usize, regions: usize, seconds: f64, usd_per_flow: f64, start_up: StartUp) {
    let mut inputs = common::world(flows, regions, usd_per_flow * flows as f64, 1);
    inputs.start_up = start_up;
    inputs.objective = Objective::TotalFct;
    let start = Instant::now();
    let problem = Problem::new(inputs).expect("it makes sense");
    let built = start.elapsed().as_secs_f64();
    let candidates: usize = (0..flows).map(|flow| problem.candidates(flow).len()).sum();
    // Bringing a large plan to its end, and verifying it, takes a tenth of the time.
    let stop_at = seconds * 0.9;
    let should_stop = || start.elapsed().as_secs_f64() > stop_at;
    let limits = Limits { should_stop: &should_stop, ..Limits::work(u64::MAX) };
    let plan = Auto::default().solve(&problem, &limits).expect("direct paths need no money");
    let planned = start.elapsed().as_secs_f64();
    assert_eq!(verify(&problem, &plan), vec![]);
    let verified = start.elapsed().as_secs_f64();
    let (score, bound) = (plan.score(&problem).0.as_secs_f64(), plan.bound.as_secs_f64());
    println!(
        "{flows:>6} {regions:>7} {candidates:>10} {built:>8.2} {:>7.2} {:>8.2} {:>7.3} {:>9} {:>8} {:>5.2} %",
        planned - built,
        verified - planned,
        plan.acceleration().unwrap_or(1.0),
        plan.cost.to_string(),
        plan.relays.len(),
        (score / bound - 1.0) * 100.0
    );
}
