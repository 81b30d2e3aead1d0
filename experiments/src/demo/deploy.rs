//! Runs a plan on the lab: a relay process for each planned relay, a gateway beside each source, and the keys and the
//! grants that let them speak.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use serde::Serialize;
use tradewind_desired::{Hop, Inventory, RouteTable, compile};
use tradewind_grant::{
    Destination, DestinationRule, Grant, IdentityKey, OperatorKey, Relays, SignedGrant,
};
use tradewind_lab::Lab;
use tradewind_plan::{Flow, Plan};
use tradewind_units::{Duration, FlowId, SiteId, Timestamp};

use super::process::{Scratch, Service};
use super::{DemoError, Stop, host_of};

/// Where the first relay of a host listens; others of the same region follow.
const FIRST_RELAY_PORT: u16 = 7001;
/// Where the first flow's receiver listens.
const FIRST_RECEIVER_PORT: u16 = 8001;
/// Where relays may dial other relays: the lab's own range, the relays' ports.
const NEXT_HOPS: &str = "10.200.0.0/16:7001-7999";
/// How long grants hold: longer than any run.
const GRANT_LASTS: Duration = Duration::from_secs(3600);
/// Relays of clocks that run behind take a grant at once.
const GRANT_BACKDATED: Duration = Duration::from_secs(60);

/// A plan that runs; ended when dropped.
pub(super) struct Deployment {
    _services: Vec<Service>,
    /// Where the source's gateway takes each relayed flow.
    entrances: BTreeMap<FlowId, SocketAddr>,
    /// Where each flow's receiver listens.
    receivers: BTreeMap<FlowId, SocketAddr>,
}

impl Deployment {
    /// Where a sender dials to go over the flow's path; `None` for a direct flow.
    pub(super) fn entrance(&self, flow: &FlowId) -> Option<SocketAddr> {
        self.entrances.get(flow).copied()
    }

    /// Where the flow's receiver listens.
    pub(super) fn receiver(&self, flow: &FlowId) -> SocketAddr {
        self.receivers[flow]
    }
}

/// What deploying needs of the run.
pub(super) struct Ground<'a> {
    /// Where.
    pub(super) lab: &'a Lab,
    /// The binary `tradewind`.
    pub(super) program: &'a Path,
    /// For keys and configurations.
    pub(super) scratch: &'a Scratch,
    /// Whether to give up.
    pub(super) stop: &'a Stop,
}

/// Starts all relays and gateways of `plan`; `done` is told how many processes run.
pub(super) fn deploy(
    ground: &Ground<'_>,
    plan: &Plan,
    flows: &[Flow],
    mut done: impl FnMut(u64),
) -> Result<Deployment, DemoError> {
    let operator = OperatorKey::from_entropy(tradewind_net::entropy::bytes()?);
    let receivers = receivers(ground.lab, flows)?;
    let mut services = Vec::new();
    let mut inventory = Inventory::default();
    for (flow, address) in &receivers {
        inventory.destinations.insert(flow.clone(), Destination::address(*address)?);
    }
    for hop in relay_hops(ground.lab, plan)? {
        ground.stop.check()?;
        services.push(start_relay(ground, &operator, &hop, &receivers)?);
        inventory.relays.insert(hop.hop.name.clone(), hop.hop);
        done(services.len() as u64);
    }
    let mut entrances = BTreeMap::new();
    for (site, table) in compile(plan, flows, &inventory)? {
        ground.stop.check()?;
        let mine: Vec<&Flow> = plan
            .flows
            .iter()
            .zip(flows)
            .filter(|(planned, flow)| flow.source == site && !planned.path.is_empty())
            .map(|(_, flow)| flow)
            .collect();
        if mine.is_empty() {
            continue;
        }
        let gateway = Gateway { site: &site, flows: &mine, routes: &table };
        let (service, listening) = start_gateway(ground, &operator, &gateway, &inventory)?;
        services.push(service);
        entrances.extend(mine.iter().map(|flow| flow.id.clone()).zip(listening));
        done(services.len() as u64);
    }
    Ok(Deployment { _services: services, entrances, receivers })
}

/// A relay's configuration, as docs/relay.md describes it.
#[derive(Serialize)]
struct RelayText<'a> {
    listen: [SocketAddr; 1],
    identity_file: &'a Path,
    operators: [String; 1],
    policy: PolicyText,
}

#[derive(Serialize)]
struct PolicyText {
    destinations: Vec<DestinationRule>,
    next_hops: [&'static str; 1],
}

/// A gateway's configuration.
#[derive(Serialize)]
struct GatewayText<'a> {
    identity_file: &'a Path,
    grant: SignedGrant,
    direct: bool,
    forward: Vec<ForwardText>,
    routes: &'a RouteTable,
}

#[derive(Serialize)]
struct ForwardText {
    listen: &'static str,
    to: Destination,
    flow: FlowId,
}

