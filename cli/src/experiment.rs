//! `tradewind lab list`, `run` and `report`: the papers' experiments.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use tradewind_experiments::demo::{self, Stop};
use tradewind_experiments::experiment::{self, Experiment, Record, Row, RunOptions};
use tradewind_lab::privilege;

use crate::output::progress::Progress;
use crate::output::{self, CHECK_FAILED, Format, Outcome, file, read_text, table};

#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// The experiment (`tradewind lab list` names them)
    #[arg(value_parser = experiment_named)]
    experiment: Experiment,
    /// Seed of the first repeat, instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// How often to run it, each time with the next seed
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// End each repeat within 45 s
    #[arg(long)]
    quick: bool,
    /// Also write the record, as JSON, into this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Form of the answer on standard output
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

fn experiment_named(name: &str) -> Result<Experiment, String> {
    let names = || {
        let names: Vec<&str> = experiment::all().iter().map(|known| known.name).collect();
        format!("expected one of: {}", names.join(", "))
    };
    experiment::by_name(name).copied().ok_or_else(names)
}

/// Names all experiments.
pub(crate) fn list() -> Outcome {
    let row = |experiment: &Experiment| {
        let ground = if experiment.on_lab { "lab" } else { "numeric" };
        [experiment.name, experiment.source, ground, experiment.summary].map(str::to_owned).to_vec()
    };
    let rows: Vec<Vec<String>> = experiment::all().iter().map(row).collect();
    table::print(&["experiment", "paper", "ground", "what it shows"], &rows, 4)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs one experiment.
pub(crate) fn run(args: &RunArgs) -> Outcome {
    if args.experiment.on_lab {
        // Before any thread: without root this moves into a user namespace.
        privilege::acquire()?;
    }
    let stop = Stop::default();
    let on_signal = stop.clone();
    ctrlc::set_handler(move || on_signal.set()).context("watch for Ctrl-C")?;
    let options = RunOptions {
        seed: args.seed,
        repeat: args.repeat,
        quick: args.quick,
        program: demo::this_program()?,
        stop,
    };
    let mut progress = Progress::new();
    let record = args.experiment.run(&options, &mut progress);
    progress.end();
    let record = record?;
    if let Some(file) = &args.out {
        let text = serde_json::to_string_pretty(&record)?;
        file::write_whole(file, &text)?;
        output::say(format_args!("wrote {}", file.display()));
    }
    match args.output {
        Format::Json => output::json(&record)?,
        Format::Table => show(&record)?,
    }
    Ok(if record.valid { ExitCode::SUCCESS } else { CHECK_FAILED.into() })
}

/// Shows records that earlier runs have written, one after the other.
pub(crate) fn report(files: &[PathBuf]) -> Outcome {
    for file in files {
        show(&read_record(file)?)?;
        output::line("")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read_record(file: &Path) -> anyhow::Result<Record> {
    serde_json::from_str(&read_text(file)?).with_context(|| file.display().to_string())
}

fn show(record: &Record) -> anyhow::Result<()> {
    output::line(&record.name)?;
    let rows: Vec<Vec<String>> = record.rows.iter().map(cells).collect();
    table::print(&["case", "paper", "ours", "95 % interval", "unit", "note"], &rows, 1)?;
    for assumption in &record.assumptions {
        output::line(format_args!("assumed: {assumption}"))?;
    }
    for reason in &record.invalid_because {
        output::line(format_args!("INVALID: {reason}"))?;
    }
    Ok(())
}

fn cells(row: &Row) -> Vec<String> {
    let number = |value: f64| format!("{value:.3}");
    let interval = match (row.ours_low, row.ours_high) {
        (Some(low), Some(high)) => format!("{low:.3} to {high:.3}"),
        _ => String::new(),
    };
    let paper = row.paper.map(number).unwrap_or_default();
    vec![row.case.clone(), paper, number(row.ours), interval, row.unit.clone(), row.note.clone()]
}
