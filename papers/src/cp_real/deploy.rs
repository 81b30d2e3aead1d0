//! Runs a plan on the lab: a relay process for each planned relay, a gateway beside each source,
//! and the keys and grants that they need.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tradewind_demo::host_of;
use tradewind_desired::{DesiredGateway, Encryption, Inventory, LegProfile, compile};
use tradewind_grant::{Destination, DestinationRule, OperatorKey};
use tradewind_lab::Lab;
use tradewind_plan::{Flow, Legs, Plan};
use tradewind_units::{FlowId, SiteId};

use crate::harness::process::Service;
use crate::harness::service::{self, LegText, NewGateway, NewRelay};
use crate::harness::{LabContext, ProcessError, unusable};

/// The port of a host's first relay; further relays of the same region take the following ports.
const FIRST_RELAY_PORT: u16 = 7001;
/// The ports of a host's relays in one slot. Chosen: a budget pays fewer in one region.
const PORTS_OF_SLOT: u16 = 10;
/// The port of the first flow's receiver.
const FIRST_RECEIVER_PORT: u16 = 8001;

/// A running plan; its processes end when it is dropped.
pub(super) struct Deployment {
    _services: Vec<Service>,
    /// The address at which the source's gateway accepts each relayed flow.
    listeners: BTreeMap<FlowId, SocketAddr>,
}

/// The address of each flow's receiver.
pub(super) type Receivers = BTreeMap<FlowId, SocketAddr>;

impl Deployment {
    /// Returns the address that a sender dials to use the flow's path; `None` for a direct flow.
    pub(super) fn listener(&self, flow: &FlowId) -> Option<SocketAddr> {
        self.listeners.get(flow).copied()
    }
}

/// Starts all relays and gateways of `plan`, which was made from `legs`, at ports of their own for
/// each `slot`: one that has just ended may hold a port for a moment. Legs are not encrypted: the
/// paper's relays carry plain bytes, and all hosts of the lab share the cores of one machine.
pub(super) fn deploy(
    context: &LabContext,
    plan: &Plan,
    (flows, receivers): (&[Flow], &Receivers),
    legs: &Legs,
    slot: u16,
) -> Result<Deployment, ProcessError> {
    let operator = service::operator()?;
    let mut services = Vec::new();
    let leg = LegProfile { encryption: Some(Encryption::None), ..LegProfile::default() };
    let mut inventory = Inventory { leg, ..Inventory::default() };
    for (flow, address) in receivers {
        inventory.destinations.insert(flow.clone(), Destination::address(*address)?);
    }
    let destinations: Vec<DestinationRule> =
        inventory.destinations.values().map(Destination::as_rule).collect();
    let relays = new_relays(context, plan, slot)?;
    for relay in &relays {
        inventory.relays.insert(relay.hop.name.clone(), relay.hop.clone());
    }
    let desired =
        compile(plan, flows, legs, &inventory).map_err(|error| unusable("routes", &error))?;
    for relay in &relays {
        context.stop.check()?;
        let leg = LegText::of_relay(&desired.relays[&relay.hop.name].legs);
        services.push(relay.start(context, &operator, &destinations, &leg)?);
    }
    let mut listeners = BTreeMap::new();
    for (site, gateway) in &desired.gateways {
        context.stop.check()?;
        let mine: Vec<&Flow> = plan
            .flows
            .iter()
            .zip(flows)
            .filter(|(planned, flow)| flow.source == *site && !planned.path.is_empty())
            .map(|(_, flow)| flow)
            .collect();
        if mine.is_empty() {
            continue;
        }
        let (service, listening) =
            start_gateway(context, &operator, (site, slot), &mine, gateway, &inventory)?;
        services.push(service);
        listeners.extend(mine.iter().map(|flow| flow.id.clone()).zip(listening));
    }
    Ok(Deployment { _services: services, listeners })
}

fn new_relays(context: &LabContext, plan: &Plan, slot: u16) -> Result<Vec<NewRelay>, ProcessError> {
    let mut used: BTreeMap<SiteId, u16> = BTreeMap::new();
    plan.relays
        .iter()
        .map(|relay| {
            let region = SiteId::from(relay.region.clone());
            let count = used.entry(region.clone()).or_default();
            let port = FIRST_RELAY_PORT + slot * PORTS_OF_SLOT + *count;
            *count += 1;
            NewRelay::new(context, relay.id.clone(), host_of(&region), port)
        })
        .collect()
}

/// Starts a site's gateway; returns the address at which it accepts each of its flows, in their
/// order.
fn start_gateway(
    context: &LabContext,
    operator: &OperatorKey,
    (site, slot): (&SiteId, u16),
    flows: &[&Flow],
    desired: &DesiredGateway,
    inventory: &Inventory,
) -> Result<(Service, Vec<SocketAddr>), ProcessError> {
    let gateway = NewGateway {
        name: &format!("gateway-{site}"),
        host: &host_of(site),
        forwards: flows.iter().map(|flow| (&flow.id, &inventory.destinations[&flow.id])).collect(),
        relays: inventory.relays.values().map(|hop| hop.identity).collect(),
        routes: &desired.routes,
        intercepts: false,
        leg: &LegText::of_gateway(&desired.legs),
        metrics: service::metrics_at(service::FIRST_GATEWAY + slot),
    };
    gateway.start(context, operator)
}

/// Returns the address at which each flow's destination receives it.
pub(super) fn receivers(lab: &Lab, flows: &[Flow]) -> Result<Receivers, ProcessError> {
    (FIRST_RECEIVER_PORT..)
        .zip(flows)
        .map(|(port, flow)| {
            let ip = lab.address_v4(&host_of(&flow.destination))?;
            Ok((flow.id.clone(), SocketAddr::new(IpAddr::V4(ip), port)))
        })
        .collect()
}
