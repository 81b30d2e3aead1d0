//! `tradewind machines`: machines in clouds by Terraform, which join as relays by themselves.
//!
//! | module | holds |
//! |---|---|
//! | `folder` | the folder beside the file: what was asked for, the tag, the lock |
//! | `changes` | from the file and what is there, what is to be done: pure |
//! | `work` | the changes, done by Terraform and by the controller's API |
//! | `terraform` | Terraform |
//! | `sweep` | things with the tag that Terraform does not know |
//! | `show` | the answer |

mod changes;
mod folder;
mod show;
mod sweep;
mod terraform;
mod work;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tradewind_config::{MachineConfig, MachinesConfig};
use tradewind_machines::{Order, order};
use tradewind_model::catalogue::Catalogue;
use tradewind_plan::answer::Answer as PlanAnswer;
use tradewind_units::Duration;
use tradewind_units::time::parse_duration;

use self::changes::changes;
use self::folder::Folder;
use self::show::{Answer, MachineAnswer};
use self::terraform::{State, Terraform};
use self::work::Work;
use crate::controller::access::{ControllerArgs, OutputArgs};
use crate::output::{self, BadFile, OrBadFile as _, Outcome, read_text};

#[derive(clap::Args)]
pub(crate) struct MachinesArgs {
    /// The file of machines (docs/reference/machines.md)
    file: PathBuf,
    /// Make, change and remove machines; without it, only show what would be done
    #[arg(long)]
    yes: bool,
    /// Remove all machines and all that was made for them
    #[arg(long, conflicts_with = "sweep")]
    destroy: bool,
    /// Show what has the tag of this file in a cloud and is unknown to Terraform, such as what a
    /// killed run left; remove it with --yes
    #[arg(long)]
    sweep: bool,
    /// Longest wait for machines to join, and for the sessions of those that go
    #[arg(long, value_name = "SPAN", default_value = "5 min", value_parser = parse_duration)]
    patience: Duration,
    /// The program: Terraform, or one with its commands, such as `tofu`
    #[arg(long, value_name = "PROGRAM", default_value = "terraform")]
    terraform: PathBuf,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &MachinesArgs) -> Outcome {
    let config = read(&args.file)?;
    if args.sweep {
        return sweep::run(args, &config);
    }
    let orders = if args.destroy { Vec::new() } else { orders(&config)? };
    if !args.yes {
        let folder = Folder::read(&args.file)?;
        let terraform = Terraform::new(&args.terraform, &Folder::path_of(&args.file));
        let state = if folder.is_some() { terraform.state()? } else { State::default() };
        let records = folder.map(|folder| folder.records.machines).unwrap_or_default();
        let changes = changes(&orders, &state, &records)?;
        let answer = Answer::new(&orders, &changes, |change| MachineAnswer::would(change, &state));
        args.output.print(&answer, show::table)?;
        if answer.has_changes() {
            output::note("nothing was changed: add --yes to do it");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let folder = Folder::lock(&args.file)?;
    let terraform = Terraform::new(&args.terraform, folder.path());
    let client = match args.controller.client() {
        Ok(client) => Some(client),
        // What costs money can be taken away also without the controller.
        Err(error) if args.destroy => {
            output::note(format_args!("hosts are neither drained nor revoked: {error:#}"));
            None
        }
        Err(error) => return Err(error),
    };
    let mut work = Work { folder, terraform, client, patience: args.patience };
    let answers = if args.destroy { work.destroy()? } else { work.apply(&config, &orders)? };
    let answer = Answer::done(&orders, answers);
    args.output.print(&answer, show::table)?;
    Ok(if answer.has_failures() { output::FAILED.into() } else { ExitCode::SUCCESS })
}

/// Reads a file of machines, with the relays of its plan.
fn read(file: &Path) -> anyhow::Result<MachinesConfig> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut config = MachinesConfig::parse(&read_text(file)?, folder).or_bad(file)?;
    if let Some(plan) = config.plan.clone() {
        let answer: PlanAnswer = serde_json::from_str(&read_text(&plan)?).or_bad(&plan)?;
        config.machine.extend(of_plan(&answer, &Catalogue::builtin()));
        config.check().or_bad(&plan)?;
    }
    Ok(config)
}

/// Returns the relays of a plan as machines. A relay type that is no machine of its region's cloud,
/// such as `standard`, is the cloud's cheapest.
fn of_plan(plan: &PlanAnswer, catalogue: &Catalogue) -> Vec<MachineConfig> {
    let mut machines = Vec::new();
    for relays in &plan.relays {
        let kind = relays.relay_type.as_str();
        let is_machine = catalogue.vm_type(kind).is_some()
            && kind.split(':').next() == Some(relays.region.cloud());
        machines.extend((1..=relays.count).map(|number| MachineConfig {
            name: format!("{}-{number}", relays.region.as_str().replace(':', "-")),
            region: relays.region.clone(),
            machine_type: is_machine.then(|| kind.to_owned()),
            image: None,
            usd_per_hour: None,
        }));
    }
    machines
}

fn orders(config: &MachinesConfig) -> anyhow::Result<Vec<Order>> {
    let catalogue = Catalogue::builtin();
    let order = |machine| order(machine, &catalogue).map_err(|it| BadFile(it.to_string()).into());
    config.machine.iter().map(order).collect()
}
