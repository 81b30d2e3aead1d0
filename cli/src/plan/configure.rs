//! `tradewind plan configure`: a plan in, the configurations of its gateways and relays out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use toml::{Table, Value};
use tradewind_desired::{
    Desired, DesiredGateway, DesiredPackets, Fallbacks, Hop, Inventory, LegProfile, PacketEnds,
    PacketInventory, ProcessLegs, Route, compile, compile_packets,
};
use tradewind_grant::Destination;
use tradewind_relay::{GatewayConfig, RelayConfig};
use tradewind_units::FlowId;

mod packets;

use super::kept::Kept;
use super::problem::BadFile;
use super::write;
use crate::output::{self, Outcome, read_text};

#[derive(clap::Args)]
pub(crate) struct ConfigureArgs {
    /// The plan, as `tradewind plan --out` wrote it
    plan: PathBuf,
    /// Where its relays listen, what its flows' destinations are, and where its packet flows come in and go
    #[arg(long, value_name = "FILE")]
    inventory: PathBuf,
    /// Where to write `gateway-SITE.toml` of each source and `relay-NAME.toml` of each relay
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Files of the same names with all that no plan says, such as identities; of those, `routes` and `leg` are replaced, and `[packet]` and `[[packet]]` are added to
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// The problem, instead of the one that the plan's file holds
    #[arg(long, value_name = "FILE")]
    problem: Option<PathBuf>,
}

/// An inventory as it is written down.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InventoryText {
    /// Relays that run, by the plan's names for them.
    #[serde(default)]
    relay: Vec<Hop>,
    /// Where each flow goes.
    #[serde(default)]
    destinations: BTreeMap<FlowId, Destination>,
    /// Where relays take packets, by the plan's names for them.
    #[serde(default)]
    packet_relay: Vec<Hop>,
    /// Where each packet flow comes in and goes.
    #[serde(default)]
    packet: Vec<PacketEnds>,
    /// What a relayed flow may fall back to; nothing when absent.
    #[serde(default)]
    fallback: FallbackText,
    /// How legs are where the plan does not count on something else.
    #[serde(default)]
    leg: LegProfile,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FallbackText {
    relays: bool,
    direct: bool,
}

