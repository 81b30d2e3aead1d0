//! Nodes on loopback, and applications around them.

#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

pub mod hosts;
pub mod wire;
pub mod world;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tradewind_grant::{
    Extensions, Grant, Hop, IdentityKey, OperatorKey, Policy, PublicIdentity, Relays, SignedGrant,
};
use tradewind_node::NodeConfig;
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
