//! `tradewind demo`: the overlay's loop on an emulated WAN, and what it gains.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tradewind_demo::processes::{self, Stop};
use tradewind_demo::report::{DemoReport, html, table};
use tradewind_demo::scenario::Scenario;
use tradewind_demo::{self as demo, DemoError, DemoOptions};
use tradewind_lab::privilege;

use crate::output::progress::Progress;
use crate::output::{self, CHECK_FAILED, FAILED, Format, OrBadFile as _, Outcome, file, read_text};

#[derive(clap::Args)]
pub(crate) struct DemoArgs {
    /// End within 45 s: no rate tests, smaller volumes
    #[arg(long)]
    quick: bool,
    /// Another scenario than the built-in one (examples/cp-real.toml)
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Seed of the emulated network, instead of the topology's
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for demo.json and demo.html
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    out: PathBuf,
    /// End with exit code 3 when the lab did not keep time, although all bytes were carried
    #[arg(long)]
    strict: bool,
    /// Form of the answer
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
        program: processes::this_program()?,
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
    let is_carried = report.flows.iter().all(|flow| flow.sha256_ok);
    if is_carried && !report.valid && !args.strict {
        output::note(
            "warning: the run is invalid, its figures may be wrong; all bytes were carried \
             (`--strict` makes this exit code 3)",
        );
    }
    Ok(exit_code(is_carried, report.valid || !args.strict).into())
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

/// Returns the exit code: wrong content is a failure, figures that are not accepted are invalid.
fn exit_code(is_carried: bool, is_accepted: bool) -> u8 {
    match (is_carried, is_accepted) {
        (false, _) => FAILED,
        (true, false) => CHECK_FAILED,
        (true, true) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_content_fails_and_unaccepted_figures_are_invalid() {
        let codes = [(true, true), (true, false), (false, true), (false, false)];
        assert_eq!(codes.map(|(carried, accepted)| exit_code(carried, accepted)), [0, 3, 1, 1]);
    }
}
