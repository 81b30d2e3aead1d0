//! The binary `tradewind-papers`: the papers' experiments. Relays, gateways and probes on the lab
//! are processes of the binary `tradewind`.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage or a bad file, 3 a lab run was invalid.

use std::fmt::{Debug, Display};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::{Parser, Subcommand};
use tradewind_lab::{LabError, privilege};
use tradewind_output::file::{self, Form};
use tradewind_output::progress::Progress;
use tradewind_output::{
    self as output, BAD_USAGE, BadFile, CHECK_FAILED, FAILED, Format, OrBadFile as _, Outcome,
    chart, read_text, table,
};
use tradewind_papers::harness::{Experiment, ExperimentError, Record, RunOptions, Stop};
use tradewind_papers::{list, report};

/// Runs the papers' experiments: on labs of their own, or in numbers alone.
#[derive(Parser)]
#[command(name = "tradewind-papers", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or a bad file, 3 a lab run was \
     invalid."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Name all experiments
    List,
    /// Run an experiment
    ///
    /// Exit code 3 when the lab did not keep time, or when a run on the lab was stopped or failed
    /// after its first repeat: the record has the repeats that are whole. Findings change no exit
    /// code, whether they hold or not.
    Run(RunArgs),
    /// Show the records that runs have written with `--out`
    Report(ReportArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(Cli { command: Command::List }) => print_list(),
        Ok(Cli { command: Command::Run(args) }) => run(&args),
        Ok(Cli { command: Command::Report(args) }) => show_records(&args),
        Err(answer) => output::help(&answer).map(|error| match error {
            Some(line) => {
                complain(line);
                BAD_USAGE.into()
            }
            None => ExitCode::SUCCESS,
        }),
    };
    outcome.unwrap_or_else(|error| {
        complain(output::one_line(&error));
        exit_code(&error).into()
    })
}

/// Prints the reason why a command failed.
fn complain(text: impl Display) {
    output::complain_as("tradewind-papers", text);
}

/// Returns the exit code of an error: invalid files and arguments are wrong usage.
fn exit_code(error: &anyhow::Error) -> u8 {
    fn is<E: Display + Debug + Send + Sync + 'static>(
        error: &anyhow::Error,
        is_of_configuration: impl Fn(&E) -> bool,
    ) -> bool {
        error.downcast_ref().is_some_and(is_of_configuration)
    }
    let is_of_configuration = error.is::<BadFile>()
        || is(error, LabError::is_of_configuration)
        || is(error, ExperimentError::is_of_configuration);
    if is_of_configuration { BAD_USAGE } else { FAILED }
}

#[derive(clap::Args)]
struct RunArgs {
    /// The experiment (`tradewind-papers list` names them)
    #[arg(value_parser = experiment_named)]
    experiment: Experiment,
    /// Another scenario than the built-in one (papers/scenarios/NAME.toml)
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
    /// The binary that runs as relays, gateways and probes on the lab [default: `tradewind` beside
    /// this program]
    #[arg(long, value_name = "FILE")]
    tradewind: Option<PathBuf>,
    /// Form of the answer on standard output
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

fn experiment_named(name: &str) -> Result<Experiment, String> {
    let names = || {
        let names: Vec<&str> = list::all().iter().map(|known| known.name).collect();
        format!("expected one of: {}", names.join(", "))
    };
    list::by_name(name).copied().ok_or_else(names)
}

/// Lists all experiments.
fn print_list() -> Outcome {
    let row = |experiment: &Experiment| {
        let environment = if experiment.on_lab() { "lab" } else { "numeric" };
        [experiment.name, experiment.source, environment, experiment.summary]
            .map(str::to_owned)
            .to_vec()
    };
    let rows: Vec<Vec<String>> = list::all().iter().map(row).collect();
    table::print(&["experiment", "paper", "runs on", "what it shows"], &rows, 4)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs one experiment.
fn run(args: &RunArgs) -> Outcome {
    let form = match args.out.as_deref().map(Form::of).transpose() {
        Ok(form) => form,
        Err(line) => {
            complain(line);
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
        program: program(args)?,
        stop: Stop::default(),
    };
    if let Err(error) = args.experiment.check(&options) {
        complain(error);
        return Ok(BAD_USAGE.into());
    }
    // A run may take an hour: an obstacle to writing its record is reported before.
    if form == Some(Form::Svg) && !args.experiment.has_plots() {
        complain(without_plots(&[args.experiment.name]));
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

/// Returns the path of the binary `tradewind`; empty for an experiment without a lab.
fn program(args: &RunArgs) -> anyhow::Result<PathBuf> {
    if !args.experiment.on_lab() {
        return Ok(PathBuf::new());
    }
    let program = match &args.tradewind {
        Some(file) => file.clone(),
        None => std::env::current_exe().context("find this program")?.with_file_name("tradewind"),
    };
    // Processes on the lab's hosts start in other directories.
    std::fs::canonicalize(&program).map_err(|error| {
        let how = "`make build-papers` builds it beside this program, --tradewind names another";
        let why = output::one_line(&anyhow!(error));
        BadFile(format!("{}: {why}: {how}", program.display())).into()
    })
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
        (Form::Html, records) => report::page(records),
    };
    file::write_whole(out, &text)?;
    output::note(format_args!("wrote {}", out.display()));
    Ok(())
}

#[derive(clap::Args)]
struct ReportArgs {
    /// The records
    #[arg(required = true, value_name = "FILE")]
    records: Vec<PathBuf>,
    /// Also write them as one page (.html), their plots (.svg) or a list (.json)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Shows records that earlier runs have written, one after the other.
fn show_records(args: &ReportArgs) -> Outcome {
    let form = match args.out.as_deref().map(Form::of).transpose() {
        Ok(form) => form,
        Err(line) => {
            complain(line);
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
    for (title, table) in report::tables(record) {
        output::line(format_args!("\n{title}"))?;
        table::print(&table.heading, &table.rows, 1)?;
    }
    for assumption in &record.assumptions {
        output::line(format_args!("assumed: {assumption}"))?;
    }
    for reason in &record.invalid_because {
        output::line(format_args!("INVALID: {reason}"))?;
    }
    Ok(())
}
