//! Programs on both sides: one registers a flow, another accepts it. There is no application
//! outside of the two, and no host has the destination's address.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nodes::wire::Wire;
use nodes::*;
use tradewind_node::{Accepted, Flow, FlowError, FlowOptions, Listener, Node, NodeConfig};
use tradewind_packet::message::Service;

const GAP: Duration = Duration::from_millis(4);
const BUDGET: Duration = Duration::from_secs(3);
const RULE: &str = "10.9.9.9/32:5004";

fn destination() -> SocketAddr {
    "10.9.9.9:5004".parse().unwrap()
}

struct World {
    relays: Vec<Node>,
    receiver: Node,
    wire: Wire,
}

fn world() -> World {
    let relays = [2, 3].map(|number| identity(number).public());
    let config =
        NodeConfig::of_listener(loopback(), identity(4), vec![operator().public()], relays);
    let mut receiver = config.clone();
    receiver.policy.destinations = vec![RULE.parse().unwrap()];
    let receiver = Node::start(receiver).unwrap();
    let wire = Wire::to(receiver.address());
    let relays =
        (2..4).map(|number| Node::start(plain(number, loopback(), &[2])).unwrap()).collect();
    World { relays, receiver, wire }
}

impl World {
    /// Returns the node of a program that sends.
    fn sender(&self, number: u8) -> Node {
        let config =
            NodeConfig::of_application(identity(number), grant(identity(number).public(), RULE));
        Node::start(NodeConfig { listen: loopback(), ..config }).unwrap()
    }

    fn register(&self, node: &Node, service: Service) -> Flow {
        let relays = self.relays.iter().zip(2..);
        let relays: Vec<_> = relays.map(|(relay, number)| hop(relay.address(), number)).collect();
        let options = FlowOptions {
            service: Some(service),
            ..FlowOptions::new(hop(self.wire.address, 4), relays)
        };
        let flow = node.register(destination(), BUDGET, options).unwrap();
        assert!(flow.wait_open(TEST_TIMEOUT).unwrap());
        flow
    }

    /// Sends until the other side accepts.
    fn accept(&self, listener: &Listener, flow: &Flow, first: &[u8]) -> Accepted {
        let begun = Instant::now();
        loop {
            assert!(
                begun.elapsed() < TEST_TIMEOUT,
                "nobody accepts: {:?}",
                self.receiver.snapshot()
            );
            flow.send(first).unwrap();
            if let Some(accepted) = listener.accept(Duration::from_millis(50)).unwrap() {
                return accepted;
            }
        }
    }
}

/// Returns a long datagram with its number.
fn numbered(number: u32) -> Vec<u8> {
    let mut datagram = number.to_be_bytes().to_vec();
    datagram.resize(1000, 7);
    datagram
}

fn collect(flow: &Flow, came: &mut BTreeSet<u32>) {
    while let Some(datagram) = flow.receive(Duration::ZERO).unwrap() {
        let number = u32::from_be_bytes(datagram[..4].try_into().unwrap());
        assert!(came.insert(number) || number == 0, "{number} came twice");
    }
}

/// A condition on the next number, and on those that have arrived at either side.
type Holds<'a> = dyn Fn(u32, &BTreeSet<u32>, &BTreeSet<u32>) -> bool + 'a;

