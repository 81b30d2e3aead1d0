//! A local gateway, relays and remote gateways behind wires, with an application at each end:
//! packets of one or more flows between them.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tradewind_grant::Hop;
use tradewind_node::{
    Assumed, DeliveryPolicy, Node, NodeConfig, Path, RelayServices, TrafficSource,
};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_units::Ratio;

use super::wire::Wire;
use super::*;

/// The time between two packets of a flow.
pub const GAP: Duration = Duration::from_millis(4);

/// A receiving gateway behind its wire, with the application behind it, and one that sends to it
/// through the local gateway.
pub struct Side {
    pub remote: Node,
    pub wire: Wire,
    pub sink: Arc<Mutex<BTreeSet<u64>>>,
    pub application: UdpSocket,
}

pub struct World {
    pub near: Node,
    pub relays: Vec<Node>,
    pub sides: Vec<Side>,
}

/// Starts an application that remembers the numbers of the packets that came, and replies to each
/// with its number.
pub fn sink() -> (SocketAddr, Arc<Mutex<BTreeSet<u64>>>) {
    let socket = UdpSocket::bind(application()).unwrap();
    let (address, numbers) = (socket.local_addr().unwrap(), Arc::default());
    let received: Arc<Mutex<BTreeSet<u64>>> = Arc::clone(&numbers);
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let number = u64::from_be_bytes(buffer[..8].try_into().unwrap());
            assert!(received.lock().unwrap().insert(number), "{number} came twice");
            let _ = socket.send_to(&buffer[..length.min(8)], from);
        }
    });
    (address, numbers)
}

/// Returns one local gateway, `relays` relays, and `sides` remote gateways.
pub fn world(service: Service, relays: usize, sides: u8, services: RelayServices) -> World {
    let carriage =
        Carriage { service, paths: Paths::Both, budget_ms: 3000, in_order: false, fragment: false };
    world_of(carriage, None, Duration::ZERO, (relays, sides), services)
}

/// Returns one local gateway, two relays, the first of them behind a wire that delays everything by
/// `delay`, and a remote gateway.
pub fn world_with_a_slow_relay(service: Service, delay: Duration) -> World {
    let carriage =
        Carriage { service, paths: Paths::Both, budget_ms: 3000, in_order: false, fragment: false };
    let slow = |node| Wire::slow(node, delay, Vec::new()).address;
    let shape = (2, 1);
    world_through(slow, carriage, None, Duration::ZERO, shape, RelayServices::default())
}

/// Does the same, where the service may be chosen while it runs, and the Internet may be slow.
pub fn world_of(
    carriage: Carriage,
    max_loss: Option<Ratio>,
    delay: Duration,
    shape: (usize, u8),
    services: RelayServices,
) -> World {
    world_through(|node| node, carriage, max_loss, delay, shape, services)
}

/// Does the same, where the first relay is reached at another address.
fn world_through(
    first_at: impl Fn(SocketAddr) -> SocketAddr,
    carriage: Carriage,
    max_loss: Option<Ratio>,
    delay: Duration,
    (relays, sides): (usize, u8),
    services: RelayServices,
) -> World {
    let relays: Vec<Node> = (2..4)
        .take(relays)
        .map(|number| {
            Node::start(NodeConfig { services, ..plain(number, loopback(), &[2]) }).unwrap()
        })
        .collect();
    let mut hops: Vec<Hop> =
        relays.iter().zip(2..).map(|(node, number)| hop(node.address(), number)).collect();
    if let Some(first) = hops.first_mut() {
        first.address = first_at(first.address);
    }
    let mut behind = Vec::new();
    let mut paths = Vec::new();
    for side in 0..sides {
        let remote = Node::start(plain(10 + side, loopback(), &[2, 3])).unwrap();
        let fast = relays.iter().map(Node::address).collect();
        let wire = Wire::slow(remote.address(), delay, fast);
        let (to, sink) = sink();
        paths.push(Path {
            source: TrafficSource::Port { listen: loopback(), to },
            delivery: DeliveryPolicy {
                remote: hop(wire.address, 10 + side).into(),
                relays: hops.clone().into(),
                carriage,
                max_loss,
                copies: None,
                assumed: Assumed::default(),
            },
        });
        behind.push((remote, wire, sink));
    }
    let near = NodeConfig {
        grant: Some(grant(identity(1).public(), "127.0.0.0/8:*")),
        paths,
        ..plain(1, loopback(), &[])
    };
    let near = Node::start(near).unwrap();
    let sides = behind
        .into_iter()
        .zip(near.local_addresses())
        .map(|((remote, wire, sink), address)| {
            let application = UdpSocket::bind(loopback()).unwrap();
            application.connect(address).unwrap();
            application.set_nonblocking(true).unwrap();
            Side { remote, wire, sink, application }
        })
        .collect();
    World { near, relays, sides }
}

impl Side {
    pub fn send(&self, number: u64) {
        let mut packet = [7; 1000];
        packet[..8].copy_from_slice(&number.to_be_bytes());
        self.application.send(&packet).unwrap();
    }

    pub fn has_of(&self, numbers: std::ops::Range<u64>) -> u64 {
        self.sink.lock().unwrap().range(numbers).count() as u64
    }
}

impl World {
    /// Sends on all sides until the expected state of the overlay path holds; returns the next
    /// number.
    pub fn warm(&self, first: u64, holds: impl Fn(&Self) -> bool) -> u64 {
        let begun = Instant::now();
        let mut number = first;
        // Packets sent to a side before its sessions are open are refused, and would be missed
        // later.
        while !holds(self) || self.sides.iter().any(|side| side.has_of(0..u64::MAX) == 0) {
            assert!(
                begun.elapsed() < TEST_TIMEOUT,
                "the services did not begin:\n{}",
                self.describe()
            );
            self.send(number);
            number += 1;
        }
        number
    }

    pub fn send(&self, number: u64) {
        self.sides.iter().for_each(|side| side.send(number));
        std::thread::sleep(GAP);
    }

    /// Waits until a condition holds, and goes on sending numbers from `next` on, since the flow
    /// must not end.
    pub fn until(&self, what: &str, next: &mut u64, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < TEST_TIMEOUT, "{what} did not come:\n{}", self.describe());
            self.send(*next);
            *next += 1;
        }
    }

    pub fn describe(&self) -> String {
        let nodes = [&self.near].into_iter().chain(&self.relays);
        let nodes = nodes.chain(self.sides.iter().map(|side| &side.remote));
        nodes.map(|node| format!("{:?}\n", node.snapshot())).collect()
    }

    /// Loses every `each`th of 200 packets to the first side; all but `most_missing` must arrive:
    /// on a busy machine a relay may run later than a receiver's last request.
    pub fn lose_and_recover(&self, mut next: u64, each: usize, most_missing: u64) {
        let (first, side) = (next, &self.sides[0]);
        side.wire.lose_each(self.near.address(), each);
        while next < first + 200 {
            self.send(next);
            next += 1;
        }
        // The wire may run later than the senders.
        self.until("losses", &mut next, |_| side.wire.lost() >= 200 / each - 1);
        side.wire.lose_each(self.near.address(), 0);
        self.until("the packets", &mut next, |world| {
            world.sides.iter().all(|side| side.has_of(first..first + 200) + most_missing >= 200)
        });
    }
}
