//! What a plan leaves open, as a file says it: where relays listen, who they are, where flows come
//! in and go.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tradewind_desired::{Fallbacks, Hop, Inventory, LegProfile, PacketEnds, PacketInventory};
use tradewind_grant::{Destination, OperatorPublicKey, PublicIdentity};
use tradewind_units::{FlowId, RelayId, SiteId};

use crate::output::BadFile;
use crate::output::{self, read_text};

/// An inventory that was read.
pub(super) struct Read {
    pub(super) streams: Inventory,
    pub(super) packets: PacketInventory,
    pub(super) operators: Vec<OperatorPublicKey>,
    pub(super) gateways: BTreeMap<SiteId, PublicIdentity>,
    pub(super) listen: BTreeMap<FlowId, SocketAddr>,
    pub(super) directory: PathBuf,
    pub(super) grants_expire: String,
}

/// An inventory as it is written down.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InventoryText {
    /// Relays that run, by the plan's names for them.
    #[serde(default)]
    relay: Vec<HopText>,
    /// Where each flow goes.
    #[serde(default)]
    destinations: BTreeMap<FlowId, Destination>,
    /// Where applications reach the gateway of each flow; those of the base when absent.
    #[serde(default)]
    listen: BTreeMap<FlowId, Listen>,
    /// Who the gateways are.
    #[serde(default)]
    gateway: Vec<GatewayText>,
    /// Whose grants relays trust.
    #[serde(default)]
    operators: Vec<OperatorPublicKey>,
    /// Where configurations, keys and grants lie on the hosts.
    #[serde(default = "directory")]
    directory: PathBuf,
    /// How long grants hold.
    #[serde(default = "grants_expire")]
    grants_expire: String,
    /// Where relays take packets, by the plan's names for them.
    #[serde(default)]
    packet_relay: Vec<HopText>,
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

/// A relay as it is written down.
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

/// A month. Chosen: as in the example of `tradewind grant issue`.
fn grants_expire() -> String {
    "720 h".to_owned()
}

/// Reads an inventory.
pub(super) fn read_inventory(file: &Path) -> anyhow::Result<Read> {
    let bad = |problem: String| BadFile(format!("{}: {problem}", file.display()));
    let text = read_text(file).map_err(|error| BadFile(output::one_line(&error)))?;
    let told: InventoryText = toml::from_str(&text).map_err(|error| {
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
        relays: hops("relay", told.relay)?,
        destinations: told.destinations,
        fallbacks: Fallbacks { relays: told.fallback.relays, direct: told.fallback.direct },
        leg: told.leg,
    };
    let relays = hops("packet relay", told.packet_relay)?;
    let mut packets = PacketInventory { relays, ..PacketInventory::default() };
    for ends in told.packet {
        if let Some(other) = packets.flows.insert(ends.flow.clone(), ends) {
            return Err(twice("packet flow", &other.flow).into());
        }
    }
    let mut gateways = BTreeMap::new();
    for gateway in told.gateway {
        if gateways.insert(gateway.site.clone(), gateway.identity).is_some() {
            return Err(twice("gateway", &gateway.site).into());
        }
    }
    if let Some(flow) = told.listen.keys().find(|flow| !streams.destinations.contains_key(flow)) {
        return Err(bad(format!("listen: no flow `{flow}` in `[destinations]`")).into());
    }
    Ok(Read {
        streams,
        packets,
        operators: told.operators,
        gateways,
        listen: told.listen.into_iter().map(|(flow, Listen(address))| (flow, address)).collect(),
        directory: told.directory,
        grants_expire: told.grants_expire,
    })
}