#[test]
fn accepted_flow_recovers_losses_both_ways() {
    let world = world();
    let listener = world.receiver.listen(destination()).unwrap();
    let node = world.sender(1);
    let flow = world.register(&node, Service::Caching);
    let Accepted { flow: there, from } = world.accept(&listener, &flow, &numbered(0));
    assert_eq!(from, identity(1).public());
    let (mut here_came, mut there_came) = (BTreeSet::new(), BTreeSet::new());
    let (mut next, begun) = (1, Instant::now());
    let mut until = |what: &str, holds: &Holds<'_>| {
        while !holds(next, &here_came, &there_came) {
            let snapshots = || (world.receiver.snapshot(), node.snapshot());
            assert!(begun.elapsed() < TEST_TIMEOUT * 2, "{what} did not come: {:?}", snapshots());
            flow.send(&numbered(next)).unwrap();
            there.send(&numbered(next)).unwrap();
            next += 1;
            std::thread::sleep(GAP);
            collect(&flow, &mut here_came);
            collect(&there, &mut there_came);
        }
        next
    };
    let first = until("copies both ways", &|_, _, _| {
        world.relays.iter().all(|relay| relay.snapshot().cached > 20)
    });
    world.wire.lose_each(node.address(), 5);
    let end = until("200 packets", &|next, _, _| next >= first + 200);
    world.wire.lose_each(node.address(), 0);
    let has_most = |came: &BTreeSet<u32>| came.range(first..end).count() >= 190;
    until("the packets", &|_, here, there| has_most(here) && has_most(there));
    assert!(world.receiver.snapshot().recovered_cache >= 25, "{:?}", world.receiver.snapshot());
    until("the status", &|_, _, _| {
        let status = there.status(tradewind_node::status::Direction::Received);
        status
            .and_then(|status| status.statistics)
            .is_some_and(|statistics| statistics.recovered_cache >= 25)
    });
}

#[test]
fn flows_of_programs_are_distinguished() {
    let world = world();
    let listener = world.receiver.listen(destination()).unwrap();
    let nodes = [1, 7].map(|number| world.sender(number));
    let flows = nodes.each_ref().map(|node| world.register(node, Service::Direct));
    let accepted = flows.each_ref().map(|flow| world.accept(&listener, flow, &numbered(0)));
    for (accepted, number) in accepted.iter().zip([1, 7]) {
        assert_eq!(accepted.from, identity(number).public());
        accepted.flow.send(&[number]).unwrap();
    }
    for (flow, number) in flows.iter().zip([1, 7]) {
        assert_eq!(flow.receive(TEST_TIMEOUT).unwrap(), Some(vec![number]));
    }
    // The first program ends; the other's flow goes on.
    let [first, second] = flows;
    let [first_node, _second_node] = nodes;
    drop((first, first_node));
    accepted[1].flow.send(b"still here").unwrap();
    assert_eq!(second.receive(TEST_TIMEOUT).unwrap().as_deref(), Some(&b"still here"[..]));
}

#[test]
fn flows_outlive_their_listener() {
    let world = world();
    let older = world.receiver.listen(destination()).unwrap();
    let listener = world.receiver.listen(destination()).unwrap();
    let replaced = FlowError::Ended("its node has ended, or another listens there");
    assert_eq!(older.accept(TEST_TIMEOUT).unwrap_err(), replaced);
    drop(older);
    let node = world.sender(1);
    let flow = world.register(&node, Service::Direct);
    let Accepted { flow: there, .. } = world.accept(&listener, &flow, b"first");
    drop(listener);
    flow.send(b"second").unwrap();
    let begun = Instant::now();
    while there.receive(GAP).unwrap().as_deref() != Some(b"second") {
        assert!(begun.elapsed() < TEST_TIMEOUT, "the flow has ended with its listener");
        flow.send(b"second").unwrap();
    }
    let again = world.receiver.listen(destination()).unwrap();
    drop(there);
    // The program has dropped the flow: further datagrams begin another.
    let other = world.register(&node, Service::Direct);
    world.accept(&again, &other, b"third");
    drop(world.receiver);
    assert_eq!(again.accept(TEST_TIMEOUT).unwrap_err(), replaced);
}

#[test]
fn unreachable_listener_is_refused() {
    let world = world();
    let refused = |node: &Node, to: &str| node.listen(to.parse().unwrap()).unwrap_err().to_string();
    assert_eq!(
        refused(&world.receiver, "10.9.9.8:5004"),
        "destinations: none covers what is listened to"
    );
    let expected = "operators: missing; those who begin flows show their grants";
    assert_eq!(refused(&world.sender(1), "10.9.9.9:5004"), expected);
}
