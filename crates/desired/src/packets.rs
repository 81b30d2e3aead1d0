//! The compiler from the packet flows of a plan to the settings of gateways and relays:
//! `[[packet]]` and `[packet]` of docs/reference/packets.md, with the prices that the plan was made
//! with.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tradewind_grant::{Destination, DestinationRule, Hop as Neighbour, PublicIdentity};
use tradewind_model::packet::{PacketService, Tariff};
use tradewind_model::{Egress, ModelError};
use tradewind_plan::packets::{BlockCoding, PacketFlow, PlannedPacketFlow, ServiceCosts};
use tradewind_plan::{Inputs, PacketPlan, Packets, Plan};
use tradewind_units::{
    Duration, FlowId, Money, PricePerGb, Ratio, RegionId, RelayId, SiteId, time,
};

use crate::{DesiredError, GrantTerms, Hop};

/// The highest price of a GB that configurations accept, in dollars.
const MAX_USD_PER_GB: f64 = 100.0;

/// The facts that a plan leaves open about its packet flows.
#[derive(Debug, Clone, Default)]
pub struct PacketInventory {
    /// The packet addresses of relays, by their names in the plan.
    pub relays: BTreeMap<RelayId, Hop>,
    /// The ends of each flow.
    pub flows: BTreeMap<FlowId, PacketEnds>,
}

/// The addresses at which a packet flow enters and leaves the overlay.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketEnds {
    /// The flow.
    pub flow: FlowId,
    /// The address at the local gateway that applications send to.
    #[serde(deserialize_with = "tradewind_units::address::one")]
    pub listen: SocketAddr,
    /// The address that the remote gateway delivers to.
    #[serde(deserialize_with = "tradewind_units::address::one")]
    pub to: SocketAddr,
    /// The remote gateway.
    pub remote: RemoteGateway,
    /// The service selection while the flow runs.
    #[serde(default)]
    pub service: Chooser,
}

impl PacketEnds {
    /// Returns the section of the local gateway without relays: all packets go over the Internet.
    #[must_use]
    pub fn direct(&self) -> GatewayPacket {
        GatewayPacket {
            listen: self.listen,
            to: self.to,
            service: "direct",
            paths: None,
            budget: None,
            max_loss: None,
            remote: self.remote.clone(),
            relays: Vec::new(),
            costs: None,
            coding: None,
        }
    }
}

/// A remote gateway: its address and identity, or its id among the members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected `{ address = .., identity = .. }`, or the id of a member")]
pub enum RemoteGateway {
    /// Given by address and identity.
    At(Neighbour),
    /// Given by its member id.
    Member(String),
}

/// The service selection of a packet flow while it runs.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Chooser {
    /// By the gateway, from its measurements, its receiver's reports, and the plan's costs.
    #[default]
    Auto,
    /// The planned service.
    Planned,
}

/// A `[[packet]]` section of a gateway.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GatewayPacket {
    /// The address that applications send to.
    pub listen: SocketAddr,
    to: SocketAddr,
    service: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<&'static str>,
    #[serde(with = "time::as_text::option", skip_serializing_if = "Option::is_none")]
    budget: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_loss: Option<Ratio>,
    remote: RemoteGateway,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    relays: Vec<Neighbour>,
    #[serde(skip_serializing_if = "Option::is_none")]
    costs: Option<CostsAtLoss>,
    #[serde(skip_serializing_if = "Option::is_none")]
    coding: Option<BlockCoding>,
}

/// The plan's costs of services, and the loss that they are for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct CostsAtLoss {
    coding: Money,
    caching: Money,
    forwarding: Money,
    loss: Ratio,
}

impl CostsAtLoss {
    fn of(planned: &PlannedPacketFlow) -> Option<Self> {
        let ServiceCosts { coding, caching, forwarding } = planned.usd_per_gb?;
        Some(Self { coding, caching, forwarding, loss: planned.internet_loss })
    }
}

/// The `[packet]` section of a relay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RelayPacket {
    /// Its address in the inventory, widened to all addresses.
    pub listen: SocketAddr,
    /// Relays that send through it.
    pub relays: Vec<PublicIdentity>,
    /// Relays and remote gateways that it sends to.
    pub next_hops: Vec<DestinationRule>,
    coding: BlockCoding,
    usd_per_gb: RelayEgress,
}

/// The egress prices of a relay's cloud; the highest of several receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
struct RelayEgress {
    to_relays: PricePerGb,
    to_endpoints: PricePerGb,
}

/// The desired settings of packet flows for all gateways and relays.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DesiredPackets {
    /// The gateway of each source.
    pub gateways: BTreeMap<SiteId, Vec<GatewayPacket>>,
    /// Each relay that a packet flow takes.
    pub relays: BTreeMap<RelayId, RelayPacket>,
    /// The terms that the grant of each source's gateway must cover.
    pub grants: BTreeMap<SiteId, GrantTerms>,
}

