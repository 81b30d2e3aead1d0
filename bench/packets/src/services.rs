//! A relay with one worker between two gateways, and what that worker's CPU time is worth.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use tradewind_grant::{Grant, Hop, IdentityKey, OperatorKey, RelayPolicy, Relays};
use tradewind_net::udp::UdpOptions;
use tradewind_node::{Assumed, Course, Entrance, Node, NodeConfig, Path};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_units::Timestamp;

use crate::traffic::{self, Traffic, Way, port};
use crate::{Outcome, cpu};

/// What the relay does with packets.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Carried {
    Forwarding,
    Caching,
    Coding,
}

/// Until a path must be open.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOPBACK: &str = "127.0.0.0/8:*";

/// One round.
///
/// # Errors
/// When a node does not start, or nothing comes through.
pub(crate) fn run(
    carried: Carried,
    traffic: Traffic,
    bytes: usize,
    span: Duration,
) -> anyhow::Result<Outcome> {
    let end = port(UdpOptions::default());
    let far = Node::start(plain(3, &[2]))?;
    let before = cpu::threads(std::process::id())?;
    let relay = Node::start(plain(2, &[]))?;
    let after = cpu::threads(std::process::id())?;
    let thread = *after.difference(&before).next().context("the relay has no thread")?;
    let near = Node::start(near(carried, &far, &relay, end.address())?)?;
    let entrance = near.local_addresses()[0];
    open(entrance, &relay)?;
    let now = |_| (relay.snapshot().received, cpu::of_thread(std::process::id(), thread));
    let way = Way::straight(entrance, &end);
    let (counted, arrived_a_second) = traffic::load(traffic, bytes, way, span, now);
    let [(before, cpu_before), (after, cpu_after)] = counted;
    let cpu = (cpu_after? - cpu_before?).as_secs_f64();
    Ok(Outcome { arrived_a_second, handled_a_cpu_second: (after - before) as f64 / cpu })
}

/// Sends until the relay takes what comes.
fn open(entrance: SocketAddr, relay: &Node) -> anyhow::Result<()> {
    let application = UdpSocket::bind("127.0.0.1:0")?;
    let (begun, before) = (Instant::now(), relay.snapshot().received);
    // Questions whether a path is open count, too: so many are none.
    while relay.snapshot().received < before + 200 {
        if begun.elapsed() > PATIENCE {
            bail!("nothing came to the relay in {PATIENCE:?}: {:?}", relay.snapshot());
        }
        application.send_to(&[0; 64], entrance)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn identity(number: u8) -> IdentityKey {
    IdentityKey::from_entropy([number; 32])
}

fn operator() -> OperatorKey {
    OperatorKey::from_entropy([99; 32])
}

fn hop(node: &Node, number: u8) -> Hop {
    Hop { address: node.address(), identity: identity(number).public() }
}

/// A node that delivers and sends to loopback and has no path of its own.
fn plain(number: u8, neighbours: &[u8]) -> NodeConfig {
    let rules = vec![LOOPBACK.parse().expect("a rule")];
    let policy = RelayPolicy {
        destinations: rules.clone(),
        next_hops: rules,
        allow_loopback: true,
        never: Vec::new(),
    };
    let relays = neighbours.iter().map(|number| identity(*number).public());
    let (listen, operators) = (SocketAddr::from(([127, 0, 0, 1], 0)), vec![operator().public()]);
    NodeConfig { policy, ..NodeConfig::of_listener(listen, identity(number), operators, relays) }
}

/// The near gateway: one path over the relay to what listens at `to`.
fn near(carried: Carried, far: &Node, relay: &Node, to: SocketAddr) -> anyhow::Result<NodeConfig> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let grant = Grant {
        gateway: identity(1).public(),
        not_before: Timestamp::ZERO + now.saturating_sub(Duration::from_secs(60)),
        expires: Timestamp::ZERO + (now + Duration::from_secs(600)),
        sessions: None,
        relays: Relays::Any,
        destinations: vec![LOOPBACK.parse()?],
    };
    let (service, paths) = match carried {
        Carried::Forwarding => (Service::Forwarding, Paths::Overlay),
        Carried::Caching => (Service::Caching, Paths::Both),
        Carried::Coding => (Service::Coding, Paths::Both),
    };
    let course = Course {
        far: hop(far, 3).into(),
        relays: vec![hop(relay, 2)].into(),
        carriage: Carriage { service, paths, budget_ms: 3000 },
        bearable_loss: None,
        copies: None,
        assumed: Assumed::default(),
    };
    let entrance = Entrance::Port { listen: SocketAddr::from(([127, 0, 0, 1], 0)), to };
    let path = Path { entrance, course };
    Ok(NodeConfig { grant: Some(grant.sign(&operator())?), paths: vec![path], ..plain(1, &[]) })
}
