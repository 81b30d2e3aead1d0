//! Nodes on loopback, and applications around them.

#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

pub mod hosts;
pub mod wire;
pub mod world;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tradewind_config::{GatewayConfig, RelayConfig};
use tradewind_grant::{
    Extensions, Grant, Hop, IdentityKey, OperatorKey, Policy, PublicIdentity, Relays, SignedGrant,
};
use tradewind_node::{NodeConfig, NodeError};
use tradewind_units::Timestamp;

pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub fn identity(number: u8) -> IdentityKey {
    IdentityKey::from_entropy([number; 32])
}

pub fn operator() -> OperatorKey {
    OperatorKey::from_entropy([99; 32])
}

pub fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Returns an address for applications that packets are delivered to: apart from nodes, which are
/// no destinations.
pub fn application() -> SocketAddr {
    ([127, 0, 0, 2], 0).into()
}

pub fn grant(gateway: PublicIdentity, destinations: &str) -> SignedGrant {
    grant_with_sources(gateway, destinations, "")
}

/// Returns the same, for packets that may come from `sources`.
pub fn grant_with_sources(
    gateway: PublicIdentity,
    destinations: &str,
    sources: &str,
) -> SignedGrant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Grant {
        gateway,
        not_before: Timestamp::ZERO + (now - Duration::from_secs(60)),
        expires: Timestamp::ZERO + (now + Duration::from_secs(600)),
        sessions: None,
        extensions: Extensions {
            sources: sources.split_whitespace().map(|range| range.parse().unwrap()).collect(),
            ..Extensions::default()
        },
        relays: Relays::Any,
        destinations: destinations.split(' ').map(|rule| rule.parse().unwrap()).collect(),
    }
    .sign(&operator())
    .unwrap()
}

/// Returns a node on `listen` that knows `neighbours`, delivers and sends to loopback, and has no
/// path of its own.
pub fn plain(number: u8, listen: SocketAddr, neighbours: &[u8]) -> NodeConfig {
    let policy = Policy {
        destinations: vec!["127.0.0.0/8:*".parse().unwrap()],
        next_hops: vec!["127.0.0.1/32:*".parse().unwrap()],
        allow_loopback: true,
        ..Policy::default()
    };
    let relays = neighbours.iter().map(|number| identity(*number).public());
    let operators = vec![operator().public()];
    NodeConfig { policy, ..NodeConfig::of_listener(listen, identity(number), operators, relays) }
}

/// Returns a gateway's node from the sections of its file.
pub fn of_gateway(
    packets: &[toml::Value],
    endpoint: Option<&toml::Value>,
    identity: IdentityKey,
    grant: Option<SignedGrant>,
) -> Result<NodeConfig, NodeError> {
    let mut file = toml::Table::new();
    file.insert("packet".to_owned(), packets.to_vec().into());
    file.extend(endpoint.map(|endpoint| ("packet_endpoint".to_owned(), endpoint.clone())));
    let config = GatewayConfig::parse(&toml::to_string(&file).unwrap())?;
    Ok(NodeConfig::of_gateway(&config.packets()?.unwrap(), identity, grant))
}

/// Returns a relay's node from the section of its file.
pub fn of_relay(packet: &toml::Value, identity: IdentityKey) -> Result<NodeConfig, NodeError> {
    let operators = vec![operator().public()];
    let mut file: toml::Table = "listen = ['127.0.0.1:0']\nidentity_file = 'k'".parse().unwrap();
    file.insert("operators".to_owned(), toml::Value::try_from(&operators).unwrap());
    file.insert("packet".to_owned(), packet.clone());
    let config = RelayConfig::parse(&toml::to_string(&file).unwrap())?;
    Ok(NodeConfig::of_relay(&config.packets()?.unwrap(), identity, operators))
}

/// Starts an application that echoes every datagram; it ends with the test's process.
pub fn echo() -> SocketAddr {
    let socket = UdpSocket::bind(application()).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    address
}

pub fn hop(address: SocketAddr, number: u8) -> Hop {
    Hop { address, identity: identity(number).public() }
}
