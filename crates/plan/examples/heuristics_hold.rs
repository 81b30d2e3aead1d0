//! Plans thousands of random problems of up to 200 flows with CP's heuristics and checks every plan
//! with `verify`.
//!
//! `cargo run --release -p tradewind-plan --example heuristics_hold -- [SEEDS]`

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a command with an argument and the tests' problems, not part of the pure library"
)]

mod command;
#[path = "../tests/common/mod.rs"]
mod common;

use std::process::ExitCode;

use command::Words;
use common::random::{Kind, random};
use tradewind_plan::solver::{
    FlowGreedyCost, FlowGreedyFct, FlowGreedyRatio, OneProxy, TwoProxy, TwoProxyRollback,
};
use tradewind_plan::{Limits, SolveError, Solver, verify};

const SOLVERS: [&dyn Solver; 6] =
    [&FlowGreedyFct, &FlowGreedyCost, &FlowGreedyRatio, &OneProxy, &TwoProxy, &TwoProxyRollback];

fn main() -> ExitCode {
    let seeds: u64 = Words::of("heuristics_hold").number(0, 6_000);
    let (mut problems, mut plans, mut unsound) = (0, 0, 0);
    for beyond_paper in [false, true] {
        for seed in 0..seeds {
            let kind = Kind { flows: 200, regions: 6, beyond_paper };
            let Some(problem) = random(seed, kind) else { continue };
            problems += 1;
            for solver in SOLVERS {
                let found = match solver.solve(&problem, &Limits::work(u64::MAX)) {
                    Ok(plan) => {
                        plans += 1;
                        verify(&problem, &plan).iter().map(ToString::to_string).collect()
                    }
                    // Flows without direct path, and moves, may cost more than the budget.
                    Err(SolveError::WorkLimit { best: None, .. }) if beyond_paper => Vec::new(),
                    Err(error) => vec![error.to_string()],
                };
                unsound += usize::from(!found.is_empty());
                for violation in found {
                    println!("seed {seed}, {}: {violation}", solver.name());
                }
            }
        }
    }
    println!("{problems} problems, {plans} plans, {unsound} of them unsound");
    if unsound == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
