//! Two endpoints, two relays and unmodified UDP applications over loopback, each node with sockets
//! and threads of its own.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nodes::wire::Wire;
use nodes::*;
use tradewind_net::udp::{ReceiveBatch, SendBatch, UdpOptions, UdpPort};
use tradewind_node::{
    Assumed, DeliveryPolicy, Intercepted, LegSeal, Node, NodeConfig, Path, RelayServices,
    TrafficSource, Tunnel,
};
use tradewind_packet::ingress::Coding;
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;

struct World {
    near: Node,
    relays: Vec<Node>,
    remote: Node,
    application: UdpSocket,
}

/// Returns a carriage that forwards over these paths.
const fn over(paths: Paths) -> Carriage {
    Carriage { service: Service::Forwarding, paths, budget_ms: 0, in_order: false, fragment: false }
}

fn world(carriage: Carriage, destinations: &str) -> World {
    world_through(|first| first, carriage, destinations)
}

/// Does the same, where the local endpoint reaches the first relay at another address.
fn world_through(
    first_at: impl FnOnce(SocketAddr) -> SocketAddr,
    carriage: Carriage,
    destinations: &str,
) -> World {
    world_sealing([LegSeal::default(); 4], first_at, carriage, destinations)
}

/// Does the same, with the given seals on the legs of the local endpoint, the relays and the remote
/// endpoint.
fn world_sealing(
    seals: [LegSeal; 4],
    first_at: impl FnOnce(SocketAddr) -> SocketAddr,
    carriage: Carriage,
    destinations: &str,
) -> World {
    let plain = |number: u8, listen, neighbours: &[u8]| {
        let leg_seal = seals[usize::from(number) - 1];
        NodeConfig { leg_seal, ..plain(number, listen, neighbours) }
    };
    let remote = Node::start(plain(4, loopback(), &[2, 3])).unwrap();
    let second = Node::start(plain(3, loopback(), &[2])).unwrap();
    let first = Node::start(NodeConfig { workers: 2, ..plain(2, loopback(), &[]) }).unwrap();
    let near = NodeConfig {
        grant: Some(grant(identity(1).public(), destinations)),
        paths: vec![Path {
            source: TrafficSource::Port { listen: loopback(), to: echo() },
            delivery: DeliveryPolicy {
                remote: hop(remote.address(), 4).into(),
                relays: vec![hop(first_at(first.address()), 2), hop(second.address(), 3)].into(),
                carriage,
                max_loss: None,
                copies: None,
                assumed: Assumed::default(),
            },
        }],
        ..plain(1, loopback(), &[])
    };
    let near = Node::start(near).unwrap();
    let application = UdpSocket::bind(loopback()).unwrap();
    application.connect(near.local_addresses()[0]).unwrap();
    application.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    World { near, relays: vec![first, second], remote, application }
}

impl World {
    /// Sends numbers until the first comes back.
    fn warm(&self) {
        self.until("the first answer", |world| world.round_trip(0));
    }

