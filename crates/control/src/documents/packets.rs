//! The packet planes of relays and gateways in their documents. The inventory says who is where: no
//! file lists members.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use toml::{Table, Value};
use tradewind_config::{ConfigError, compiled};
use tradewind_desired::packets::{RemoteGateway, any_address};
use tradewind_desired::permissions::is_loopback;
use tradewind_desired::{
    DesiredPackets, GatewayPacket, GrantTerms, Hop, PacketEnds, PacketInventory, RelayPacket,
    compile_packets,
};
use tradewind_grant::{
    Destination, DestinationRule, Hop as Neighbour, OperatorPublicKey, PublicIdentity,
};
use tradewind_plan::packets::PlannedPacketFlow;
use tradewind_plan::{Inputs, Legs, Packets};
use tradewind_units::{Money, RelayId, SiteId};

use super::{Compiler, PACKET_PORT};
use crate::packet_flow::PacketFlowRecord;
use crate::packets::{carries_packets, flow_of, receiver};
use crate::prices;
use crate::record::{Host, PlanRecord};
use crate::state::State;

/// The packet plane of a gateway.
pub(super) struct GatewayPackets {
    /// The address that neighbours send to.
    listen: SocketAddr,
    /// The flows that it sends.
    sent: Vec<GatewayPacket>,
    /// The terms that its grant must cover.
    pub(super) grant: GrantTerms,
    /// The destinations of the flows that it receives.
    destinations: BTreeSet<SocketAddr>,
    /// The last relays of their paths.
    relays: BTreeSet<PublicIdentity>,
}

impl GatewayPackets {
    /// Sets `[[packet]]` and `[packet_endpoint]`.
    pub(super) fn set(
        &self,
        table: &mut Table,
        operator: &OperatorPublicKey,
    ) -> Result<(), ConfigError> {
        if !self.sent.is_empty() {
            compiled::set_gateway_packets(table, &self.sent)?;
        }
        let texts =
            |all: &mut dyn Iterator<Item = String>| Value::Array(all.map(Value::String).collect());
        let mut endpoint = Table::new();
        endpoint.insert("listen".to_owned(), self.listen.to_string().into());
        let rule = |to: &SocketAddr| Destination::Address(*to).as_rule();
        let rules: Vec<DestinationRule> = self.destinations.iter().map(rule).collect();
        if !rules.is_empty() {
            let relays = texts(&mut self.relays.iter().map(ToString::to_string));
            let destinations = texts(&mut rules.iter().map(ToString::to_string));
            endpoint.insert("operators".to_owned(), texts(&mut [operator.to_string()].into_iter()));
            endpoint.insert("relays".to_owned(), relays);
            endpoint.insert("destinations".to_owned(), destinations);
        }
        if rules.iter().any(is_loopback) {
            endpoint.insert("allow_loopback".to_owned(), Value::Boolean(true));
        }
        table.insert("packet_endpoint".to_owned(), Value::Table(endpoint));
        Ok(())
    }
}

