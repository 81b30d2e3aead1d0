//! The number of flows served for one gateway, and their end.

use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Message, Service};
use tradewind_packet::session::PeerId;
use tradewind_units::Duration;

use super::super::test_harness::{Hosts, anybody, forwarded, gateway};
use super::{IDLE, MAX_FOR_ONE};

/// Returns the relay of a gateway's open path over relay 2 to endpoint 4, and the path's label
/// there.
fn path(hosts: &mut Hosts, number: u8) -> (PeerId, u32) {
    let (relay, remote) = (hosts.hop(2), hosts.hop(4));
    hosts.register(number, forwarded(remote, vec![relay]));
    hosts.pass(Duration::from_secs(1));
    let engine = hosts.at(number);
    let label =
        engine.remotes.all().map(|(_, remote)| remote).find_map(|remote| remote.label).unwrap();
    engine.forwarding.labels.reverse_hop(label).unwrap()
}

/// Asks the relay to serve flows with such numbers.
fn ask(hosts: &mut Hosts, number: u8, (relay, label): (PeerId, u32), flows: std::ops::Range<u64>) {
    for flow in flows {
        let service = Service::Caching;
        hosts
            .at(number)
            .context
            .send_message(relay, &Message::Serve { label, flow: FlowNumber(flow), service });
        hosts.exchange();
    }
}

/// Returns how many flows are served at the relay, and how many of them are counted, by gateway.
fn served(hosts: &mut Hosts) -> (usize, Vec<usize>) {
    let serving = &hosts.at(2).serving;
    (serving.served.len(), serving.tenants.values().map(|tenancy| tenancy.flows).collect())
}

#[test]
fn served_flows_per_gateway_are_bounded() {
    let gateways = [(1, gateway(1)), (5, gateway(5))];
    let mut hosts = Hosts::new(gateways.into_iter().chain([(2, anybody(2)), (4, anybody(4))]));
    let (greedy, other) = (path(&mut hosts, 1), path(&mut hosts, 5));
    // Those of the paths' own routes.
    let (own, _) = served(&mut hosts);
    let share = MAX_FOR_ONE as u64;
    ask(&mut hosts, 1, greedy, 0..share + 10);
    let (all, by_gateway) = served(&mut hosts);
    assert_eq!((all, by_gateway.iter().sum::<usize>()), (MAX_FOR_ONE + own / 2, all));
    assert_eq!(by_gateway.iter().max(), Some(&MAX_FOR_ONE));
    ask(&mut hosts, 5, other, share + 10..share + 11);
    assert_eq!(served(&mut hosts).0, all + 1, "another has its own share");
    ask(&mut hosts, 5, other, 0..1);
    assert_eq!(served(&mut hosts).0, all + 1, "nobody takes another's flow");
    hosts.pass(IDLE * 2);
    let (left, by_gateway) = served(&mut hosts);
    assert_eq!(
        (left, by_gateway.iter().sum::<usize>()),
        (own, own),
        "what nobody speaks of is over"
    );
    ask(&mut hosts, 1, greedy, 0..5);
    assert_eq!(served(&mut hosts).0, own + 5, "and leaves its room");
}
