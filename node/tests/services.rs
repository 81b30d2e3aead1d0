//! Caching and coding between unmodified UDP applications over loopback: chosen datagrams of the Internet path are lost, and come back.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nodes::wire::Wire;
use nodes::*;
use tradewind_node::status::Direction;
use tradewind_node::{Course, Entrance, Node, NodeConfig, Path, RelayServices};
use tradewind_packet::ingress::{Coding, InStream};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_units::{PricePerGb, Ratio};

/// Between two packets of a flow.
const GAP: Duration = Duration::from_millis(4);

/// A receiving gateway behind its wire, with the application behind it, and one that sends to it through the near gateway.
struct Side {
    far: Node,
    wire: Wire,
    sink: Arc<Mutex<BTreeSet<u64>>>,
    application: UdpSocket,
}

struct World {
    near: Node,
    relays: Vec<Node>,
    sides: Vec<Side>,
}

/// An application that remembers the numbers of the packets that came, and answers each with its number.
fn sink() -> (SocketAddr, Arc<Mutex<BTreeSet<u64>>>) {
    let socket = UdpSocket::bind(loopback()).unwrap();
    let (address, numbers) = (socket.local_addr().unwrap(), Arc::default());
    let kept: Arc<Mutex<BTreeSet<u64>>> = Arc::clone(&numbers);
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let number = u64::from_be_bytes(buffer[..8].try_into().unwrap());
            assert!(kept.lock().unwrap().insert(number), "{number} came twice");
            let _ = socket.send_to(&buffer[..length.min(8)], from);
        }
    });
    (address, numbers)
}

/// One near gateway, `relays` relays, and `sides` far gateways.
fn world(service: Service, relays: usize, sides: u8, services: RelayServices) -> World {
    let carriage = Carriage { service, paths: Paths::Both, budget_ms: 3000 };
    world_of(carriage, None, Duration::ZERO, (relays, sides), services)
}

/// The same, where the service may be chosen while it runs, and the Internet may be slow.
fn world_of(
    carriage: Carriage,
    bearable_loss: Option<Ratio>,
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
    let mut behind = Vec::new();
    let mut paths = Vec::new();
    for side in 0..sides {
        let far = Node::start(plain(10 + side, loopback(), &[2, 3])).unwrap();
        let fast = relays.iter().map(Node::address).collect();
        let wire = Wire::slow(far.address(), delay, fast);
        let (to, sink) = sink();
        paths.push(Path {
            entrance: Entrance::Port { listen: loopback(), to },
            course: Course {
                far: hop(wire.address, 10 + side).into(),
                relays: relays
                    .iter()
                    .zip(2..)
                    .map(|(node, number)| hop(node.address(), number))
                    .collect::<Vec<_>>()
                    .into(),
                carriage,
                bearable_loss,
                copies: None,
            },
        });
        behind.push((far, wire, sink));
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
        .map(|((far, wire, sink), address)| {
            let application = UdpSocket::bind(loopback()).unwrap();
            application.connect(address).unwrap();
            application.set_nonblocking(true).unwrap();
            Side { far, wire, sink, application }
        })
        .collect();
    World { near, relays, sides }
}

impl Side {
    fn send(&self, number: u64) {
        let mut packet = [7; 1000];
        packet[..8].copy_from_slice(&number.to_be_bytes());
        self.application.send(&packet).unwrap();
    }

    fn has_of(&self, numbers: std::ops::Range<u64>) -> u64 {
        self.sink.lock().unwrap().range(numbers).count() as u64
    }
}

impl World {
    /// Sends on all sides until what the path over the relays should show holds; returns the next number.
    fn warm(&self, first: u64, holds: impl Fn(&Self) -> bool) -> u64 {
        let begun = Instant::now();
        let mut number = first;
        while !holds(self) {
            assert!(begun.elapsed() < PATIENCE, "the services did not begin:\n{}", self.told());
            self.send(number);
            number += 1;
        }
        number
    }

    fn send(&self, number: u64) {
        self.sides.iter().for_each(|side| side.send(number));
        std::thread::sleep(GAP);
    }

    /// Waits for what must come, and goes on sending numbers from `next` on: a flow that ends is another matter.
    fn until(&self, what: &str, next: &mut u64, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < PATIENCE, "{what} did not come:\n{}", self.told());
            self.send(*next);
            *next += 1;
        }
    }

    fn told(&self) -> String {
        let nodes = [&self.near].into_iter().chain(&self.relays);
        let nodes = nodes.chain(self.sides.iter().map(|side| &side.far));
        nodes.map(|node| format!("{:?}\n", node.snapshot())).collect()
    }

    /// Loses every `each`th packet on the way to the first side, of 200; but for `most_missing` they come: on a busy machine a relay may
    /// have its turn later than a receiver asks for the last time.
    fn lose_and_recover(&self, mut next: u64, each: usize, most_missing: u64) {
        let (first, side) = (next, &self.sides[0]);
        side.wire.lose_each(self.near.address(), each);
        while next < first + 200 {
            self.send(next);
            next += 1;
        }
        side.wire.lose_each(self.near.address(), 0);
        assert!(side.wire.lost() >= 200 / each - 1, "{} lost", side.wire.lost());
        self.until("the packets", &mut next, |world| {
            world.sides.iter().all(|side| side.has_of(first..first + 200) + most_missing >= 200)
        });
    }
}

