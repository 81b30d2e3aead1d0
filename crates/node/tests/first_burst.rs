//! Protection of the first packets of a flow: real sockets on loopback, and an Internet that loses
//! every second of them.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::time::{Duration, Instant};

use nodes::wire::Wire;
use nodes::world::{sink, world_of};
use nodes::{TEST_TIMEOUT, grant, hop, identity, loopback, plain};
use tradewind_node::{FlowOptions, Node, NodeConfig, RelayServices};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;

#[test]
fn first_burst_is_recovered() {
    // Relays report each second which flows they serve: waiting for that would be too late.
    let carriage = Carriage {
        service: Service::Caching,
        paths: Paths::Both,
        budget_ms: 300,
        in_order: false,
        fragment: false,
    };
    let world = world_of(carriage, None, Duration::ZERO, (2, 1), RelayServices::default());
    let (begun, side) = (Instant::now(), &world.sides[0]);
    while world.near.snapshot().paths_up == 0 {
        assert!(begun.elapsed() < TEST_TIMEOUT, "no path over the relays:\n{}", world.describe());
        std::thread::sleep(Duration::from_millis(20));
    }
    // Relays report each second which flows they serve.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(world.near.snapshot().accepted, 0, "nothing was sent yet");
    side.wire.lose_each(world.near.address(), 2);
    (0..40).for_each(|number| world.send(number));
    // On a busy machine a relay may run later than a receiver's last request.
    while side.has_of(0..40) < 34 {
        assert!(
            begun.elapsed() < TEST_TIMEOUT,
            "{} of 40 came:\n{}",
            side.has_of(0..40),
            world.describe()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(side.wire.lost() >= 15, "{} were lost", side.wire.lost());
}

/// A flow that a program registers while another has the path open is protected from its beginning.
#[test]
fn first_burst_of_later_flow_is_recovered() {
    let remote = Node::start(plain(4, loopback(), &[2, 3])).unwrap();
    let relays = [2, 3].map(|number| Node::start(plain(number, loopback(), &[2])).unwrap());
    let wire = Wire::to(remote.address());
    let grant = grant(identity(1).public(), "127.0.0.0/8:*");
    let config = NodeConfig::of_application(identity(1), grant);
    let node = Node::start(NodeConfig { listen: loopback(), ..config }).unwrap();
    let snapshots = || [&node, &remote, &relays[0], &relays[1]].map(Node::snapshot);
    let register = |to| {
        let hops = relays.iter().zip(2..).map(|(relay, number)| hop(relay.address(), number));
        let (remote, hops) = (hop(wire.address, 4), hops.collect::<Vec<_>>());
        let options =
            FlowOptions { service: Some(Service::Caching), ..FlowOptions::new(remote, hops) };
        let flow = node.register(to, Duration::from_millis(500), options).unwrap();
        assert!(flow.wait_open(TEST_TIMEOUT).unwrap());
        flow
    };
    let (to, _) = sink();
    let first = register(to);
    let (begun, mut number) = (Instant::now(), 0_u64);
    while relays[1].snapshot().cached == 0 {
        assert!(begun.elapsed() < TEST_TIMEOUT, "no copies: {:?}", snapshots());
        first.send(&number.to_be_bytes()).unwrap();
        number += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    wire.lose_each(node.address(), 2);
    let (to, came) = sink();
    let later = register(to);
    for number in 0..40_u64 {
        let mut packet = [7; 1000];
        packet[..8].copy_from_slice(&number.to_be_bytes());
        later.send(&packet).unwrap();
    }
    let begun = Instant::now();
    // On a busy machine a relay may run later than a receiver's last request.
    while came.lock().unwrap().len() < 34 {
        let count = came.lock().unwrap().len();
        assert!(begun.elapsed() < TEST_TIMEOUT, "{count} of 40 came: {:?}", snapshots());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(wire.lost() >= 15, "{} were lost", wire.lost());
}