pub(crate) fn run(args: &ConfigureArgs) -> Outcome {
    let Kept { read, problem, plan, packets } = Kept::read(&args.plan, args.problem.as_deref())?;
    let (inventory, of_packets) = read_inventory(&args.inventory)?;
    let place = || args.inventory.display().to_string();
    let inputs = problem.inputs();
    let desired = compile(&plan, problem.flows(), &inputs.legs, &inventory).with_context(place)?;
    let of_packets = match &packets {
        Some(planned) => compile_packets(&read.file.packets, inputs, &plan, planned, &of_packets)
            .with_context(place)?,
        None => DesiredPackets::default(),
    };
    let files = files(&desired, &of_packets, args.base.as_deref())?;
    let mut places = files.iter().map(|(name, _)| args.out.join(name));
    if let Some(there) = places.find(|file| args.base.is_none() && file.exists()) {
        bail!(
            "{}: is there already; `--base` with its directory keeps what it says",
            there.display()
        );
    }
    std::fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    for (name, table) in files {
        let text = format!("# By `tradewind plan configure`.\n{}", toml::to_string(&table)?);
        write(&args.out.join(name), &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read_inventory(file: &Path) -> anyhow::Result<(Inventory, PacketInventory)> {
    let bad = |problem: String| BadFile(format!("{}: {problem}", file.display()));
    let text = read_text(file).map_err(|error| BadFile(output::one_line(&error)))?;
    let told: InventoryText = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        bad(format!("line {line}: {}", error.message().replace('\n', "; ")))
    })?;
    let mut inventory = Inventory {
        destinations: told.destinations,
        fallbacks: Fallbacks { relays: told.fallback.relays, direct: told.fallback.direct },
        leg: told.leg,
        ..Inventory::default()
    };
    for relay in told.relay {
        if let Some(twice) = inventory.relays.insert(relay.name.clone(), relay) {
            return Err(bad(format!("relay `{}` is there twice", twice.name)).into());
        }
    }
    let mut of_packets = PacketInventory::default();
    for relay in told.packet_relay {
        if let Some(twice) = of_packets.relays.insert(relay.name.clone(), relay) {
            return Err(bad(format!("packet relay `{}` is there twice", twice.name)).into());
        }
    }
    for ends in told.packet {
        if let Some(twice) = of_packets.flows.insert(ends.flow.clone(), ends) {
            return Err(bad(format!("packet flow `{}` is there twice", twice.flow)).into());
        }
    }
    Ok((inventory, of_packets))
}

/// All that is to be written, by file; what stands on a base is a whole configuration, and was tried as one.
fn files(
    desired: &Desired,
    of_packets: &DesiredPackets,
    base: Option<&Path>,
) -> anyhow::Result<Vec<(String, Table)>> {
    let mut files = Vec::new();
    let sites: BTreeSet<_> = desired.gateways.keys().chain(of_packets.gateways.keys()).collect();
    for site in sites {
        let name = format!("gateway-{site}.toml");
        let (mut table, stands) = read_base(base, &name)?;
        if let Some(gateway) = desired.gateways.get(site) {
            set_routes(&mut table, gateway)?;
        }
        if let Some(flows) = of_packets.gateways.get(site) {
            packets::set_gateway(&mut table, flows).with_context(|| name.clone())?;
        }
        if stands {
            let config = GatewayConfig::parse(&toml::to_string(&table)?);
            let config = config.with_context(|| name.clone())?;
            packets::check_gateway(&config).with_context(|| name.clone())?;
        }
        files.push((name, table));
    }
    let relays: BTreeSet<_> = desired.relays.keys().chain(of_packets.relays.keys()).collect();
    for relay in relays {
        let name = format!("relay-{relay}.toml");
        let (mut table, stands) = read_base(base, &name)?;
        if let Some(relay_legs) = desired.relays.get(relay) {
            set_legs(&mut table, legs(relay_legs)?);
        }
        if let Some(packet) = of_packets.relays.get(relay) {
            packets::set_relay(&mut table, packet).with_context(|| name.clone())?;
        }
        if stands {
            let config = RelayConfig::parse(&toml::to_string(&table)?);
            let config = config.with_context(|| name.clone())?;
            packets::check_relay(&config).with_context(|| name.clone())?;
        }
        files.push((name, table));
    }
    Ok(files)
}

/// A gateway's routes and legs.
fn set_routes(table: &mut Table, gateway: &DesiredGateway) -> anyhow::Result<()> {
    table.insert("routes".to_owned(), Value::try_from(&gateway.routes)?);
    if gateway.routes.routes().any(|route| *route == Route::Direct) {
        table.insert("direct".to_owned(), Value::Boolean(true));
    }
    let mut legs = legs(&gateway.legs)?;
    // Applications dial it as they like.
    legs.remove("accept");
    set_legs(table, legs);
    Ok(())
}

/// The file to start from, and whether there is one.
fn read_base(base: Option<&Path>, name: &str) -> anyhow::Result<(Table, bool)> {
    let Some(file) = base.map(|base| base.join(name)).filter(|file| file.exists()) else {
        return Ok((Table::new(), false));
    };
    let table = read_text(&file)?.parse::<Table>();
    let table = table.map_err(|error| {
        BadFile(format!("{}: {}", file.display(), error.message().replace('\n', "; ")))
    })?;
    Ok((table, true))
}

/// Legs as configurations hold them.
fn legs(legs: &ProcessLegs) -> anyhow::Result<Table> {
    let mut table = Table::new();
    table.insert("accept".to_owned(), Value::try_from(&legs.accept)?);
    table.insert("dial".to_owned(), Value::try_from(&legs.dial)?);
    table.insert("to".to_owned(), Value::try_from(&legs.to)?);
    Ok(table)
}

/// Replaces what `legs` says; what else the base says of legs stays.
fn set_legs(table: &mut Table, legs: Table) {
    match table.get_mut("leg") {
        Some(Value::Table(leg)) => leg.extend(legs),
        _ => drop(table.insert("leg".to_owned(), Value::Table(legs))),
    }
}