#[test]
fn a_cached_packet_is_pulled_from_the_relay_near_its_receiver() {
    let world = world(Service::Caching, 2, 1, RelayServices::default());
    let next = world.warm(0, |world| world.relays[1].snapshot().kept > 20);
    world.lose_and_recover(next, 5, 4);
    let far = world.sides[0].far.snapshot();
    assert!(far.recovered_cache >= 30, "{}", world.told());
}

#[test]
fn one_relay_is_ingress_and_egress_relay_at_once() {
    let world = world(Service::Caching, 1, 1, RelayServices::default());
    let next = world.warm(0, |world| world.relays[0].snapshot().kept > 20);
    world.lose_and_recover(next, 5, 4);
    assert!(world.sides[0].far.snapshot().recovered_cache >= 30, "{}", world.told());
}

#[test]
fn a_coded_packet_is_solved_for_with_what_other_receivers_lend() {
    let coding = Coding { packets: 3, repairs: 2, ..Coding::default() };
    let services = RelayServices { coding, in_stream: None, ..RelayServices::default() };
    let world = world(Service::Coding, 2, 3, services);
    let next = world.warm(0, |world| world.relays[0].snapshot().repairs > 20);
    // On a busy machine helpers may ask for what they are to lend: then that block is not solved.
    world.lose_and_recover(next, 5, 15);
    let [first, second, third] = [0, 1, 2].map(|side| world.sides[side].far.snapshot());
    assert!(first.recovered_cross_stream >= 20, "{}", world.told());
    assert!(second.lent + third.lent >= 20, "{}", world.told());
    assert_eq!(first.recovered_in_stream, 0, "{}", world.told());
}

#[test]
fn a_flow_alone_is_solved_for_with_its_own_packets() {
    // One repair packet more than losses: on a busy machine one more packet may be asked for before it comes.
    let in_stream = Some(InStream { packets: 5, repairs: 2 });
    let world =
        world(Service::Coding, 2, 1, RelayServices { in_stream, ..RelayServices::default() });
    let next = world.warm(0, |world| world.relays[0].snapshot().repairs > 20);
    world.lose_and_recover(next, 10, 8);
    assert!(world.sides[0].far.snapshot().recovered_in_stream >= 10, "{}", world.told());
}

#[test]
fn replies_come_back_over_the_same_services() {
    let world = world(Service::Caching, 2, 1, RelayServices::default());
    // What the far gateway sends is kept at the first relay, which is near the receiver of replies.
    world.warm(0, |world| world.relays[0].snapshot().kept > 20);
    assert!(world.sides[0].far.snapshot().copied > 20);
}

#[test]
fn a_relay_that_dies_leaves_the_internet_path_alone_and_recovery_comes_back_with_it() {
    let mut world = world(Service::Caching, 2, 1, RelayServices::default());
    let mut next = world.warm(0, |world| world.relays[1].snapshot().kept > 20);
    for place in [0, 1] {
        let relay = world.relays.remove(place);
        let (address, first) = (relay.address(), next);
        drop(relay);
        while next < first + 300 {
            world.send(next);
            next += 1;
        }
        world.until("packets over the Internet", &mut next, |world| {
            world.sides[0].has_of(first..first + 300) == 300
        });
        let number = 2 + u8::try_from(place).unwrap();
        world.relays.insert(place, Node::start(plain(number, address, &[2])).unwrap());
        let kept = world.relays[1].snapshot().kept;
        world.until("the services", &mut next, |world| world.relays[1].snapshot().kept > kept + 20);
        let before = world.sides[0].far.snapshot().recovered_cache;
        world.sides[0].wire.lose_each(world.near.address(), 5);
        world.until("recovery", &mut next, |world| {
            world.sides[0].far.snapshot().recovered_cache > before + 10
        });
        world.sides[0].wire.lose_each(world.near.address(), 0);
    }
}

