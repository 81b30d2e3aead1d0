//! `tradewind demo`: CloudPilot's experiment on this machine.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use tradewind_experiments::demo::{self, DemoError, DemoOptions, Stop};
use tradewind_experiments::report::{DemoReport, html, table};
use tradewind_experiments::scenario::Scenario;
use tradewind_lab::privilege;

use crate::output::progress::Progress;
use crate::output::{self, CHECK_FAILED, FAILED, Format, OrBadFile as _, Outcome, file, read_text};

#[derive(clap::Args)]
pub(crate) struct DemoArgs {
    /// End within 45 s: fewer handshakes, shorter rate tests, smaller volumes
    #[arg(long)]
    quick: bool,
    /// Another scenario than the built-in one (scenarios/cp-real.toml)
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Seed of the emulated network, instead of the topology's
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for demo.json and demo.html
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    out: PathBuf,
    /// Form of the answer on standard output
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

pub(crate) fn run(args: &DemoArgs) -> Outcome {
    let scenario = read_scenario(args.scenario.as_deref())?;
    let topology = demo::read_topology(&scenario);
    match (&args.scenario, topology) {
        (Some(file), Err(error @ DemoError::NoHost { .. })) => {
            return Err(error).with_context(|| file.display().to_string());
        }
        (_, topology) => topology.map(drop)?,
    }
    ensure_writable(&args.out)?;
    // Before any thread: without root this moves into a user namespace.
    privilege::acquire()?;
    let stop = Stop::default();
    let on_signal = stop.clone();
    ctrlc::set_handler(move || on_signal.set()).context("watch for Ctrl-C")?;
    let options = DemoOptions {
        scenario,
        quick: args.quick,
        seed: args.seed,
        program: demo::this_program()?,
        stop,
    };
    let mut progress = Progress::new();
    let report = demo::run(&options, &mut progress);
    progress.end();
    let report = report?;
    // If one of the two cannot be written, the other one still holds the results of minutes of
    // measuring.
    let shown = show(&report, args);
    write(&args.out, &report)?;
    shown?;
    Ok(verdict(&report))
}

fn read_scenario(file: Option<&Path>) -> anyhow::Result<Scenario> {
    let Some(file) = file else { return Ok(Scenario::cp_real()?) };
    let beside = file.parent().unwrap_or(Path::new("."));
    let load = |name: &str| {
        // The file name is added by the caller.
        read_text(&beside.join(name)).map_err(|error| io::Error::other(output::one_line(&error)))
    };
    Scenario::parse(&read_text(file)?, load).or_bad(file)
}

const JSON_FILE: &str = "demo.json";
const HTML_FILE: &str = "demo.html";

/// Checks before a run of minutes that its report can be written.
fn ensure_writable(directory: &Path) -> anyhow::Result<()> {
    [JSON_FILE, HTML_FILE].iter().try_for_each(|name| file::ensure_writable(&directory.join(name)))
}

fn write(directory: &Path, report: &DemoReport) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(report)?;
    for (name, text) in [(JSON_FILE, json), (HTML_FILE, html::page(report))] {
        let path = directory.join(name);
        file::write_whole(&path, &text)?;
        output::note(format_args!("wrote {}", path.display()));
    }
    Ok(())
}

fn show(report: &DemoReport, args: &DemoArgs) -> anyhow::Result<()> {
    if args.output == Format::Json {
        return output::json(report);
    }
    let flows = table::flows(report);
    output::table::print(&flows.heading, &flows.rows, 2)?;
    for line in table::summary(report) {
        output::line(line)?;
    }
    Ok(())
}

/// Returns the exit code: wrong content is a failure; a lab that did not keep time makes the
/// figures invalid.
fn verdict(report: &DemoReport) -> ExitCode {
    if !report.flows.iter().all(|flow| flow.sha256_ok) {
        FAILED.into()
    } else if report.valid {
        ExitCode::SUCCESS
    } else {
        CHECK_FAILED.into()
    }
}
