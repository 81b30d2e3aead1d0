//! `tradewind doctor`: what this kernel lets this process do, by trying.

use std::process::ExitCode;

use serde::Serialize;
use tradewind_net::ability::{ABILITIES, Ability};
use tradewind_net::capability;

use crate::output::{self, Format, Outcome, table};

#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    /// Form of the result
    #[arg(short, long, alias = "format", value_enum, default_value = "table")]
    output: Format,
}

/// What became of one ability.
#[derive(Serialize)]
struct Finding {
    ability: &'static str,
    works: bool,
    needed: bool,
    used_for: &'static str,
    /// What was seen, or why it does not work.
    detail: String,
}

/// All that was found.
#[derive(Serialize)]
struct Report {
    schema_version: u32,
    kernel: String,
    user_id: u32,
    /// What gives connections their first window here: `sockops`, `routes` or `none`.
    first_window: &'static str,
    /// What jump-start acts through here: `sockops`, `routes` or `none`.
    jump_start: &'static str,
    abilities: Vec<Finding>,
}

pub(crate) fn run(args: &DoctorArgs) -> Outcome {
    // Before the trials: one of them may make another user of this process.
    let (kernel, user_id) = (capability::kernel_release(), capability::user_id());
    let abilities: Vec<Finding> = ABILITIES.iter().map(examine).collect();
    let report = Report {
        schema_version: 1,
        kernel,
        user_id,
        first_window: first_that_works(&abilities, "sockops"),
        jump_start: first_that_works(&abilities, "learned windows"),
        abilities,
    };
    match args.output {
        Format::Json => output::json(&report)?,
        Format::Table => show(&report)?,
    }
    let is_missing = |finding: &&Finding| finding.needed && !finding.works;
    let missing: Vec<&str> =
        report.abilities.iter().filter(is_missing).map(|finding| finding.ability).collect();
    if missing.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    output::complain(format_args!("needed and missing: {}", missing.join(", ")));
    Ok(output::CHECK_FAILED.into())
}

fn examine(ability: &Ability) -> Finding {
    let (works, detail) = match (ability.try_it)() {
        Ok(detail) => (true, detail),
        Err(error) => (false, output::one_line(&error.into())),
    };
    let Ability { name, used_for, needed, .. } = *ability;
    Finding { ability: name, works, needed, used_for, detail }
}

/// What sets windows here, for relays with `initial_window` or for jump-start: the program whose ability is
/// `program`, else routes, else nothing.
fn first_that_works(abilities: &[Finding], program: &str) -> &'static str {
    let works =
        |name: &str| abilities.iter().any(|finding| finding.ability == name && finding.works);
    match (works(program), works("window routes")) {
        (true, _) => "sockops",
        (false, true) => "routes",
        (false, false) => "none",
    }
}

fn show(report: &Report) -> anyhow::Result<()> {
    let row = |finding: &Finding| {
        let word = match (finding.works, finding.needed) {
            (true, _) => "works",
            (false, true) => "MISSING",
            (false, false) => "no",
        };
        let ability = finding.ability.to_owned();
        vec![ability, word.to_owned(), finding.used_for.to_owned(), finding.detail.clone()]
    };
    let rows: Vec<_> = report.abilities.iter().map(row).collect();
    table::print(&["ability", "here", "used for", "what was seen"], &rows, 4)?;
    let first_window = match report.first_window {
        "sockops" => "by sockops, for each connection",
        "routes" => "by routes, for neighbours of leg.to only",
        _ => "not available: connections start with the kernel's",
    };
    output::line(format_args!(
        "Linux {}, user {}. First windows: {first_window}. Jump-start acts through: {}. Not needed: io_uring, modules of our own.",
        report.kernel, report.user_id, report.jump_start
    ))
}
