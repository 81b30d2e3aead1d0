//! Paths that nobody opens, and the number of labels of one gateway.

use tradewind_config::packet::LegSeal;
use tradewind_grant::Policy;
use tradewind_net::udp::ReceiveBatch;
use tradewind_packet::label::{GIVES_WAY_AFTER, IDLE, MAX_FOR_ONE, OPENS_WITHIN};
use tradewind_packet::message::Message;
use tradewind_packet::session::{Link, PASSED_BYTES, PeerId};
use tradewind_units::Duration;

use super::super::conversations::DatagramMeta;
use super::super::test_harness::{Hosts, anybody, forwarded, gateway, identity};
use super::MAX_EXPENSIVE_PER_SECOND;
use crate::config::NodeConfig;

/// Returns an endpoint that knows no relay, and so answers none.
fn deaf(number: u8) -> NodeConfig {
    NodeConfig { neighbours: std::collections::BTreeSet::new(), ..anybody(number) }
}

/// Returns an endpoint that delivers nothing, and so refuses each opening.
fn closed(number: u8) -> NodeConfig {
    let policy = Policy { destinations: Vec::new(), ..anybody(number).policy };
    NodeConfig { policy, ..anybody(number) }
}

#[test]
fn unopened_path_is_dropped_with_labels() {
    let mut hosts = Hosts::new([(1, gateway(1)), (2, anybody(2)), (4, deaf(4))]);
    let (relay, remote) = (hosts.hop(2), hosts.hop(4));
    hosts.register(1, forwarded(remote, vec![relay]));
    hosts.pass(Duration::from_secs(20));
    let labels = hosts.at(2).forwarding.labels.len() as u64;
    assert!((1..=2 * (OPENS_WITHIN.as_secs() + 1)).contains(&labels), "{labels} labels");
    assert_eq!(hosts.at(2).forwarding.labels.opened() as u64, labels / 2);
}

#[test]
fn refused_path_is_dropped_with_labels() {
    let mut hosts = Hosts::new([(1, gateway(1)), (2, anybody(2)), (4, closed(4))]);
    let (relay, remote) = (hosts.hop(2), hosts.hop(4));
    hosts.register(1, forwarded(remote, vec![relay]));
    hosts.pass(Duration::from_secs(20));
    assert_eq!(
        (hosts.at(2).forwarding.labels.len(), hosts.at(2).forwarding.labels.opened()),
        (0, 0)
    );
    let opens = |hosts: &mut Hosts| hosts.at(4).context.counts.snapshot().dropped;
    let before = opens(&mut hosts);
    hosts.pass(Duration::from_secs(10));
    // Another one each second, once.
    let refused = opens(&mut hosts) - before;
    assert!((8..=12).contains(&refused), "{refused} openings in 10 s");
}

#[test]
fn open_path_stays_while_used() {
    let mut hosts = Hosts::new([(1, gateway(1)), (2, anybody(2)), (4, anybody(4))]);
    let (relay, remote) = (hosts.hop(2), hosts.hop(4));
    hosts.register(1, forwarded(remote, vec![relay]));
    hosts.pass(IDLE * 2);
    assert_eq!(
        hosts.at(2).forwarding.labels.len(),
        2,
        "both directions of one path, which is in use"
    );
    assert_eq!(hosts.at(1).context.counts.snapshot().paths_up, 1);
}

#[test]
fn labels_per_gateway_are_bounded() {
    let gateways = [(1, gateway(1)), (5, gateway(5))];
    let mut hosts = Hosts::new(gateways.into_iter().chain([(4, anybody(4))]));
    let (first, other, remote) = (hosts.connect(1, 4), hosts.connect(5, 4), hosts.hop(4));
    for _ in 0..MAX_FOR_ONE / 2 {
        hosts.open(1, first, vec![remote]);
        hosts.exchange();
    }
    hosts.pass(GIVES_WAY_AFTER / 2);
    for _ in 0..MAX_FOR_ONE {
        hosts.open(1, first, vec![remote]);
        hosts.exchange();
    }
    let full = hosts.at(4).forwarding.labels.len();
    assert!((MAX_FOR_ONE - 1..=MAX_FOR_ONE).contains(&full), "{full} labels");
    hosts.open(5, other, vec![remote]);
    hosts.exchange();
    assert_eq!(hosts.at(4).forwarding.labels.len(), full + 1, "another has its own share");
    hosts.pass(GIVES_WAY_AFTER / 2);
    hosts.open(1, first, vec![remote]);
    hosts.exchange();
    let left = full - MAX_FOR_ONE / 2 + 2;
    assert_eq!(
        hosts.at(4).forwarding.labels.len(),
        left,
        "the first half was silent for long enough"
    );
}