    fn round_trip(&self, number: u32) -> bool {
        self.application.send(&number.to_be_bytes()).unwrap();
        let mut buffer = [0; 64];
        while let Ok(length) = self.application.recv(&mut buffer) {
            if buffer[..length] == number.to_be_bytes() {
                return true;
            }
        }
        false
    }

    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(
                begun.elapsed() < TEST_TIMEOUT,
                "{what} did not come: near {:?} first {:?} remote {:?}",
                self.near.snapshot(),
                self.relays.first().map(Node::snapshot),
                self.remote.snapshot()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn plain_application_gets_direct_replies() {
    let world = world(Carriage::DIRECT, "127.0.0.0/8:*");
    world.warm();
    for number in 1..100 {
        world.until("the answer", |world| world.round_trip(number));
    }
    assert_eq!(world.relays[0].snapshot().forwarded, 0);
    world.until("the count of packets", |world| {
        world.near.report().flows.iter().any(|flow| flow.packets >= 100 && flow.bytes > 0)
    });
}

#[test]
fn both_paths_deliver_once() {
    let world = world(over(Paths::Both), "127.0.0.0/8:*");
    world.warm();
    world.until("the overlay path", |world| world.near.snapshot().paths_up == 1);
    world.until("packets over relays", |world| {
        world.round_trip(1) && world.relays.iter().all(|relay| relay.snapshot().forwarded > 10)
    });
    let before = world.remote.snapshot();
    let mut answers = Vec::new();
    for number in 1000..1100u32 {
        world.application.send(&number.to_be_bytes()).unwrap();
        let mut buffer = [0; 64];
        while let Ok(length) = world.application.recv(&mut buffer) {
            answers.push(u32::from_be_bytes(buffer[..length].try_into().unwrap()));
            if answers.last() == Some(&number) {
                break;
            }
        }
    }
    world.until("the copies", |world| world.remote.snapshot().duplicates >= before.duplicates + 90);
    let numbers: Vec<u32> = answers.into_iter().filter(|number| *number >= 1000).collect();
    assert_eq!(numbers, (1000..1100).collect::<Vec<_>>());
}

/// Trains and single datagrams arrive unaltered, whichever of the nodes seal headers alone and
/// whichever all.
#[test]
fn leg_seal_is_per_node() {
    use LegSeal::{Headers, Whole};
    let all = [[Headers; 4], [Whole; 4], [Headers, Whole, Headers, Whole]];
    for seals in all.into_iter().chain([[Whole, Headers, Whole, Headers]]) {
        let world = world_sealing(seals, |first| first, over(Paths::Overlay), "127.0.0.0/8:*");
        world.warm();
        world.until("packets over relays", |world| {
            world.round_trip(1) && world.relays.iter().all(|relay| relay.snapshot().forwarded > 10)
        });
        let sender = UdpPort::bind(loopback(), &UdpOptions::default()).unwrap();
        let mut batch = SendBatch::new(64);
        let mut missing: BTreeSet<Vec<u8>> = (0..96_u8)
            .map(|number| vec![number; if number.is_multiple_of(32) { 90 } else { 500 }])
            .collect();
        for datagram in &missing {
            let buffer = batch.push(world.near.local_addresses()[0], datagram.len()).unwrap();
            buffer.copy_from_slice(datagram);
        }
        batch.flush(&sender);
        let (mut incoming, begun) = (ReceiveBatch::new(8), Instant::now());
        while !missing.is_empty() {
            assert!(begun.elapsed() < TEST_TIMEOUT, "{seals:?}: {} are missing", missing.len());
            std::thread::sleep(Duration::from_millis(1));
            incoming.receive(&sender).unwrap();
            incoming.for_each(|_, datagram| {
                assert!(missing.remove(datagram), "{seals:?}: {datagram:?} is none that was sent");
            });
        }
        for relay in &world.relays {
            assert!(relay.snapshot().forwarded >= 96, "{seals:?}: {:?}", relay.snapshot());
        }
    }
}

#[test]
fn dead_relay_costs_only_its_path() {
    let mut world = world(over(Paths::Overlay), "127.0.0.0/8:*");
    world.warm();
    world.until("packets over relays", |world| {
        world.round_trip(1) && world.relays[1].snapshot().forwarded > 10
    });
    let first = world.relays.remove(0);
    let address = first.address();
    drop(first);
    world.until("the path round the dead relay", |world| {
        (2..12).all(|number| world.round_trip(number))
    });
    world.until("the count of paths", |world| world.near.snapshot().paths_up == 0);
    let again = Node::start(plain(2, address, &[])).unwrap();
    world.relays.insert(0, again);
    world.until("the path over the new relay", |world| {
        world.round_trip(20) && world.relays[0].snapshot().forwarded > 10
    });
}

/// Two sections lead to one remote endpoint, one of them over a relay that is dead behind one that
/// is not.
#[test]
fn failed_path_does_not_block_another() {
    let remote = Node::start(plain(4, loopback(), &[2, 3])).unwrap();
    let relays = [2, 3].map(|number| Node::start(plain(number, loopback(), &[])).unwrap());
    let dead = UdpSocket::bind(loopback()).unwrap();
    let path = |relays: Vec<tradewind_grant::Hop>| Path {
        source: TrafficSource::Port { listen: loopback(), to: echo() },
        delivery: DeliveryPolicy {
            remote: hop(remote.address(), 4).into(),
            relays: relays.into(),
            carriage: over(Paths::Overlay),
            max_loss: None,
            copies: None,
            assumed: Assumed::default(),
        },
    };
    let alive = path(vec![hop(relays[0].address(), 2)]);
    let broken = path(vec![hop(relays[1].address(), 3), hop(dead.local_addr().unwrap(), 9)]);
    let near = NodeConfig {
        grant: Some(grant(identity(1).public(), "127.0.0.0/8:*")),
        paths: vec![alive, broken],
        ..plain(1, loopback(), &[])
    };
    let near = Node::start(near).unwrap();
    let begun = Instant::now();
    while near.snapshot().paths_up < 2 {
        assert!(begun.elapsed() < TEST_TIMEOUT, "near {:?}", near.snapshot());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn oversized_for_relays_uses_internet() {
    let mut wire = None;
    let before_the_relay = |first| wire.insert(Wire::to(first)).address;
    let world = world_through(before_the_relay, over(Paths::Overlay), "127.0.0.0/8:*");
    // No long datagram reaches the first relay.
    wire.unwrap().lose_each(world.near.address(), 1);
    world.until("packets over relays", |world| {
        world.round_trip(1) && world.relays[1].snapshot().forwarded > 10
    });
    world.until("long packets", |world| {
        world.application.send(&[7; 1300]).unwrap();
        let mut buffer = [0; 2048];
        let come = std::iter::from_fn(|| world.application.recv(&mut buffer).ok());
        come.take(10).any(|length| length == 1300)
    });
    let before = world.relays[1].snapshot().forwarded;
    world.until("short packets over relays", |world| {
        world.round_trip(2) && world.relays[1].snapshot().forwarded > before + 10
    });
}

#[test]
fn uncovered_destinations_are_not_delivered() {
    let world = world(over(Paths::Both), "10.0.0.0/8:*");
    for number in 0..20 {
        assert!(!world.round_trip(number));
    }
    assert_eq!(world.remote.snapshot().delivered, 0);
    assert_eq!(world.relays[1].snapshot().forwarded, 0);
}

#[test]
fn contradictory_config_is_refused() {
    let named = Intercepted {
        destinations: vec!["*.example.com:443".parse().unwrap()],
        local_output: false,
        port: 0,
    };
    let delivery = DeliveryPolicy {
        remote: hop("127.0.0.1:7001".parse().unwrap(), 4).into(),
        relays: Vec::new().into(),
        carriage: Carriage::DIRECT,
        max_loss: None,
        copies: None,
        assumed: Assumed::default(),
    };
    let near = NodeConfig {
        grant: Some(grant(identity(1).public(), "127.0.0.0/8:*")),
        paths: vec![Path { source: TrafficSource::Intercepted(named), delivery }],
        ..plain(1, loopback(), &[])
    };
    let error = Node::start(near).unwrap_err();
    assert_eq!(error.to_string(), "tproxy.destinations: expected ranges of addresses");
    let error = Node::start(NodeConfig { workers: 0, ..plain(1, loopback(), &[]) }).unwrap_err();
    assert_eq!(error.to_string(), "workers: expected 1 to 1024 threads");
    let hop = r#"remote = { address = "192.0.2.9:7001", identity = "IDENTITY" }"#
        .replace("IDENTITY", &identity(4).public().to_string());
    let refused = |text: &str| {
        let section = format!("{text}\n{hop}").parse::<toml::Table>().unwrap();
        let config = of_gateway(&[section.into()], None, identity(1), None);
        config.and_then(Node::start).unwrap_err().to_string()
    };
    for text in [
        "to = '10.0.0.7:5004'",
        "listen = '127.0.0.1:0'\nto = '10.0.0.7:5004'\ntproxy = { destinations = ['10.0.0.0/8:*'] \
         }",
    ] {
        assert_eq!(refused(text), "packet[0]: expected `listen` and `to`, or `tproxy`, or `tun`");
    }
    assert_eq!(
        refused("tproxy = { destinations = ['10.0.0.0/8:*'] }"),
        "grant: missing: expected one for packets to be sent (`tradewind grant issue`)"
    );
    let narrow = vec!["10.0.0.0/8:443".parse().unwrap()];
    let tunnel = Some(Tunnel { name: "tw0".into(), destinations: narrow, mtu: None });
    let error = Node::start(NodeConfig { tunnel, ..plain(1, loopback(), &[]) }).unwrap_err();
    let expected = "expected ranges of addresses with all ports, as `10.2.0.0/16:*`";
    assert_eq!(error.to_string(), format!("tun: {expected}"));
    let coding = Coding { repairs: 9, ..Coding::default() };
    let services = RelayServices { coding, ..RelayServices::default() };
    let relay = NodeConfig { services, ..plain(1, loopback(), &[]) };
    let error = Node::start(relay).unwrap_err();
    assert_eq!(error.to_string(), "coding: expected 1 to 8 repair packets for 1 to 32 packets");
}

#[test]
fn workers_report_thread_and_counts() {
    let node = Node::start(NodeConfig { workers: 2, ..plain(2, loopback(), &[]) }).unwrap();
    let name = |thread| std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap();
    let names: Vec<_> = node.workers().iter().map(|worker| name(worker.thread)).collect();
    assert_eq!(names, ["packets-0\n", "packets-1\n"]);
    // The kernel gives one worker all datagrams from one port.
    let unknown = UdpSocket::bind(loopback()).unwrap();
    for _ in 0..10 {
        unknown.send_to(b"who is there?", node.address()).unwrap();
    }
    let begun = Instant::now();
    while node.snapshot().received < 10 {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", node.snapshot());
    }
    let received: Vec<u64> = node.workers().iter().map(|worker| worker.counts.received).collect();
    assert!(received == [10, 0] || received == [0, 10], "{received:?}");
}
