//! Relays and gateways on loopback, and grants for them.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tradewind_grant::{Grant, Hop, IdentityKey, OperatorKey, Policy, Relays, SignedGrant};
use tradewind_node::{Assumed, DeliveryPolicy, NodeConfig, Path, TrafficSource};
use tradewind_packet::message::Carriage;
use tradewind_units::Timestamp;

const LOOPBACK: &str = "127.0.0.0/8:*";
/// The numbers of the remote gateway and the relay; others are local gateways'.
pub(crate) const REMOTE: u8 = 3;
pub(crate) const RELAY: u8 = 2;

pub(crate) fn identity(number: u8) -> IdentityKey {
    IdentityKey::from_entropy([number; 32])
}

fn operator() -> OperatorKey {
    OperatorKey::from_entropy([99; 32])
}

pub(crate) fn hop(address: SocketAddr, number: u8) -> Hop {
    Hop { address, identity: identity(number).public() }
}

/// Returns the settings of a node that may deliver and send to loopback and has no path of its own.
pub(crate) fn plain(number: u8, neighbours: &[u8]) -> NodeConfig {
    let policy = Policy {
        destinations: vec![LOOPBACK.parse().expect("a rule")],
        next_hops: vec!["127.0.0.1/32:*".parse().expect("a rule")],
        allow_loopback: true,
        ..Policy::default()
    };
    let relays = neighbours.iter().map(|number| identity(*number).public());
    let (listen, operators) = (SocketAddr::from(([127, 0, 0, 1], 0)), vec![operator().public()]);
    NodeConfig { policy, ..NodeConfig::of_listener(listen, identity(number), operators, relays) }
}

/// Returns a gateway's grant: it may send to any loopback address, through any relay.
///
/// # Errors
/// When it cannot be signed.
pub(crate) fn grant(number: u8) -> anyhow::Result<SignedGrant> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let grant = Grant {
        gateway: identity(number).public(),
        not_before: Timestamp::ZERO + now.saturating_sub(Duration::from_secs(60)),
        expires: Timestamp::ZERO + (now + Duration::from_secs(600)),
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays: Relays::Any,
        destinations: vec![LOOPBACK.parse()?],
    };
    Ok(grant.sign(&operator())?)
}

/// Returns the settings of local gateway `number`: paths over the relay to the listeners at `to`.
///
/// # Errors
/// When a grant cannot be made.
pub(crate) fn near(
    number: u8,
    carriage: Carriage,
    (relay, remote): (SocketAddr, SocketAddr),
    to: &[SocketAddr],
) -> anyhow::Result<NodeConfig> {
    let delivery = DeliveryPolicy {
        remote: hop(remote, REMOTE).into(),
        relays: vec![hop(relay, RELAY)].into(),
        carriage,
        max_loss: None,
        copies: None,
        assumed: Assumed::default(),
    };
    let path = |to: &SocketAddr| {
        let source = TrafficSource::Port { listen: SocketAddr::from(([127, 0, 0, 1], 0)), to: *to };
        Path { source, delivery: delivery.clone() }
    };
    let (paths, grant) = (to.iter().map(path).collect(), Some(grant(number)?));
    Ok(NodeConfig { grant, paths, ..plain(number, &[]) })
}
