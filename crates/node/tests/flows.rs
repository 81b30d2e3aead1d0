//! Applications that link the crate: their flows over two endpoints and two relays on loopback,
//! each with sockets and threads of its own.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nodes::wire::Wire;
use nodes::*;
use tradewind_node::status::Direction;
use tradewind_node::{Flow, FlowError, FlowOptions, Node, NodeConfig};
use tradewind_packet::message::Service;
use tradewind_units::Ratio;

const BUDGET: Duration = Duration::from_secs(3);
/// The time between two packets.
const GAP: Duration = Duration::from_millis(4);

struct World {
    application: Node,
    relays: Vec<Node>,
    remote: Node,
    /// The Internet in front of the remote endpoint.
    wire: Wire,
    echo: SocketAddr,
}

fn world() -> World {
    let remote = Node::start(plain(4, loopback(), &[2, 3])).unwrap();
    let relays: Vec<Node> = [2, 3]
        .into_iter()
        .map(|number| Node::start(plain(number, loopback(), &[2])).unwrap())
        .collect();
    let wire = Wire::to(remote.address());
    let grant = grant(identity(1).public(), "127.0.0.0/8:*");
    let config = NodeConfig::of_application(identity(1), grant);
    let application = Node::start(NodeConfig { listen: loopback(), ..config }).unwrap();
    World { application, relays, remote, wire, echo: echo() }
}

impl World {
    fn options(&self) -> FlowOptions {
        let relays = self.relays.iter().zip(2..);
        let relays = relays.map(|(relay, number)| hop(relay.address(), number)).collect::<Vec<_>>();
        FlowOptions {
            max_loss: Ratio::new(0.05).unwrap(),
            ..FlowOptions::new(hop(self.wire.address, 4), relays)
        }
    }

    fn register(&self, options: FlowOptions) -> Flow {
        let flow = self.application.register(self.echo, BUDGET, options).unwrap();
        assert!(flow.wait_open(TEST_TIMEOUT).unwrap(), "{}", self.describe());
        flow
    }

    fn describe(&self) -> String {
        let nodes = [&self.application, &self.remote].into_iter().chain(&self.relays);
        nodes.map(|node| format!("{:?}\n", node.snapshot())).collect()
    }

    /// Sends numbers from `next` on, and receives the replies, until `holds`.
    fn until(&self, what: &str, flow: &Flow, talk: &mut Talk, holds: impl Fn(&Talk) -> bool) {
        let begun = Instant::now();
        while !holds(talk) {
            assert!(begun.elapsed() < TEST_TIMEOUT, "{what} did not come:\n{}", self.describe());
            talk.exchange(flow);
        }
    }
}

/// The packets sent over a flow, and the replies.
#[derive(Default)]
struct Talk {
    next: u64,
    came: BTreeSet<u64>,
}

impl Talk {
    /// Sends one packet and receives the replies: the same bytes, each once, in any order.
    fn exchange(&mut self, flow: &Flow) {
        flow.send(&packet(self.next)).unwrap();
        self.next += 1;
        std::thread::sleep(GAP);
        while let Some(datagram) = flow.receive(Duration::ZERO).unwrap() {
            let number = u64::from_be_bytes(datagram[..8].try_into().unwrap());
            assert_eq!(datagram, packet(number));
            assert!(self.came.insert(number), "{number} came twice");
        }
    }

    fn has(&self, numbers: std::ops::Range<u64>) -> usize {
        self.came.range(numbers).count()
    }
}

/// Returns a packet: its number, then bytes that depend on it.
fn packet(number: u64) -> Vec<u8> {
    let length = 1000 + number as usize % 100;
    let body = (8..length).map(|at| (at as u64 ^ number) as u8);
    number.to_be_bytes().into_iter().chain(body).collect()
}

fn service(flow: &Flow) -> Option<(String, String)> {
    flow.status(Direction::Sent).map(|status| (status.service, status.why))
}

#[test]
fn flow_buys_service_on_loss() {
    let world = world();
    let flow = world.register(world.options());
    let mut talk = Talk::default();
    let is = |name: &str, why: &str| service(&flow) == Some((name.to_owned(), why.to_owned()));
    world.until("the measurement of the paths", &flow, &mut talk, |_| {
        is("direct", "the cheapest within its budget")
    });
    world.wire.lose_each(world.application.address(), 4);
    world.until("coding", &flow, &mut talk, |_| is("coding", "another lost too much or came late"));
    world.until("recovery", &flow, &mut talk, |_| {
        flow.status(Direction::Sent).unwrap().statistics.unwrap().recovered_in_stream > 20
    });
    // Recovered packets were lost on the Internet nevertheless.
    let congestion = flow.congestion().unwrap();
    assert!(
        congestion.lost_by_internet > 20 && congestion.expected > congestion.lost_by_internet,
        "{congestion:?}"
    );
    assert!(congestion.share.is_some_and(|share| share.as_f64() > 0.05), "{congestion:?}");
    world.until("the bill", &flow, &mut talk, |_| {
        let billed = flow.status(Direction::Sent).unwrap().billed;
        billed.is_some_and(|billed| billed.bytes > 10_000)
    });
    // Replies are numbered, too.
    let received = flow.status(Direction::Received).unwrap();
    assert!(received.statistics.unwrap().in_time > 20, "{received:?}");
}

