//! `tradewind lab list`, `run` and `report`: the papers' experiments.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use tradewind_experiments::demo::{self, Stop};
use tradewind_experiments::experiment::{self, Experiment, Record, RunOptions};
use tradewind_experiments::report::{self, chart, html};
use tradewind_lab::privilege;

use crate::output::file::Form;
use crate::output::progress::Progress;
use crate::output::{
    self, BAD_USAGE, BadFile, CHECK_FAILED, Format, OrBadFile as _, Outcome, file, read_text, table,
};

#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// The experiment (`tradewind lab list` names them)
    #[arg(value_parser = experiment_named)]
    experiment: Experiment,
    /// Another scenario than the built-in one (scenarios/NAME.toml)
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Measured round-trip times (CSV, src,dst,rtt_ms) instead of guesses; for cdd-rtt, trn-scope
    /// and rt-model
    #[arg(long, value_name = "FILE")]
    rtt: Option<PathBuf>,
    /// Seed of the first repeat, instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
    /// Number of runs, each with the next seed [default: the scenario's runs, or once]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: Option<u32>,
    /// End within 45 s (on the lab: each repeat)
    #[arg(long)]
    quick: bool,
    /// On the lab: run one part of the first repeat alone, to see that it runs; no figures
    #[arg(long)]
    first_part: bool,
    /// Also write the record (.json) or its plots (.svg; .html with all figures) into this file
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

/// Lists all experiments.
pub(crate) fn list() -> Outcome {
    let row = |experiment: &Experiment| {
        let environment = if experiment.on_lab() { "lab" } else { "numeric" };
        [experiment.name, experiment.source, environment, experiment.summary]
            .map(str::to_owned)
            .to_vec()
    };
    let rows: Vec<Vec<String>> = experiment::all().iter().map(row).collect();
    table::print(&["experiment", "paper", "runs on", "what it shows"], &rows, 4)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs one experiment.
pub(crate) fn run(args: &RunArgs) -> Outcome {
    let form = match args.out.as_deref().map(Form::of).transpose() {
        Ok(form) => form,
        Err(line) => {
            output::complain(line);
            return Ok(BAD_USAGE.into());
        }
    };
    let options = RunOptions {
        scenario: args.scenario.clone(),
        rtt: args.rtt.clone(),
        seed: args.seed,
        repeat: args.repeat,
        quick: args.quick,
        first_part: args.first_part,
        program: demo::this_program()?,
        stop: Stop::default(),
    };
    if let Err(error) = args.experiment.check(&options) {
        output::complain(error);
        return Ok(BAD_USAGE.into());
    }
    // A run may take an hour: an obstacle to writing its record is reported before.
    if form == Some(Form::Svg) && !args.experiment.has_plots() {
        output::complain(without_plots(&[args.experiment.name]));
        return Ok(BAD_USAGE.into());
    }
    args.out.as_deref().map_or(Ok(()), file::ensure_writable)?;
    if args.experiment.on_lab() {
        // Before any thread: without root this moves into a user namespace.
        privilege::acquire()?;
    }
    let on_signal = options.stop.clone();
    ctrlc::set_handler(move || on_signal.set()).context("watch for Ctrl-C")?;
    let mut progress = Progress::new();
    let record = args.experiment.run(&options, &mut progress);
    progress.end();
    let record = record?;
    // If one of the two cannot be written, the other one still holds the results of the run.
    let shown = match args.output {
        Format::Json => output::json(&record),
        Format::Table => show(&record),
    };
    if let Some((file, form)) = args.out.as_ref().zip(form) {
        write(file, form, std::slice::from_ref(&record))?;
    }
    shown?;
    Ok(if record.valid { ExitCode::SUCCESS } else { CHECK_FAILED.into() })
}

fn without_plots(names: &[&str]) -> String {
    format!("--out: {} has no plots: .html or .json", names.join(", "))
}

/// Writes records as data, as plots, or as a page with everything.
fn write(out: &Path, form: Form, records: &[Record]) -> anyhow::Result<()> {
    let text = match (form, records) {
        (Form::Json, [record]) => serde_json::to_string_pretty(record)?,
        (Form::Json, records) => serde_json::to_string_pretty(records)?,
        (Form::Svg, records) => {
            let charts: Vec<chart::Chart> = records.iter().flat_map(Record::charts).collect();
            if charts.is_empty() {
                let names: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
                return Err(BadFile(without_plots(&names)).into());
            }
            chart::svg(&charts)
        }
        (Form::Html, records) => html::records_page(records),
    };
    file::write_whole(out, &text)?;
    output::note(format_args!("wrote {}", out.display()));
    Ok(())
}

#[derive(clap::Args)]
pub(crate) struct ReportArgs {
    /// The records
    #[arg(required = true, value_name = "FILE")]
    records: Vec<PathBuf>,
    /// Also write them as one page (.html), their plots (.svg) or a list (.json)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Shows records that earlier runs have written, one after the other.
pub(crate) fn report(args: &ReportArgs) -> Outcome {
    let form = match args.out.as_deref().map(Form::of).transpose() {
        Ok(form) => form,
        Err(line) => {
            output::complain(line);
            return Ok(BAD_USAGE.into());
        }
    };
    args.out.as_deref().map_or(Ok(()), file::ensure_writable)?;
    let records: Result<Vec<Record>, _> =
        args.records.iter().map(|file| read_record(file)).collect();
    let records = records?;
    for record in &records {
        show(record)?;
        output::line("")?;
    }
    if let Some((file, form)) = args.out.as_ref().zip(form) {
        write(file, form, &records)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read_record(file: &Path) -> anyhow::Result<Record> {
    serde_json::from_str(&read_text(file)?).or_bad(file)
}

fn show(record: &Record) -> anyhow::Result<()> {
    output::line(&record.name)?;
    for (title, table) in report::table::record(record) {
        output::line(format_args!("\n{title}"))?;
        output::table::print(&table.heading, &table.rows, 1)?;
    }
    for assumption in &record.assumptions {
        output::line(format_args!("assumed: {assumption}"))?;
    }
    for reason in &record.invalid_because {
        output::line(format_args!("INVALID: {reason}"))?;
    }
    Ok(())
}