impl Compiler<'_> {
    /// Returns what the plans need of a relay's packet plane, if they do.
    pub(super) fn relay_packets(&self, host: &Host) -> Option<RelayPacket> {
        let of_plan = |plan: &super::Compiled<'_>| {
            let (relay, _) = plan.record.hosts.iter().find(|(_, id)| **id == host.id)?;
            plan.packets.relays.get(relay).cloned()
        };
        let united = |older: RelayPacket, mut newer: RelayPacket| {
            newer.extend(&older);
            newer
        };
        let mut packets = self.plans.iter().filter_map(of_plan).reduce(united)?;
        let gone = self.gone();
        packets.next_hops.retain(|rule| !gone.iter().any(|at| rule.covers_address(*at)));
        packets.relays.retain(|identity| !self.is_revoked(identity));
        Some(packets)
    }

    /// Returns the packet plane of a gateway, if it sends or receives packet flows: planned flows
    /// with their services, others over the Internet alone.
    pub(super) fn gateway_packets(&self, host: &Host, site: &SiteId) -> Option<GatewayPackets> {
        if !carries_packets(self.state, host) {
            return None;
        }
        let mut packets = GatewayPackets {
            listen: any_address(SocketAddr::new(host.address, PACKET_PORT)),
            sent: Vec::new(),
            grant: GrantTerms::default(),
            destinations: BTreeSet::new(),
            relays: BTreeSet::new(),
        };
        let plan = self.plan_of_gateways();
        let sections = plan.and_then(|plan| plan.packets.gateways.get(site));
        let sections = sections.into_iter().flatten().map(|section| (section.listen, section));
        let sections = sections.collect();
        for flow in self.state.packet_flows.values() {
            let Some(remote) = receiver(self.state, flow) else { continue };
            if flow.from == *site {
                self.send(flow, remote, &sections, &mut packets);
            }
            if remote.id == host.id {
                packets.destinations.insert(flow.to);
                packets.relays.extend(self.plans.iter().filter_map(|plan| {
                    let last = path_of(plan.record, flow)?.last()?;
                    self.host(plan.record, last).map(|host| host.data_identity)
                }));
            }
        }
        (!packets.sent.is_empty() || !packets.destinations.is_empty()).then_some(packets)
    }

    /// Adds a flow that a gateway sends; `sections` are those of the plan for its site.
    fn send(
        &self,
        flow: &PacketFlowRecord,
        remote: &Host,
        sections: &BTreeMap<SocketAddr, &GatewayPacket>,
        packets: &mut GatewayPackets,
    ) {
        packets.grant.add_destination(&Destination::Address(flow.to));
        packets.grant.add_relay(remote.data_identity);
        let planned = self.plan_of_gateways().and_then(|plan| {
            let path = path_of(plan.record, flow)?;
            let hosts: Option<Vec<&Host>> =
                path.iter().map(|relay| self.host(plan.record, relay)).collect();
            Some((hosts?, GatewayPacket::clone(sections.get(&flow.listen)?)))
        });
        let planned = planned.filter(|_| !self.is_stopped(&flow.id));
        let Some((hosts, section)) = planned else {
            packets.sent.push(ends(flow, remote).direct());
            return;
        };
        hosts.iter().for_each(|host| packets.grant.add_relay(host.data_identity));
        packets.sent.push(section);
    }

    /// Returns the host of a plan's relay, if it is trusted.
    fn host(&self, plan: &PlanRecord, relay: &RelayId) -> Option<&Host> {
        self.state.hosts.get(plan.hosts.get(relay)?).filter(|host| host.is_trusted)
    }
}

/// Returns the relays that a plan gives a flow, if it was made for a flow between the same ends.
fn path_of<'a>(plan: &'a PlanRecord, flow: &PacketFlowRecord) -> Option<&'a [RelayId]> {
    let planned = plan.packets.planned(&flow.id).filter(|_| plan.packets.has_ends_of(flow));
    planned.map(|planned| planned.path.as_slice())
}

/// Returns the addresses at which a flow enters and leaves the overlay.
fn ends(flow: &PacketFlowRecord, remote: &Host) -> PacketEnds {
    let address = SocketAddr::new(remote.address, PACKET_PORT);
    PacketEnds {
        flow: flow.id.clone(),
        listen: flow.listen,
        to: flow.to,
        remote: RemoteGateway::At(Neighbour { address, identity: remote.data_identity }),
        service: flow.service,
    }
}

/// Returns the desired packet planes of a plan, without flows that a host on their way cannot
/// carry.
pub(super) fn desired(state: &State, record: &PlanRecord) -> Result<DesiredPackets, String> {
    let mut inventory = PacketInventory::default();
    for (relay, id) in &record.hosts {
        let Some(host) = state.hosts.get(id).filter(|host| carries_packets(state, host)) else {
            continue;
        };
        let address = SocketAddr::new(host.address, PACKET_PORT);
        let hop = Hop { name: relay.clone(), address, identity: host.data_identity };
        inventory.relays.insert(relay.clone(), hop);
    }
    for flow in &record.packets.flows {
        if let Some(remote) = receiver(state, flow) {
            inventory.flows.insert(flow.id.clone(), ends(flow, remote));
        }
    }
    let mut plan = record.packets.plan.clone();
    let is_carried = |flow: &PlannedPacketFlow| {
        let mut path = flow.path.iter();
        inventory.flows.contains_key(&flow.id)
            && path.all(|relay| inventory.relays.contains_key(relay))
    };
    plan.flows.retain(is_carried);
    let losses = |flow: &PacketFlowRecord| {
        let planned = record.packets.planned(&flow.id);
        planned.map(|planned| planned.internet_loss).unwrap_or_default()
    };
    let flows = record.packets.flows.iter().map(|flow| flow_of(flow, losses(flow))).collect();
    let packets = Packets { flows, ..Packets::default() };
    let inputs = Inputs {
        prices: prices::of_traffic(&state.settings.terms),
        ..Inputs::cloudpilot(Vec::new(), Vec::new(), Legs::new(), Money::ZERO)
    };
    compile_packets(&packets, &inputs, &record.plan, &plan, &inventory)
        .map_err(|error| error.to_string())
}