#[test]
fn cached_flow_recovers_losses() {
    let world = world();
    let flow = world.register(FlowOptions { service: Some(Service::Caching), ..world.options() });
    let mut talk = Talk::default();
    world.until("copies", &flow, &mut talk, |_| world.relays[1].snapshot().cached > 20);
    world.wire.lose_each(world.application.address(), 5);
    let first = talk.next;
    world.until("200 packets", &flow, &mut talk, |talk| talk.next >= first + 200);
    world.wire.lose_each(world.application.address(), 0);
    assert!(world.wire.lost() >= 39, "{} lost", world.wire.lost());
    // On a busy machine a relay may run later than a receiver's last request: that is reported, and
    // nothing else is missing.
    world.until("what was lost", &flow, &mut talk, |talk| {
        let given_up = world.remote.snapshot().lost + world.application.snapshot().lost;
        talk.has(first..first + 200) as u64 + given_up >= 200
    });
    assert!(world.remote.snapshot().recovered_cache >= 30, "{}", world.describe());
}

/// Packets out of order are not lost: no congestion is reported, and no packet is requested again.
#[test]
fn tenth_of_packets_25_ms_late_is_no_loss() {
    let world = world();
    let flow = world.register(FlowOptions { service: Some(Service::Caching), ..world.options() });
    let mut talk = Talk::default();
    world.until("copies", &flow, &mut talk, |_| world.relays[1].snapshot().cached > 20);
    let late = Duration::from_millis(25);
    world.wire.delay_each(world.application.address(), 10, late);
    let first = talk.next;
    // The first ones train the loss detection; reports come each second.
    world.until("late packets", &flow, &mut talk, |talk| talk.next >= first + 300);
    let before = flow.congestion().unwrap();
    world.until("reports", &flow, &mut talk, |_| {
        flow.congestion().is_some_and(|congestion| congestion.expected > before.expected + 500)
    });
    let congestion = flow.congestion().unwrap();
    let lost = congestion.lost_by_internet - before.lost_by_internet;
    let expected = congestion.expected - before.expected;
    assert!(lost * 20 <= expected, "{lost} of {expected}: {}", world.describe());
}

#[test]
fn flow_is_direct_while_relays_are_down() {
    let mut world = world();
    let flow =
        world.register(FlowOptions { service: Some(Service::Forwarding), ..world.options() });
    let mut talk = Talk::default();
    world.until("packets over relays", &flow, &mut talk, |_| {
        world.relays.iter().all(|relay| relay.snapshot().forwarded > 10)
    });
    world.relays.clear();
    let first = talk.next;
    world.until("packets over the Internet", &flow, &mut talk, |talk| {
        talk.has(first..talk.next) >= 200
    });
    world.until("the reason", &flow, &mut talk, |_| {
        service(&flow).unwrap()
            == ("direct".into(), "the path over the relays does not answer".into())
    });
    let congestion = flow.congestion().unwrap();
    assert!(congestion.expected > 200, "packets that are forwarded are numbered: {congestion:?}");
}

#[test]
fn flows_share_one_path() {
    let world = world();
    let lasting = world.register(world.options());
    for _ in 0..20 {
        let flow = world.register(world.options());
        let mut talk = Talk::default();
        world.until("an answer", &flow, &mut talk, |talk| talk.has(0..talk.next) > 0);
    }
    let mut talk = Talk::default();
    world.until("answers", &lasting, &mut talk, |talk| talk.has(0..talk.next) > 20);
    // In the report there is one that is sent, and one that is received; the others have ended.
    world.until("the others' end", &lasting, &mut talk, |_| {
        world.application.report().flows.len() == 2
    });
}

#[test]
fn node_end_wakes_flow_waiters() {
    let world = world();
    let flow = world.register(world.options());
    let application = world.application;
    let waits = std::thread::spawn(move || (flow.receive(TEST_TIMEOUT), flow.send(b"x"), flow));
    drop(application);
    let ended = FlowError::Ended("its node has ended");
    let (received, sent, flow) = waits.join().unwrap();
    assert_eq!((received, sent), (Err(ended), Err(ended)));
    assert_eq!(flow.wait_open(Duration::ZERO), Err(ended));
}

#[test]
fn contradictory_options_are_refused() {
    let world = world();
    let refused = |options, budget| {
        let outcome = world.application.register(world.echo, budget, options);
        outcome.err().map(|error| error.to_string())
    };
    let options = world.options();
    assert_eq!(
        refused(options.clone(), Duration::ZERO).unwrap(),
        "budget: missing; `service = \"auto\"` chooses by it"
    );
    assert_eq!(
        refused(options.clone(), Duration::from_secs(100)).unwrap(),
        "budget: expected at most 65 s"
    );
    let caching =
        FlowOptions { service: Some(Service::Caching), relays: Vec::new().into(), ..options };
    assert_eq!(
        refused(caching, BUDGET).unwrap(),
        "relays: missing; expected at least one, or `service = \"direct\"`"
    );
    let outcome = world.remote.register(world.echo, BUDGET, world.options());
    assert_eq!(outcome.unwrap_err().to_string(), "grant: missing, and there are flows");
    let flow = world.register(world.options());
    assert_eq!(flow.send(&[0; 65_508]), Err(FlowError::TooLong(65_508)));
}
