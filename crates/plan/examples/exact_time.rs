//! Measures the time of the exact solvers: random sites, 18 regions, RTTs by the distance model.
//!
//! `cargo run --release --workspace --example exact_time -- [SECONDS [FLOWS ...]]`
//!
//! Prints one line for each number of flows, budget and solver: the program's size, the time used,
//! the plan's total, its proven bound and the gap between them. Budgets are dollars a flow.

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
use common::near_regions::{Pattern, near_regions};
use tradewind_plan::solver::exact::Size;
use tradewind_plan::solver::{Exact, ExactCp, Greedy};
use tradewind_plan::{Limits, Plan, Problem, SolveError, Solver, verify};
use tradewind_units::Duration;

const BUDGETS_USD: [f64; 2] = [0.2, 0.5];

fn main() {
    let words = Words::of("exact_time");
    let limit = Duration::from_secs_f64(words.number(0, 10.0));
    let mut counts: Vec<usize> = words.numbers_from(1, 0);
    if counts.is_empty() {
        counts = vec![10, 20, 40, 60];
    }
    println!("| flows | budget | solver | columns | rows | entries | time | total | bound | gap |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for count in counts {
        for budget in BUDGETS_USD {
            let problem = Problem::new(near_regions(count, budget, Pattern::ManyToMany, 7))
                .expect("it makes sense");
            let label = format!("| {count} | ${budget} a flow");
            measure(&label, "greedy", None, &problem, limit);
            measure(&label, "exact", Exact::size(&problem), &problem, limit);
            measure(&label, "exact-cp", ExactCp::size(&problem), &problem, limit);
        }
    }
}

fn measure(label: &str, solver: &str, size: Option<Size>, problem: &Problem, limit: Duration) {
    let start = Instant::now();
    let left = || limit.saturating_sub(start.elapsed());
    let limits = Limits { time_left: Some(&left), ..Limits::work(u64::MAX) };
    let solved = match solver {
        "exact" => Exact::default().solve(problem, &limits),
        "exact-cp" => ExactCp::default().solve(problem, &limits),
        _ => Greedy.solve(problem, &Limits::work(100_000_000)),
    };
    let elapsed = start.elapsed();
    let (note, plan) = match solved {
        Ok(plan) => ("", plan),
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => (", stopped", *plan),
        Err(error) => {
            println!("{label} | {solver} | {error}");
            return;
        }
    };
    assert_eq!(verify(problem, &plan), vec![]);
    let size = size.map_or_else(
        || "| | |".to_owned(),
        |size| format!("| {} | {} | {}", size.columns, size.rows, size.entries),
    );
    print_line(&format!("{label} | {solver} {size}"), &plan, elapsed, note);
}

fn print_line(label: &str, plan: &Plan, elapsed: Duration, note: &str) {
    let (total, bound) = (plan.total_fct.as_secs_f64(), plan.bound.as_secs_f64());
    println!(
        "{label} | {:.2} s{note} | {total:.2} s | {bound:.2} s | {:.2} % |",
        elapsed.as_secs_f64(),
        100.0 * (total - bound) / total
    );
}
