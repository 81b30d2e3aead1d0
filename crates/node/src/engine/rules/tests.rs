//! Relays and remote endpoints that become known while a node runs.

use std::net::SocketAddr;
use std::sync::Arc;

use tradewind_grant::{Grant, GrantError, Hop, Target};

use super::super::test_harness::{Hosts, anybody, forwarded, gateway, identity};
use crate::config::NodeConfig;
use crate::membership::{Member, Members, Near};

/// Checks at a gateway whether a grant for all of loopback allows packets there.
fn asked(hosts: &mut Hosts, to: SocketAddr) -> Result<(), GrantError> {
    let engine = hosts.at(1);
    let grant: Grant = engine.context.config.grant.as_ref().unwrap().unverified().clone();
    engine.context.access.allows_inside(Some(&grant), Target::Address(to))
}

fn is_relay(result: &Result<(), GrantError>) -> bool {
    matches!(result, Err(GrantError::Relay(_)))
}

fn hop(port: u16, number: u8) -> Hop {
    Hop { address: ([127, 0, 0, 2], port).into(), identity: identity(number).public() }
}

#[test]
fn relays_of_later_flows_are_no_destinations() {
    let mut hosts = Hosts::new([(1, gateway(1)), (2, anybody(2))]);
    let (remote, relay, other) = (hop(7001, 9), hop(7002, 8), hop(7003, 7));
    for known in [remote, relay, other] {
        assert_eq!(asked(&mut hosts, known.address), Ok(()));
    }
    hosts.register(1, forwarded(remote, vec![relay]));
    let rules = Arc::clone(&hosts.at(1).context.config);
    for _ in 0..2 {
        assert!(is_relay(&asked(&mut hosts, remote.address)));
        assert!(is_relay(&asked(&mut hosts, relay.address)));
        assert_eq!(asked(&mut hosts, other.address), Ok(()));
        // Nor after rules were reloaded.
        let now = hosts.now;
        hosts.at(1).set_rules(now, Arc::clone(&rules));
    }
}

#[test]
fn members_are_no_destinations() {
    let mut hosts = Hosts::new([(1, gateway(1))]);
    let (relay, near, registry, remote) = (hop(7001, 9), hop(7002, 8), hop(7003, 7), hop(7004, 6));
    let (address, identity) = (near.address, near.identity);
    let endpoint = Member {
        id: "berlin".to_owned(),
        address: remote.address,
        identity: remote.identity,
        relays: vec![Near { address, identity, round_trip: None }],
    };
    let further = hop(7005, 6).address;
    let members = Members {
        relays: vec![relay],
        registry: Some(registry),
        endpoints: vec![endpoint],
        further: [(remote.identity, vec![further])].into(),
    };
    let now = hosts.now;
    hosts.at(1).set_members(now, members);
    let known = [relay, near, registry, remote].map(|known| known.address);
    for known in known.into_iter().chain([further]) {
        assert!(is_relay(&asked(&mut hosts, known)), "{known}");
    }
}

#[test]
fn relays_of_configured_policies_are_known() {
    let delivery = forwarded(hop(7001, 9), vec![hop(7002, 8)]);
    let config = NodeConfig { courses: vec![delivery], ..gateway(1) };
    let mut hosts = Hosts::new([(1, config)]);
    for port in [7001, 7002] {
        assert!(is_relay(&asked(&mut hosts, ([127, 0, 0, 2], port).into())));
    }
}