#[test]
fn grant_checks_per_gateway_are_bounded() {
    let gateways = [(1, gateway(1)), (5, gateway(5))];
    let mut hosts = Hosts::new(gateways.into_iter().chain([(4, anybody(4))]));
    let (first, other, remote) = (hosts.connect(1, 4), hosts.connect(5, 4), hosts.hop(4));
    for number in 0..600 {
        hosts.open_by_new_grant(1, first, remote, number);
        hosts.exchange();
    }
    assert_eq!(
        hosts.at(4).forwarding.labels.len(),
        MAX_EXPENSIVE_PER_SECOND / 2,
        "each takes a signature"
    );
    hosts.open(5, other, vec![remote]);
    hosts.exchange();
    assert_eq!(
        hosts.at(4).forwarding.labels.len(),
        MAX_EXPENSIVE_PER_SECOND / 2 + 1,
        "another has its own share"
    );
    hosts.pass(Duration::from_secs(1));
    hosts.open_by_new_grant(1, first, remote, 600);
    hosts.exchange();
    assert_eq!(
        hosts.at(4).forwarding.labels.len(),
        MAX_EXPENSIVE_PER_SECOND / 2 + 2,
        "a second later"
    );
}

/// Returns the remote endpoint that a flow of host 1 leads to.
fn remote_of(hosts: &mut Hosts, flow: u64) -> PeerId {
    let engine = hosts.at(1);
    engine.routes.get(engine.flows[&flow]).unwrap().remote
}

/// A leg does not prove whose datagrams it carries: a datagram of one path under the header of
/// another, put there by somebody on the leg, moves neither path.
#[test]
fn swapped_body_moves_no_path() {
    let others = [2, 4, 5].map(|number| (number, anybody(number)));
    let mut hosts = Hosts::new([(1, gateway(1))].into_iter().chain(others));
    let (relay, remote4, remote5) = (hosts.hop(2), hosts.hop(4), hosts.hop(5));
    let flows = [remote4, remote5].map(|remote| hosts.register(1, forwarded(remote, vec![relay])));
    hosts.pass(Duration::from_secs(5));
    let now = hosts.now;
    for flow in flows {
        let engine = hosts.at(1);
        let route = engine.flows[&flow];
        engine.take_application(
            now,
            route,
            DatagramMeta::by("0.0.0.0:0".parse().unwrap()),
            b"hello",
        );
        hosts.exchange();
    }
    hosts.pass(Duration::from_secs(1));
    let remotes = flows.map(|flow| remote_of(&mut hosts, flow));
    let labels =
        |hosts: &mut Hosts| remotes.map(|remote| hosts.at(1).remotes.get(&remote).unwrap().label);
    let before = labels(&mut hosts);
    let body = {
        let engine = hosts.at(4);
        let (gateway, mut sealed) =
            (*engine.remotes.all().map(|(peer, _)| peer).next().unwrap(), Vec::new());
        let message = Message::Datagram { conversation: 0, payload: b"x" };
        assert!(engine.context.seal_remote(gateway, &mut sealed, |out| message.write(out)));
        sealed
    };
    let relay = hosts.at(2);
    let label = before[1].unwrap();
    let is_gateway =
        |peer: &PeerId| relay.context.sessions.identity_of(*peer) == Some(identity(1).public());
    let gateway = relay.forwarding.labels.neighbours().find(is_gateway).unwrap();
    let mut datagram = vec![0; PASSED_BYTES + body.len()];
    let length = datagram.len();
    let passed = relay.context.sessions.pass(gateway, label, &mut datagram, length).unwrap();
    let Link::Internet(to) = passed else { panic!("{passed:?}") };
    datagram[PASSED_BYTES..].copy_from_slice(&body);
    relay.context.sockets.reserve(false, to, length).unwrap().copy_from_slice(&datagram);
    hosts.exchange();
    hosts.pass(Duration::from_secs(2));
    assert_eq!(labels(&mut hosts), before);
    assert_eq!(hosts.at(1).context.counts.snapshot().paths_up, 2);
}

