//! Refusals, with the node that refuses and the reason, as the asking side sees them.

use tradewind_config::packet::DeliveryPolicy;
use tradewind_packet::message::{Carriage, Refusal};
use tradewind_units::Duration;

use super::super::conversations::DatagramMeta;
use super::super::test_harness::{Hosts, anybody, forwarded, gateway, identity};
use crate::config::NodeConfig;

/// Returns a node that allows nothing: neither next hops nor destinations.
fn closed(number: u8) -> NodeConfig {
    let mut config = anybody(number);
    (config.policy.next_hops, config.policy.destinations) = (Vec::new(), Vec::new());
    config
}

/// Returns the refusals that a gateway shows: subject, node and reason.
fn shown(hosts: &mut Hosts) -> Vec<(String, String, String)> {
    let now = hosts.now;
    let all = hosts.at(1).report_refusals(now).into_iter();
    all.map(|refusal| (refusal.what, refusal.by, refusal.reason)).collect()
}

fn refusal(what: &str, by: u8, reason: Refusal) -> (String, String, String) {
    (what.to_owned(), identity(by).public().to_string(), reason.to_string())
}

/// Returns a gateway, two relays in a row, and a remote gateway.
fn hosts(relays: [NodeConfig; 2], remote: NodeConfig) -> Hosts {
    let [first, second] = relays;
    let mut hosts = Hosts::new([(1, gateway(1)), (2, first), (3, second), (4, remote)]);
    let (relays, remote) = ([2, 3].map(|number| hosts.hop(number)), hosts.hop(4));
    hosts.register(1, forwarded(remote, relays.to_vec()));
    hosts.pass(Duration::from_secs(4));
    hosts
}

#[test]
fn refusing_relay_is_reported() {
    let mut hosts = hosts([closed(2), anybody(3)], anybody(4));
    assert_eq!(shown(&mut hosts), [refusal("path", 2, Refusal::NextHop)]);
    let mut hosts = self::hosts([anybody(2), closed(3)], anybody(4));
    assert_eq!(shown(&mut hosts), [refusal("path", 3, Refusal::NextHop)]);
}

#[test]
fn remote_refusal_of_path_is_reported() {
    let mut hosts = hosts([anybody(2), anybody(3)], closed(4));
    assert_eq!(shown(&mut hosts), [refusal("path", 4, Refusal::NotAllowed)]);
}

#[test]
fn allowed_path_is_not_refused() {
    let mut hosts = hosts([anybody(2), anybody(3)], anybody(4));
    assert_eq!(shown(&mut hosts), []);
}

#[test]
fn refused_conversation_is_reported() {
    let mut hosts = Hosts::new([(1, gateway(1)), (4, closed(4))]);
    let remote = hosts.hop(4);
    let delivery = DeliveryPolicy { carriage: Carriage::DIRECT, ..forwarded(remote, Vec::new()) };
    let flow = hosts.register(1, delivery);
    hosts.pass(Duration::from_secs(1));
    let (now, engine) = (hosts.now, hosts.at(1));
    let (route, anyone) = (engine.flows[&flow], DatagramMeta::by("0.0.0.0:0".parse().unwrap()));
    engine.take_application(now, route, anyone, b"hello");
    engine.flush();
    hosts.exchange();
    assert_eq!(shown(&mut hosts), [refusal("conversation", 4, Refusal::NotAllowed)]);
}
