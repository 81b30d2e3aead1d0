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

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tradewind_config::{MachineConfig, MachinesConfig};
use tradewind_machines::{Order, order};
use tradewind_model::catalogue::Catalogue;
use tradewind_plan::answer::Answer as PlanAnswer;
use tradewind_units::time::parse_duration;
use tradewind_units::{Duration, Money, RegionId};

use self::changes::changes;
use self::folder::{Folder, Record};
use self::show::{Answer, MachineAnswer};
use self::terraform::Terraform;
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
    match (args.sweep, args.destroy, args.yes) {
        (true, _, _) => sweep::run(args),
        // What was made goes without the file: it may be broken, or its plan gone.
        (_, true, true) => destroy(args),
        (_, true, false) => show(args, None),
        (_, false, yes) => {
            let config = read(&args.file)?;
            if yes { apply(args, &config) } else { show(args, Some(&config)) }
        }
    }
}

/// Shows what would be done for a file, or to remove all.
fn show(args: &MachinesArgs, config: Option<&MachinesConfig>) -> Outcome {
    let folder = match config {
        Some(_) => Folder::read(&args.file)?,
        None => Some(Folder::existing(&args.file)?),
    };
    let records = folder.map(|folder| folder.records.machines).unwrap_or_default();
    let orders = config.map_or_else(|| Ok(Vec::new()), |config| orders(config, &records))?;
    let state = Terraform::new(&args.terraform, &Folder::path_of(&args.file)).state()?;
    let changes = changes(&orders, &state, &records, &BTreeSet::new())?;
    let would = |change| MachineAnswer::would(change, &state);
    let answer = Answer::new(&orders, changes.iter().map(would).collect());
    args.output.print(&answer, show::table)?;
    if answer.has_changes() {
        output::note("nothing was changed: add --yes to do it");
    }
    Ok(ExitCode::SUCCESS)
}

fn apply(args: &MachinesArgs, config: &MachinesConfig) -> Outcome {
    let client = Some(args.controller.client()?);
    let folder = Folder::lock(&args.file, Some(&config.name))?;
    let orders = orders(config, &folder.records.machines)?;
    let hour: Money = orders.iter().map(|order| order.usd_per_hour).sum();
    output::note(format_args!("{} machines, ${:.3} an hour", orders.len(), hour.as_usd()));
    let terraform = folder.terraform(&args.terraform)?;
    let mut work = Work { folder, terraform, client, patience: args.patience };
    let answers = work.apply(config, &orders)?;
    done(args, &orders, answers)
}

fn destroy(args: &MachinesArgs) -> Outcome {
    Folder::existing(&args.file)?;
    let folder = Folder::lock(&args.file, None)?;
    let terraform = folder.terraform(&args.terraform)?;
    let client = args.controller.client();
    // What costs money can be taken away also without the controller.
    let client = client.map_err(|error| {
        output::note(format_args!("hosts are neither drained nor revoked: {error:#}"));
    });
    let mut work = Work { folder, terraform, client: client.ok(), patience: args.patience };
    let answers = work.destroy()?;
    done(args, &[], answers)
}

fn done(args: &MachinesArgs, orders: &[Order], answers: Vec<MachineAnswer>) -> Outcome {
    let answer = Answer::new(orders, answers);
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

/// Returns the relays of a plan as machines, numbered by region. A relay type that is no machine of
/// its region's cloud, such as `standard`, is the cloud's cheapest.
fn of_plan(plan: &PlanAnswer, catalogue: &Catalogue) -> Vec<MachineConfig> {
    let mut numbers: BTreeMap<&RegionId, usize> = BTreeMap::new();
    let mut machines = Vec::new();
    for relays in &plan.relays {
        let kind = relays.relay_type.as_str();
        let is_machine = catalogue.vm_type(kind).is_some()
            && kind.split(':').next() == Some(relays.region.cloud());
        for _ in 0..relays.count {
            let number = numbers.entry(&relays.region).or_default();
            *number += 1;
            machines.push(MachineConfig {
                name: format!("{}-{number}", relays.region.as_str().replace(':', "-")),
                region: relays.region.clone(),
                machine_type: is_machine.then(|| kind.to_owned()),
                image: None,
                usd_per_hour: None,
            });
        }
    }
    machines
}

/// Returns the machines of a file with types and prices. One without a type that is there keeps its
/// type, also where the catalogue has a cheaper one by now.
fn orders(
    config: &MachinesConfig,
    records: &BTreeMap<String, Record>,
) -> anyhow::Result<Vec<Order>> {
    let catalogue = Catalogue::builtin();
    let order = |machine: &MachineConfig| {
        let mut machine = machine.clone();
        let record = records.get(&machine.name).filter(|it| it.region == machine.region);
        machine.machine_type =
            machine.machine_type.or_else(|| record.map(|record| record.machine_type.clone()));
        order(&machine, &catalogue).map_err(|error| BadFile(error.to_string()).into())
    };
    config.machine.iter().map(order).collect()
}