/// Replacing a packet's bytes on a leg has no effect where legs are sealed whole: the packet itself
/// still arrives. Where the headers alone are sealed, it is dropped as a replay.
#[test]
fn altered_body_costs_one_packet() {
    for (leg_seal, expected) in [(LegSeal::Whole, [0, 1]), (LegSeal::Headers, [0, 0])] {
        let sealing = |config: NodeConfig| NodeConfig { leg_seal, ..config };
        let all = [(1, gateway(1)), (2, anybody(2)), (4, anybody(4))];
        let mut hosts = Hosts::new(all.map(|(number, config)| (number, sealing(config))));
        let (relay, remote) = (hosts.hop(2), hosts.hop(4));
        let flow = hosts.register(1, forwarded(remote, vec![relay]));
        hosts.pass(Duration::from_secs(3));
        let (now, mut batch, mut sent) = (hosts.now, ReceiveBatch::new(32), Vec::new());
        let engine = hosts.at(1);
        let (route, anyone) = (engine.flows[&flow], DatagramMeta::by("0.0.0.0:0".parse().unwrap()));
        engine.take_application(now, route, anyone, b"hello");
        engine.flush();
        while batch.receive(&hosts.at(2).context.sockets.shared.port).unwrap() > 0 {
            batch.for_each(|_, datagram| sent.push(datagram.to_vec()));
        }
        let [original] = &sent[..] else { panic!("{} datagrams", sent.len()) };
        let mut altered = original.clone();
        *altered.last_mut().unwrap() ^= 1;
        let delivered = [&altered, original].map(|datagram| {
            let before = hosts.at(4).context.counts.snapshot().delivered;
            let buffer =
                hosts.at(1).context.sockets.reserve(false, relay.address.into(), datagram.len());
            buffer.unwrap().copy_from_slice(datagram);
            hosts.exchange();
            hosts.at(4).context.counts.snapshot().delivered - before
        });
        assert_eq!(delivered, expected, "{leg_seal:?}");
    }
}

/// Empty packets, sealed as a whole by a gateway that should not, are not forwarded: above all, no
/// bytes of a relay's buffers leave.
#[test]
fn unsealed_datagrams_never_leave() {
    [LegSeal::Headers, LegSeal::Whole].into_iter().for_each(empty_packets_are_not_passed_on);
}

fn empty_packets_are_not_passed_on(leg_seal: LegSeal) {
    let others = [2, 4].map(|number| (number, NodeConfig { leg_seal, ..anybody(number) }));
    let mut hosts = Hosts::new([(1, gateway(1))].into_iter().chain(others));
    let (relay, remote) = (hosts.hop(2), hosts.hop(4));
    let flow = hosts.register(1, forwarded(remote, vec![relay]));
    hosts.pass(Duration::from_secs(3));
    let (first, label) = {
        let remote = remote_of(&mut hosts, flow);
        let engine = hosts.at(1);
        engine
            .forwarding
            .labels
            .reverse_hop(engine.remotes.get(&remote).unwrap().label.unwrap())
            .unwrap()
    };
    hosts.exchange();
    let forwarded = hosts.at(2).context.counts.snapshot().forwarded;
    for _ in 0..64 {
        hosts.at(1).context.send_message(first, &Message::OnPath { label, datagram: &[] });
    }
    hosts.at(1).flush();
    let (now, mut batch) = (hosts.now, ReceiveBatch::new(32));
    let relay = hosts.at(2);
    while batch.receive(&relay.context.sockets.shared.port).unwrap() > 0 {
        batch.for_each_train(|arrival, train| relay.take_train(now, arrival.from.into(), train));
    }
    relay.flush();
    assert_eq!(relay.context.counts.snapshot().forwarded, forwarded);
    let remote = hosts.at(4);
    assert_eq!(batch.receive(&remote.context.sockets.shared.port).unwrap(), 0);
}

/// Packets that waited at a relay for longer than the limit are dropped, sealed whole or not.
#[test]
fn late_packets_at_relay_are_dropped() {
    for leg_seal in [LegSeal::Whole, LegSeal::Headers] {
        let with = |config: NodeConfig| NodeConfig { leg_seal, ..config };
        let all = [(1, with(gateway(1))), (2, with(anybody(2))), (4, with(anybody(4)))];
        let mut hosts = Hosts::new(all);
        let (relay, remote) = (hosts.hop(2), hosts.hop(4));
        let flow = hosts.register(1, forwarded(remote, vec![relay]));
        hosts.pass(Duration::from_secs(2));
        let route = *hosts.at(1).flows.get(&flow).unwrap();
        let mut passed = |age: u64| {
            let before = [2, 4].map(|number| hosts.at(number).context.counts.snapshot());
            hosts.at(2).note_age(Some(Duration::from_millis(age)));
            let (now, by) = (hosts.now, DatagramMeta::by(([0, 0, 0, 0], 0).into()));
            hosts.at(1).take_application(now, route, by, &[7; 600]);
            hosts.exchange();
            hosts.at(2).note_age(None);
            let after = [2, 4].map(|number| hosts.at(number).context.counts.snapshot());
            (after[0].stale - before[0].stale, after[1].delivered - before[1].delivered)
        };
        assert_eq!(passed(900), (0, 1));
        assert_eq!(passed(1100), (1, 0));
        assert_eq!(passed(0), (0, 1));
    }
}
