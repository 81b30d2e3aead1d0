//! `tradewind apply`: puts a plan of the controller into effect.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use tradewind_controller::ClientError;
use tradewind_controller::view::PlanView;

use crate::controller::access::ControllerArgs;
use crate::output::{self, BadFile, FAILED, Outcome};
use crate::plan::suggested;

#[derive(clap::Args)]
pub(crate) struct ApplyArgs {
    /// The plan, one of the newest eight; the newest if absent
    number: Option<u64>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    controller: ControllerArgs,
}

pub(crate) fn run(args: &ApplyArgs) -> Outcome {
    let client = args.controller.client()?;
    let asked = args.number.map_or_else(|| "newest".to_owned(), |number| number.to_string());
    let plan: PlanView = match client.get(&format!("/v1/plans/{asked}")) {
        // Nothing was named that is not there: there is no plan yet.
        Err(ClientError::Refused { status: 404, error }) if args.number.is_none() => {
            anyhow::bail!(error)
        }
        answer => answer?,
    };
    suggested::show(&plan)?;
    if plan.is_applied {
        return Ok(ExitCode::SUCCESS);
    }
    let number = plan.record.number;
    if !args.yes && !is_wanted(number)? {
        output::note("nothing was changed");
        return Ok(FAILED.into());
    }
    client.act(&format!("/v1/plans/{number}/apply"))?;
    output::line(format_args!(
        "plan {number} is being put into effect: relays first, then gateways; `tradewind status` \
         shows how far it is"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Asks whether a plan should be put into effect.
fn is_wanted(number: u64) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        let problem = "nobody is there to ask; --yes applies the plan without a question";
        return Err(BadFile(problem.to_owned()).into());
    }
    eprint!("Put plan {number} into effect? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("standard input")?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
