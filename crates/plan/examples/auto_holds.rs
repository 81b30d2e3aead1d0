//! How near `auto` comes to the best plans known, and to what is proved, on a family of sixty
//! problems.
//!
//! `cargo run --release --workspace --example auto_holds -- [--cpu] [SECONDS [FIRST [COUNT]]]`
//!
//! SECONDS (10) are for each problem of the family (`crates/plan/tests/common/family.rs`), from FIRST (0)
//! on COUNT of them (60), by the wall, or with `--cpu` by the processor time of the thread, for
//! machines that others keep busy too. The exit code is 1 when a plan takes more than one percent
//! longer than the best known (`crates/plan/tests/common/best_known.csv`), or more than one in ten of them
//! more than one percent longer than what is proved. With `--best` in front it prints that file
//! anew instead, each line the better of the file's plan and the one found: what a search with more
//! time, or another one, adds to it.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a command that reads a clock and the tests' problems, not part of the pure library"
)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::process::ExitCode;
use std::time::Instant;

use common::family;
use tradewind_plan::{Limits, Plan, Problem, SolveError, solver, verify};
use tradewind_units::Duration;

/// How much longer than the best known, and than what is proved, a plan may take, as a part.
const MOST: f64 = 0.01;

/// The part of the plans of which the latter must hold.
const OF: f64 = 0.9;

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut has = |word: &str| {
        let at = words.iter().position(|other| other == word);
        at.map(|at| words.remove(at)).is_some()
    };
    let (by_cpu, is_best) = (has("--cpu"), has("--best"));
    let number = |at: usize, default: f64| {
        let parse = |text: &String| {
            text.parse().unwrap_or_else(|_| {
                eprintln!("auto_holds, word {}: expected a number, not `{text}`", at + 1);
                std::process::exit(2)
            })
        };
        words.get(at).map_or(default, parse)
    };
    let limit = Duration::from_secs_f64(number(0, 10.0));
    let first = number(1, 0.0) as usize;
    let end = (first + number(2, family::COUNT as f64) as usize).min(family::COUNT);
    if !is_best {
        println!(
            "| problem | seconds | all flows' seconds | best known | above | at least | gap |"
        );
        println!("|---|---|---|---|---|---|---|");
    }
    let (mut worst, mut gaps) = (0.0_f64, Vec::new());
    for at in first..end {
        let problem = family::problem(at);
        let (plan, took_s) = plan(&problem, limit, by_cpu);
        let found = plan.score(&problem).0.as_secs_f64();
        let known = family::best_known_s(at).unwrap_or(f64::INFINITY);
        if is_best {
            println!("{at},{:.6}", found.min(known));
            continue;
        }
        let bound = plan.bound.as_secs_f64();
        let (above, gap) = (found / known - 1.0, found / bound - 1.0);
        (worst, gaps) = (worst.max(above), [gaps, vec![gap]].concat());
        println!(
            "| {at}: {} | {took_s:.2} | {found:.3} | {known:.3} | {:.2} % | {bound:.3} | {:.2} % |",
            family::about(at),
            above * 100.0,
            gap * 100.0
        );
    }
    if is_best { ExitCode::SUCCESS } else { judged(worst, gaps) }
}

/// Says how far above the best known the worst plan is, and above the bound nine in ten at most.
fn judged(worst: f64, mut gaps: Vec<f64>) -> ExitCode {
    gaps.sort_by(f64::total_cmp);
    let count = gaps.len() as f64;
    let at = ((count * OF).ceil() as usize).clamp(1, gaps.len());
    let closed = gaps.iter().filter(|gap| **gap <= 0.0).count();
    let (nine_in_ten, proved) = (gaps[at - 1] * 100.0, closed);
    println!(
        "\n{proved} of {count} proved best; nine in ten within {nine_in_ten:.2} % of what is proved"
    );
    println!("the worst {:.2} % above the best known", worst * 100.0);
    let is_met = worst <= MOST && gaps[at - 1] <= MOST;
    if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plans within the limit; the seconds that it took.
fn plan(problem: &Problem, limit: Duration, by_cpu: bool) -> (Plan, f64) {
    let (start, start_cpu) = (Instant::now(), processor());
    let passed = || {
        if by_cpu { processor().saturating_sub(start_cpu) } else { start.elapsed() }
    };
    let left = || limit.saturating_sub(passed());
    let should_stop = || left().is_zero();
    let limits =
        Limits { should_stop: &should_stop, time_left: Some(&left), ..Limits::work(u64::MAX) };
    let auto = solver::by_name("auto").expect("one of the names");
    let plan = match solver::solve(auto.as_ref(), problem, &limits) {
        Ok(plan) => plan,
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => *plan,
        Err(error) => panic!("direct paths need no money: {error}"),
    };
    assert_eq!(verify(problem, &plan), vec![]);
    (plan, passed().as_secs_f64())
}

/// Processor time of this thread: the kernel counts it in nanoseconds.
fn processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0);
    Duration::from_nanos(nanos)
}
