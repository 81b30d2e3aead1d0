//! Runs the numeric experiments of \[CP VII-B\] and prints their tables (docs/planner-experiments.md).
//!
//! `cargo run --release -p tradewind-experiments --example planning -- NAME|all [--runs N] [--seed N]`

use std::error::Error;

use tradewind_experiments::planning::{Experiment, measure, render};

/// Averages of as many runs as the paper's [CP VII-A].
const RUNS: u64 = 30;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut runs, mut seed, mut chosen) = (RUNS, 1, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u64, Box<dyn Error>> {
            let text = arguments.next().ok_or_else(|| format!("{argument}: give a number"))?;
            text.parse().map_err(|_| format!("{argument}: `{text}` is no number").into())
        };
        match argument.as_str() {
            "--runs" => runs = number()?.max(1),
            "--seed" => seed = number()?,
            "all" => chosen.extend(Experiment::ALL),
            name => chosen.push(Experiment::named(name).ok_or_else(|| unknown(name))?),
        }
    }
    if chosen.is_empty() {
        return Err(unknown("").into());
    }
    for experiment in chosen {
        println!("## {}, {runs} runs, seeds from {seed}\n", experiment.name());
        let solvers = experiment.solvers();
        let points = (experiment.settings().into_iter())
            .map(|(name, setting)| measure(name, &setting, &solvers, runs, seed))
            .collect::<Result<Vec<_>, _>>()?;
        for kind in experiment.tables() {
            println!("{}", render(&points, *kind));
        }
    }
    Ok(())
}

fn unknown(name: &str) -> String {
    let names = Experiment::ALL.map(Experiment::name).join(", ");
    format!("`{name}` is no experiment; there are {names}, and all")
}
