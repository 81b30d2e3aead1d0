//! The environment of the examples: keys, a grant, relays, all on loopback.

#![allow(dead_code, unreachable_pub, reason = "each example takes what it needs")]

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tradewind_grant::{Grant, Hop, IdentityKey, OperatorKey, Policy, Relays, SignedGrant};
use tradewind_node::{Node, NodeConfig};
use tradewind_units::Timestamp;

const LOOPBACK: &str = "127.0.0.0/8:*";

/// Starts a relay or remote endpoint on loopback that knows the relays `neighbours`.
pub fn others(number: u8, neighbours: &[u8]) -> Result<Node, Box<dyn Error>> {
    Ok(Node::start(NodeConfig {
        listen: any_port(),
        operators: vec![operator().public()],
        neighbours: neighbours.iter().map(|number| identity(*number).public()).collect(),
        policy: Policy {
            destinations: vec![LOOPBACK.parse()?],
            next_hops: vec!["127.0.0.1/32:*".parse()?],
            allow_loopback: true,
            ..Policy::default()
        },
        grant: None,
        ..NodeConfig::of_application(identity(number), grant()?)
    })?)
}

/// Returns a grant by which identity 1 may send to loopback for ten minutes.
pub fn grant() -> Result<SignedGrant, Box<dyn Error>> {
    let now = Timestamp::ZERO + SystemTime::now().duration_since(UNIX_EPOCH)?;
    let grant = Grant {
        gateway: identity(1).public(),
        not_before: Timestamp::ZERO,
        expires: now + Duration::from_secs(600),
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays: Relays::Any,
        destinations: vec![LOOPBACK.parse()?],
    };
    Ok(grant.sign(&operator())?)
}

pub fn hop(node: &Node, number: u8) -> Hop {
    Hop { address: node.address(), identity: identity(number).public() }
}

pub fn identity(number: u8) -> IdentityKey {
    IdentityKey::from_entropy([number; 32])
}

pub fn operator() -> OperatorKey {
    OperatorKey::from_entropy([99; 32])
}

/// Returns an address for the other side's program: apart from nodes, which are no destinations.
pub fn elsewhere() -> SocketAddr {
    ([127, 0, 0, 2], 0).into()
}

pub fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}