#[test]
fn forged_and_replayed_requests_change_nothing_at_the_relay() {
    let world = world(Service::Caching, 2, 1, RelayServices::default());
    let mut next = world.warm(0, |world| world.relays[1].snapshot().kept > 20);
    let wire = &world.sides[0].wire;
    wire.lose_each(world.near.address(), 5);
    world.until("requests", &mut next, |world| world.relays[1].snapshot().answered > 20);
    wire.lose_each(world.near.address(), 0);
    // Until what was asked for has been answered.
    let first = next;
    world.until("quiet", &mut next, |world| world.sides[0].has_of(first..first + 100) == 100);
    let said = wire.weather.lock().unwrap().back.clone();
    let relay = world.relays[1].address();
    let is_sealed = |datagram: &[u8]| [0x14, 0x15].contains(&datagram[0]);
    let said: Vec<_> =
        said.iter().filter(|(to, datagram)| *to == relay && is_sealed(datagram)).collect();
    assert!(said.len() > 20, "{} datagrams", said.len());
    let before = world.relays[1].snapshot();
    for (to, datagram) in &said {
        wire.inject(*to, datagram);
        let mut forged = datagram.clone();
        *forged.last_mut().unwrap() ^= 1;
        wire.inject(*to, &forged);
    }
    let count = said.len() as u64;
    world.until("the relay's refusal", &mut next, |world| {
        let after = world.relays[1].snapshot();
        after.duplicates >= before.duplicates + count && after.dropped >= before.dropped + count
    });
    // What was answered, the receiver itself has asked for; it may have asked more since.
    let asked = world.sides[0].far.snapshot().asked;
    assert!(world.relays[1].snapshot().answered <= asked, "{}", world.told());
}

#[test]
fn the_status_tells_what_was_recovered_by_what_and_what_it_costs() {
    let usd = |usd| PricePerGb::from_usd_per_gb(usd).unwrap();
    let services =
        RelayServices { to_relays: usd(0.02), to_endpoints: usd(0.09), ..RelayServices::default() };
    let world = world(Service::Caching, 2, 1, services);
    let next = world.warm(0, |world| world.relays[1].snapshot().kept > 20);
    world.lose_and_recover(next, 5, 4);
    let mut next = next + 10_000;
    world.until("the report", &mut next, |world| {
        let sent = &world.near.report().flows[0];
        sent.service == "caching"
            && sent.fared.unwrap().recovered_cache >= 30
            && sent.billed.is_some_and(|billed| billed.bytes > 200_000 && billed.usd > 0.0)
    });
    let report = world.near.report();
    let [sent, received] = &report.flows[..] else { panic!("{report:?}") };
    assert_eq!((sent.direction, received.direction), (Direction::Sent, Direction::Received));
    assert_eq!(sent.listen, Some(world.near.local_addresses()[0]));
    assert!(sent.copies > 200 && sent.packets >= sent.copies - sent.resent, "{sent:?}");
    // What cost nothing but the way between the relays is dearer than 0.02 and cheaper than 0.09 dollars a GB.
    let billed = sent.billed.unwrap();
    let per_gb = billed.usd / billed.bytes as f64 * 1e9;
    assert!((0.02..0.09).contains(&per_gb), "{per_gb}");
    // Each node writes its report once a second, so this one may tell of an earlier time than the other.
    world.until("the far side's report", &mut next, |world| {
        let far = world.sides[0].far.report();
        let mut came = far.flows.iter().filter(|flow| flow.direction == Direction::Received);
        came.any(|flow| flow.fared.is_some_and(|fared| fared.recovered_cache >= 30))
    });
}

#[test]
fn a_service_is_bought_when_the_internet_loses_too_much_and_not_before() {
    let carriage = Carriage { budget_ms: 3000, ..Carriage::DIRECT };
    let bearable = Ratio::new(0.05).unwrap();
    let world =
        world_of(carriage, Some(bearable), Duration::ZERO, (2, 1), RelayServices::default());
    let service = |world: &World| world.near.report().flows[0].service.clone();
    let why = |world: &World| world.near.report().flows[0].why.clone();
    let mut next = 0;
    world.until("the measurement of the paths", &mut next, |world| {
        !world.near.report().flows.is_empty() && why(world) == "the cheapest within its budget"
    });
    assert_eq!(service(&world), "direct");
    assert_eq!(world.near.snapshot().copied, 0, "{}", world.told());
    world.sides[0].wire.lose_each(world.near.address(), 4);
    world.until("coding", &mut next, |world| service(world) == "coding");
    assert_eq!(why(&world), "a cheaper one lost too much or came late");
    world.until("recovery", &mut next, |world| {
        world.sides[0].far.snapshot().recovered_in_stream > 20
    });
}

#[test]
fn a_flow_for_which_the_internet_is_too_slow_is_forwarded() {
    let carriage = Carriage { budget_ms: 40, ..Carriage::DIRECT };
    let (bearable, delay) = (Ratio::new(0.05).unwrap(), Duration::from_millis(200));
    let world = world_of(carriage, Some(bearable), delay, (2, 1), RelayServices::default());
    let mut next = 0;
    world.until("forwarding", &mut next, |world| {
        let report = world.near.report();
        report.flows.first().is_some_and(|flow| flow.service == "forwarding")
    });
    // What the Internet loses has come over the relays before.
    world.sides[0].wire.lose_each(world.near.address(), 2);
    let first = next;
    world.until("the packets over the relays", &mut next, |world| {
        world.sides[0].has_of(first..first + 200) == 200
    });
    assert!(world.sides[0].wire.lost() >= 90, "{}", world.told());
}