/// Compiles the desired settings of `plan`, made for `packets` beside the `streams`.
///
/// # Errors
/// When the inventory lacks a flow or a relay of it, or a price is missing.
pub fn compile_packets(
    packets: &Packets,
    inputs: &Inputs,
    streams: &Plan,
    plan: &PacketPlan,
    inventory: &PacketInventory,
) -> Result<DesiredPackets, DesiredError> {
    let mut desired = DesiredPackets::default();
    let flows: BTreeMap<_, _> = packets.flows.iter().map(|flow| (&flow.id, flow)).collect();
    let of_streams = streams.relays.iter().map(|relay| (&relay.id, &relay.region));
    let added = plan.relays.iter().map(|relay| (&relay.id, &relay.region));
    let regions: BTreeMap<_, _> = added.chain(of_streams).collect();
    for planned in &plan.flows {
        let unknown = || DesiredError::UnknownPacketFlow(planned.id.clone());
        let flow = *flows.get(&planned.id).ok_or_else(unknown)?;
        let ends = inventory.flows.get(&planned.id).ok_or_else(unknown)?;
        let relay = |id: &RelayId| {
            let (flow, relay) = (planned.id.clone(), id.clone());
            let missing = || DesiredError::UnknownPacketRelay { flow, relay };
            inventory.relays.get(id).ok_or_else(missing)
        };
        let hops: Vec<&Hop> = planned.path.iter().map(relay).collect::<Result<_, _>>()?;
        let gateway = desired.gateways.entry(flow.source.clone()).or_default();
        gateway.push(gateway_packet(packets.coding, flow, planned, ends, &hops));
        let grant = desired.grants.entry(flow.source.clone()).or_default();
        hops.iter().for_each(|hop| grant.add_relay(hop.identity));
        grant.add_destination(&Destination::Address(ends.to));
        // A member's identity is unknown here: the operator adds it before signing the draft.
        if let RemoteGateway::At(remote) = &ends.remote {
            grant.add_relay(remote.identity);
        }
        for (at, hop) in hops.iter().enumerate() {
            let relay = desired.relays.entry(hop.name.clone()).or_insert_with(|| RelayPacket {
                listen: any_address(hop.address),
                relays: Vec::new(),
                next_hops: Vec::new(),
                coding: packets.coding,
                usd_per_gb: RelayEgress::default(),
            });
            let before = at.checked_sub(1).and_then(|before| hops.get(before));
            let next = hops.get(at + 1);
            relay.take(before.copied(), next.copied(), &ends.remote);
            let region = |id: &RelayId| regions.get(id).copied();
            let Some(here) = region(&hop.name) else { continue };
            let there = next.and_then(|next| region(&next.name));
            relay.usd_per_gb.take(packets, inputs, (here, there), &flow.destination)?;
        }
    }
    Ok(desired)
}

fn gateway_packet(
    coding: BlockCoding,
    flow: &PacketFlow,
    planned: &PlannedPacketFlow,
    ends: &PacketEnds,
    hops: &[&Hop],
) -> GatewayPacket {
    let neighbour = |hop: &&Hop| Neighbour { address: hop.address, identity: hop.identity };
    // Without relays there is only one service.
    let is_auto = ends.service == Chooser::Auto && !hops.is_empty();
    let service = match planned.service {
        _ if is_auto => "auto",
        PacketService::Direct => "direct",
        PacketService::Coding => "coding",
        PacketService::Caching => "caching",
        PacketService::Forwarding => "forwarding",
    };
    GatewayPacket {
        listen: ends.listen,
        to: ends.to,
        service,
        // As the plan assumes: the relays replace the Internet path.
        paths: (service == "forwarding").then_some("relays"),
        budget: (!hops.is_empty()).then_some(flow.demand.budget),
        max_loss: is_auto.then_some(flow.demand.bearable),
        remote: ends.remote.clone(),
        relays: hops.iter().map(neighbour).collect(),
        costs: CostsAtLoss::of(planned).filter(|_| is_auto),
        coding: is_auto.then_some(coding),
    }
}

impl RelayPacket {
    /// Adds what another plan needs of the relay; its coding and prices stay.
    pub fn extend(&mut self, other: &Self) {
        let new = other.relays.iter().filter(|relay| !self.relays.contains(relay));
        let relays: Vec<_> = new.copied().collect();
        let new = other.next_hops.iter().filter(|rule| !self.next_hops.contains(rule));
        let next_hops: Vec<_> = new.cloned().collect();
        self.relays.extend(relays);
        self.next_hops.extend(next_hops);
    }

    /// Adds a flow that arrives from a relay, or from a gateway with its grant, and leaves for the
    /// next hop.
    fn take(&mut self, before: Option<&Hop>, next: Option<&Hop>, remote: &RemoteGateway) {
        if let Some(before) = before.map(|hop| hop.identity)
            && !self.relays.contains(&before)
        {
            self.relays.push(before);
        }
        let address = match (next, remote) {
            (Some(next), _) => next.address,
            (None, RemoteGateway::At(remote)) => remote.address,
            // Its address is looked up among the members.
            (None, RemoteGateway::Member(_)) => return,
        };
        let rule = Destination::Address(address).as_rule();
        if !self.next_hops.contains(&rule) {
            self.next_hops.push(rule);
        }
    }
}

impl RelayEgress {
    fn take(
        &mut self,
        packets: &Packets,
        inputs: &Inputs,
        (here, there): (&RegionId, Option<&RegionId>),
        destination: &SiteId,
    ) -> Result<(), ModelError> {
        let price = |to: Egress<'_>| packets.egress(inputs, here, to).map(by_volume);
        if let Some(there) = there {
            self.to_relays = self.to_relays.max(price(Egress::Region(there))?);
        } else {
            let inside = inputs.site_regions.get(destination);
            let to = inside.map_or(Egress::Internet, Egress::Region);
            self.to_endpoints = self.to_endpoints.max(price(to)?);
        }
        Ok(())
    }
}

/// Returns a tariff in the unit that relays use: dollars for each GB.
fn by_volume(tariff: Tariff) -> PricePerGb {
    PricePerGb::from_usd_per_gb(tariff.usd_per_gb().min(MAX_USD_PER_GB)).unwrap_or_default()
}

/// Returns all addresses of the same family at the same port; a loopback address is returned
/// unchanged.
#[must_use]
pub fn any_address(known: SocketAddr) -> SocketAddr {
    if known.ip().is_loopback() {
        return known;
    }
    let unspecified: std::net::IpAddr = match known {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(unspecified, known.port())
}
