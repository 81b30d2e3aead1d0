//! `tradewind plan configure`: writes the configurations of a plan's gateways and relays, and all
//! files that they need.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use tradewind_desired::{DesiredPackets, compile, compile_packets};

mod hosts;
mod inventory;
mod tables;

use super::stored_plan::StoredPlan;
use super::write;
use crate::output::{BadFile, OrBadFile as _, Outcome};
use inventory::read_inventory;
use tables::{Planned, gateway_table, relay_table};

#[derive(clap::Args)]
pub(crate) struct ConfigureArgs {
    /// The plan, as `tradewind plan --out` wrote it
    plan: PathBuf,
    /// Addresses of its relays, destinations of its flows, and ends of its packet flows
    #[arg(long, value_name = "FILE")]
    inventory: PathBuf,
    /// Directory for `gateway-SITE.toml` of each source and `relay-NAME.toml` of each relay, drafts
    /// of grants, settings of kernels, and systemd units
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Configurations of the same names with everything that plans do not contain, such as
    /// identities; in those, `routes` and `leg` are replaced, `[policy]`, `[[forward]]`, `[packet]`
    /// and `[[packet]]` are added to, and all else stays
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// The problem, instead of the one that the plan's file holds
    #[arg(long, value_name = "FILE")]
    problem: Option<PathBuf>,
}

pub(crate) fn run(args: &ConfigureArgs) -> Outcome {
    let StoredPlan { read, problem, plan, packets } =
        StoredPlan::read(&args.plan, args.problem.as_deref())?;
    let inventory = read_inventory(&args.inventory)?;
    let inputs = problem.inputs();
    let streams = compile(&plan, problem.flows(), &inputs.legs, &inventory.streams);
    let streams = streams.or_bad(&args.inventory)?;
    let packets = match &packets {
        Some(planned) => {
            compile_packets(&read.file.packets, inputs, &plan, planned, &inventory.packets)
                .or_bad(&args.inventory)?
        }
        None => DesiredPackets::default(),
    };
    let planned = Planned { streams, packets, inventory };
    let files = files(&planned, args)?;
    let mut places = files.keys().map(|name| args.out.join(name));
    if let Some(there) = places.find(|file| args.base.as_ref() != Some(&args.out) && file.exists())
    {
        bail!(
            "{}: is there already; `--base` with its directory keeps what it says",
            there.display()
        );
    }
    std::fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    for (name, text) in files {
        write(&args.out.join(name), &format!("# By `tradewind plan configure`.\n{text}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the text of each file; complete configurations have been validated.
fn files(planned: &Planned, args: &ConfigureArgs) -> anyhow::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    let mut add = |name: String, text: String| match files.insert(name.clone(), text) {
        Some(_) => Err(BadFile(format!("{name}: two places would have this file; rename one"))),
        None => Ok(()),
    };
    let (streams, packets) = (&planned.streams, &planned.packets);
    let sites: BTreeSet<_> = streams.gateways.keys().chain(packets.gateways.keys()).collect();
    for site in sites {
        let name = hosts::file_name("gateway", site.as_str());
        let table = gateway_table(planned, site, &name, args.base.as_deref())?;
        add(format!("{name}.toml"), toml::to_string(&table)?)?;
        add(format!("{name}.service"), hosts::unit("gateway", &name, planned.directory()))?;
        let legs = streams.gateways.get(site).map(|gateway| &gateway.legs);
        if let Some(settings) = Planned::sysctls(legs) {
            add(format!("{name}.sysctl.conf"), settings)?;
        }
        if let Some(draft) = planned.grant_draft(site)? {
            add(format!("{}.toml", hosts::file_name("grant", site.as_str())), draft)?;
        }
    }
    let relays: BTreeSet<_> = streams.relays.keys().chain(packets.relays.keys()).collect();
    for relay in relays {
        let name = hosts::file_name("relay", relay.as_str());
        let table = relay_table(planned, relay, &name, args.base.as_deref())?;
        add(format!("{name}.toml"), toml::to_string(&table)?)?;
        add(format!("{name}.service"), hosts::unit("relay", &name, planned.directory()))?;
        let legs = streams.relays.get(relay).map(|relay| &relay.legs);
        if let Some(settings) = Planned::sysctls(legs) {
            add(format!("{name}.sysctl.conf"), settings)?;
        }
    }
    Ok(files)
}
