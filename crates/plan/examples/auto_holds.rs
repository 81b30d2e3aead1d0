//! Measures how close `auto` comes to the best known plans, and to proven bounds, on a family of
//! sixty problems.
//!
//! `cargo run --release --workspace --example auto_holds -- [--cpu | --work] [SECONDS [FIRST
//! [COUNT]]]`
//!
//! SECONDS (10) are for each problem of the family (`crates/plan/tests/common/family.rs`), from
//! FIRST (0) on COUNT of them (60), in wall-clock time, or with `--cpu` in the thread's CPU time,
//! for machines with other load. With `--work` they are steps instead: the plans are then the same
//! on every machine. The exit code is 1 when a plan takes more than one percent longer than the
//! best known (`crates/plan/tests/common/best_known.csv`), or more than one in ten of them more
//! than one percent longer than its proven bound. With `--best` in front it prints that file anew
//! instead, each line with the better of the file's plan and the one found: so a search with more
//! time, or another one, can improve it.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a command that reads a clock and the tests' problems, not part of the pure library"
)]

mod command;
#[path = "../tests/common/mod.rs"]
mod common;

use std::process::ExitCode;

use command::{Since, Words};
use common::family;
use tradewind_plan::{Limits, Plan, Problem, SolveError, solver, verify};
use tradewind_units::Duration;

/// Largest relative excess of a plan over the best known one, and over the proven bound.
const MAX: f64 = 0.01;

/// Fraction of the plans for which the latter must hold.
const OF: f64 = 0.9;

fn main() -> ExitCode {
    let mut words = Words::of("auto_holds");
    let (by_cpu, is_best) = (words.take("--cpu"), words.take("--best"));
    let by_work = words.take("--work");
    let limit = if by_work {
        Limit::Work(words.number(0, 1_000_000))
    } else {
        Limit::Time(Duration::from_secs_f64(words.number(0, 10.0)))
    };
    let first: usize = words.number(1, 0);
    let end = (first + words.number(2, family::COUNT)).min(family::COUNT);
    if !is_best {
        println!(
            "| problem | seconds | all flows' seconds | best known | above | at least | gap |"
        );
        println!("|---|---|---|---|---|---|---|");
    }
    let mut held = Vec::new();
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
        held.push(Held { class: family::class(at), above, gap });
        println!(
            "| {at}: {} | {took_s:.2} | {found:.3} | {known:.3} | {:.2} % | {bound:.3} | {:.2} % |",
            family::about(at),
            above * 100.0,
            gap * 100.0
        );
    }
    if is_best { ExitCode::SUCCESS } else { judged(&held) }
}

/// Relative distances of one problem's plan: above the best known, and above the proven bound.
struct Held {
    class: String,
    above: f64,
    gap: f64,
}

/// Prints the distance of the worst plan above the best known, and the 90th percentile above the
/// bound, for each class of problems and for all; returns success if both are within limits.
fn judged(held: &[Held]) -> ExitCode {
    println!("\n| problems | | proved best | median gap | nine in ten | most | above, most |");
    println!("|---|---|---|---|---|---|---|");
    for (at, one) in held.iter().enumerate() {
        if held[..at].iter().all(|other| other.class != one.class) {
            let of_class: Vec<&Held> =
                held.iter().filter(|other| other.class == one.class).collect();
            print_class(&one.class, &of_class);
        }
    }
    let all: Vec<&Held> = held.iter().collect();
    let (nine_in_ten, worst) = print_class("all", &all);
    let is_met = worst <= MAX && nine_in_ten <= MAX;
    if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints a line; returns the 90th percentile of the gaps, and the greatest distance above the best
/// known.
fn print_class(class: &str, held: &[&Held]) -> (f64, f64) {
    let mut gaps: Vec<f64> = held.iter().map(|held| held.gap).collect();
    gaps.sort_by(f64::total_cmp);
    let at =
        |part: f64| gaps[((gaps.len() as f64 * part).ceil() as usize).clamp(1, gaps.len()) - 1];
    let proved = gaps.iter().filter(|gap| **gap <= 0.0).count();
    let worst = held.iter().map(|held| held.above).fold(0.0, f64::max);
    println!(
        "| {class} | {} | {proved} | {:.2} % | {:.2} % | {:.2} % | {:.2} % |",
        gaps.len(),
        at(0.5) * 100.0,
        at(OF) * 100.0,
        at(1.0) * 100.0,
        worst * 100.0
    );
    (at(OF), worst)
}

/// The limit of each run.
#[derive(Clone, Copy)]
enum Limit {
    Time(Duration),
    Work(u64),
}

/// Returns the plan within the limit, and the seconds that it took.
fn plan(problem: &Problem, limit: Limit, by_cpu: bool) -> (Plan, f64) {
    let start = Since::now();
    let left = || match limit {
        Limit::Time(limit) => limit.saturating_sub(start.passed(by_cpu)),
        Limit::Work(_) => Duration::MAX,
    };
    let should_stop = || left().is_zero();
    let limits = match limit {
        Limit::Time(_) => {
            Limits { should_stop: &should_stop, time_left: Some(&left), ..Limits::work(u64::MAX) }
        }
        Limit::Work(work) => Limits::work(work),
    };
    let auto = solver::by_name("auto").expect("one of the names");
    let plan = match solver::solve(auto.as_ref(), problem, &limits) {
        Ok(plan) => plan,
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => *plan,
        Err(error) => panic!("direct paths need no money: {error}"),
    };
    assert_eq!(verify(problem, &plan), vec![]);
    (plan, start.passed(by_cpu).as_secs_f64())
}
