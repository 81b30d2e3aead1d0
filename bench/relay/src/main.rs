//! A benchmark of our relay beside HAProxy, nginx and a bare path, in turns, on one machine.
//!
//! Three network namespaces (client, relay, server) are joined by bare veth pairs: no emulated
//! delay hides a relay's cost. Each proxy is a process of its own in the middle namespace; the load
//! generator's threads live in the outer two. In every round each measurement is made of each
//! subject in turn, in an order that rotates too, so that a disturbance of the machine affects all;
//! ratios are formed within a round.
//!
//! `cargo run --release -p tradewind-bench-relay` (`make bench` builds `tradewind` first).

mod access;
mod measure;
mod nameless;
mod place;
mod report;
mod run;
mod server;
mod subject;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};

/// Compares our relay with HAProxy, nginx and a bare path.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Options {
    /// Short windows and few rounds: shows that all works, proves little.
    #[arg(long)]
    quick: bool,
    /// Rounds; each takes every measurement of every subject once [default: 10, quick: 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// CPU pinning of proxy and load.
    #[arg(long, value_enum, default_value_t = Pinning::Both)]
    pinning: Pinning,
    /// Compare only these, e.g. `haproxy,tradewind`.
    #[arg(long, value_enum, value_delimiter = ',')]
    subjects: Vec<subject::Subject>,
    /// Measure only this, e.g. `connect`.
    #[arg(long, value_enum, value_delimiter = ',')]
    tasks: Vec<run::Task>,
    /// Seconds for which streams run and connections are opened [default: 1.5, quick: 0.4].
    #[arg(long, value_parser = seconds)]
    window: Option<f64>,
    /// The `tradewind` program [default: the one beside this program].
    #[arg(long)]
    tradewind: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

fn seconds(text: &str) -> Result<f64, String> {
    let within = |seconds: &f64| (0.1..=600.0).contains(seconds);
    text.parse().ok().filter(within).ok_or_else(|| "expected 0.1 to 600 seconds".to_owned())
}

/// CPU pinning of proxy and load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pinning {
    /// Load on the first CPU, the proxy on the second.
    Pinned,
    /// The kernel chooses.
    Unpinned,
    /// First pinned, then unpinned.
    Both,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A table for people.
    Table,
    /// The same data with all values, for programs.
    Json,
}

fn main() -> ExitCode {
    match bench(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(options: Options) -> anyhow::Result<()> {
    if !tradewind_net::capability::may_make_networks() {
        tradewind_net::userns::become_root_inside()?;
    }
    tradewind_net::descriptors::raise_limit().context("raise the limit of open files")?;
    let modes = match options.pinning {
        Pinning::Pinned => vec![run::Mode::Pinned],
        Pinning::Unpinned => vec![run::Mode::Unpinned],
        Pinning::Both => vec![run::Mode::Pinned, run::Mode::Unpinned],
    };
    let plan = run::Plan::new(options.quick, options.rounds, options.window);
    let programs = subject::Programs::find(options.tradewind, &options.subjects);
    let results = run::run(&plan, &modes, &options.tasks, &programs)?;
    let text = match options.output {
        Output::Table => report::table(&results),
        Output::Json => serde_json::to_string_pretty(&results)? + "\n",
    };
    std::io::stdout().write_all(text.as_bytes()).context("write the results")?;
    let ours = results.failures.iter().filter(|failure| failure.subject.is_ours()).count();
    anyhow::ensure!(ours == 0, "{ours} measurements by way of Tradewind failed");
    Ok(())
}
