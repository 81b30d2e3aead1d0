//! The inventory file with the facts that a plan leaves open: addresses and identities of relays,
//! and the ends of flows.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tradewind_desired::{Fallbacks, Hop, Inventory, LegProfile, PacketEnds, PacketInventory};
use tradewind_grant::{Destination, OperatorPublicKey, PublicIdentity};
use tradewind_units::{FlowId, RelayId, SiteId};

use crate::output::BadFile;
use crate::output::{self, read_text};

/// A parsed inventory.
pub(super) struct Read {
    pub(super) streams: Inventory,
    pub(super) packets: PacketInventory,
    pub(super) operators: Vec<OperatorPublicKey>,
    pub(super) gateways: BTreeMap<SiteId, PublicIdentity>,
    pub(super) listen: BTreeMap<FlowId, SocketAddr>,
    pub(super) directory: PathBuf,
    pub(super) grants_expire: String,
}

/// An inventory as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InventoryText {
    /// Running relays, by their names in the plan.
    #[serde(default)]
    relay: Vec<HopText>,
    /// The destination of each flow.
    #[serde(default)]
    destinations: BTreeMap<FlowId, Destination>,
    /// The listener of each flow at its gateway; those of the base when absent.
    #[serde(default)]
    listen: BTreeMap<FlowId, Listen>,
    /// The identities of the gateways.
    #[serde(default)]
    gateway: Vec<GatewayText>,
    /// Operators whose grants relays trust.
    #[serde(default)]
    operators: Vec<OperatorPublicKey>,
    /// Directory of configurations, keys and grants on the hosts.
    #[serde(default = "directory")]
    directory: PathBuf,
    /// Lifetime of grants.
    #[serde(default = "grants_expire")]
    grants_expire: String,
    /// The packet addresses of relays, by their names in the plan.
    #[serde(default)]
    packet_relay: Vec<HopText>,
    /// The ends of each packet flow.
    #[serde(default)]
    packet: Vec<PacketEnds>,
    /// The allowed fallbacks of a relayed flow; none when absent.
    #[serde(default)]
    fallback: FallbackText,
    /// The profile of legs where the plan does not require something else.
    #[serde(default)]
    leg: LegProfile,
}

/// A relay as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HopText {
    name: RelayId,
    #[serde(deserialize_with = "tradewind_units::address::one")]
    address: SocketAddr,
    identity: PublicIdentity,
}

#[derive(Deserialize)]
struct Listen(#[serde(deserialize_with = "tradewind_units::address::one")] SocketAddr);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GatewayText {
    site: SiteId,
    identity: PublicIdentity,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FallbackText {
    relays: bool,
    direct: bool,
}

fn directory() -> PathBuf {
    "/etc/tradewind".into()
}

/// Returns the default lifetime, a month. Chosen: as in the example of `tradewind grant issue`.
fn grants_expire() -> String {
    "720 h".to_owned()
}

/// Reads an inventory.
pub(super) fn read_inventory(file: &Path) -> anyhow::Result<Read> {
    let bad = |problem: String| BadFile(format!("{}: {problem}", file.display()));
    let text = read_text(file).map_err(|error| BadFile(output::one_line(&error)))?;
    let parsed: InventoryText = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        bad(format!("line {line}: {}", error.message().replace('\n', "; ")))
    })?;
    let twice =
        |what: &str, id: &dyn std::fmt::Display| bad(format!("{what} `{id}` is there twice"));
    let hops = |what: &str, hops: Vec<HopText>| -> Result<BTreeMap<RelayId, Hop>, BadFile> {
        let mut by_name: BTreeMap<RelayId, Hop> = BTreeMap::new();
        for HopText { name, address, identity } in hops {
            let hop = Hop { name, address, identity };
            if let Some(other) = by_name.insert(hop.name.clone(), hop) {
                return Err(twice(what, &other.name));
            }
        }
        Ok(by_name)
    };
    let streams = Inventory {
        relays: hops("relay", parsed.relay)?,
        destinations: parsed.destinations,
        fallbacks: Fallbacks { relays: parsed.fallback.relays, direct: parsed.fallback.direct },
        leg: parsed.leg,
    };
    let relays = hops("packet relay", parsed.packet_relay)?;
    let mut packets = PacketInventory { relays, ..PacketInventory::default() };
    for ends in parsed.packet {
        if let Some(other) = packets.flows.insert(ends.flow.clone(), ends) {
            return Err(twice("packet flow", &other.flow).into());
        }
    }
    let mut gateways = BTreeMap::new();
    for gateway in parsed.gateway {
        if gateways.insert(gateway.site.clone(), gateway.identity).is_some() {
            return Err(twice("gateway", &gateway.site).into());
        }
    }
    if let Some(flow) = parsed.listen.keys().find(|flow| !streams.destinations.contains_key(flow)) {
        return Err(bad(format!("listen: no flow `{flow}` in `[destinations]`")).into());
    }
    Ok(Read {
        streams,
        packets,
        operators: parsed.operators,
        gateways,
        listen: parsed.listen.into_iter().map(|(flow, Listen(address))| (flow, address)).collect(),
        directory: parsed.directory,
        grants_expire: parsed.grants_expire,
    })
}