/// A relay to start, with its secret.
struct NewRelay {
    hop: Hop,
    region: SiteId,
    key: IdentityKey,
}

fn relay_hops(lab: &Lab, plan: &Plan) -> Result<Vec<NewRelay>, DemoError> {
    let mut used: BTreeMap<SiteId, u16> = BTreeMap::new();
    plan.relays
        .iter()
        .map(|relay| {
            let region = SiteId::from(relay.region.clone());
            let count = used.entry(region.clone()).or_default();
            let port = FIRST_RELAY_PORT + *count;
            *count += 1;
            let key = IdentityKey::from_entropy(tradewind_net::entropy::bytes()?);
            let ip = lab.address_v4(&host_of(&region))?;
            let address = SocketAddr::new(IpAddr::V4(ip), port);
            let hop = Hop { name: relay.id.clone(), address, identity: key.public() };
            Ok(NewRelay { hop, region, key })
        })
        .collect()
}

fn start_relay(
    ground: &Ground<'_>,
    operator: &OperatorKey,
    relay: &NewRelay,
    receivers: &BTreeMap<FlowId, SocketAddr>,
) -> Result<Service, DemoError> {
    let name = &relay.hop.name;
    let key = ground.scratch.write(&format!("{name}.key"), &relay.key.to_secret_text())?;
    let rule = |address: &SocketAddr| Ok(Destination::address(*address)?.as_rule());
    let config = toml::to_string(&RelayText {
        listen: [relay.hop.address],
        identity_file: &key,
        operators: [operator.public().to_string()],
        policy: PolicyText {
            destinations: receivers.values().map(rule).collect::<Result<_, DemoError>>()?,
            next_hops: [NEXT_HOPS],
        },
    })?;
    let config = ground.scratch.write(&format!("{name}.toml"), &config)?;
    let mut command = ground.lab.command(&host_of(&relay.region), ground.program)?;
    command.arg("relay").arg("--config").arg(config);
    Ok(Service::start(command, name.as_str(), ground.scratch)?.0)
}

/// A gateway to start.
struct Gateway<'a> {
    site: &'a SiteId,
    flows: &'a [&'a Flow],
    routes: &'a RouteTable,
}

/// Starts a gateway; returns where it takes each of its flows, in their order.
fn start_gateway(
    ground: &Ground<'_>,
    operator: &OperatorKey,
    gateway: &Gateway<'_>,
    inventory: &Inventory,
) -> Result<(Service, Vec<SocketAddr>), DemoError> {
    let name = format!("gateway-{}", gateway.site);
    let key = IdentityKey::from_entropy(tradewind_net::entropy::bytes()?);
    let grant = grant(&key, operator, gateway.flows, inventory)?;
    let key_file = ground.scratch.write(&format!("{name}.key"), &key.to_secret_text())?;
    let forward = |flow: &&Flow| ForwardText {
        listen: "127.0.0.1:0",
        to: inventory.destinations[&flow.id].clone(),
        flow: flow.id.clone(),
    };
    let config = toml::to_string(&GatewayText {
        identity_file: &key_file,
        grant,
        direct: true,
        forward: gateway.flows.iter().map(forward).collect(),
        routes: gateway.routes,
    })?;
    let config = ground.scratch.write(&format!("{name}.toml"), &config)?;
    let mut command = ground.lab.command(&host_of(gateway.site), ground.program)?;
    command.arg("gateway").arg("--config").arg(config);
    let (service, ready) = Service::start(command, &name, ground.scratch)?;
    if ready.listen.len() != gateway.flows.len() {
        let why = format!("{} ports for {} flows", ready.listen.len(), gateway.flows.len());
        return Err(DemoError::Program { name, why });
    }
    Ok((service, ready.listen))
}

/// The gateway may reach its flows' receivers over all relays of the plan.
fn grant(
    key: &IdentityKey,
    operator: &OperatorKey,
    flows: &[&Flow],
    inventory: &Inventory,
) -> Result<SignedGrant, DemoError> {
    let relays: Vec<_> = inventory.relays.values().map(|hop| hop.identity).collect();
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    let grant = Grant {
        gateway: key.public(),
        not_before: Timestamp::ZERO + since_epoch.saturating_sub(GRANT_BACKDATED),
        expires: Timestamp::ZERO + since_epoch + GRANT_LASTS,
        sessions: None,
        relays: Relays::listed(&relays),
        destinations: flows.iter().map(|flow| inventory.destinations[&flow.id].as_rule()).collect(),
    };
    Ok(grant.sign(operator)?)
}

fn receivers(lab: &Lab, flows: &[Flow]) -> Result<BTreeMap<FlowId, SocketAddr>, DemoError> {
    (FIRST_RECEIVER_PORT..)
        .zip(flows)
        .map(|(port, flow)| {
            let ip = lab.address_v4(&host_of(&flow.destination))?;
            Ok((flow.id.clone(), SocketAddr::new(IpAddr::V4(ip), port)))
        })
        .collect()
}
