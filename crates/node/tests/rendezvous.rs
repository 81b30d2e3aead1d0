//! The rendezvous on loopback: packets wait at a relay until their receiver is online, even if
//! their sender no longer is.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nodes::wire::Wire;
use nodes::*;
use tradewind_grant::{OperatorKey, SignedGrant};
use tradewind_node::{Node, NodeConfig, NodeError, RelayServices};
use tradewind_packet::rendezvous::MessageStoreConfig;
use tradewind_units::Bytes;

/// An application that remembers the numbers of packets in the order in which they came.
#[derive(Clone)]
struct Sink {
    address: SocketAddr,
    numbers: Arc<Mutex<Vec<u64>>>,
}

impl Sink {
    fn new() -> Self {
        let socket = UdpSocket::bind(application()).unwrap();
        let (address, numbers) = (socket.local_addr().unwrap(), Arc::default());
        let sink = Self { address, numbers };
        let received = Arc::clone(&sink.numbers);
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((_, _)) = socket.recv_from(&mut buffer) {
                let number = u64::from_be_bytes(buffer[..8].try_into().unwrap());
                received.lock().unwrap().push(number);
            }
        });
        sink
    }

    fn numbers(&self) -> Vec<u64> {
        self.numbers.lock().unwrap().clone()
    }

    fn has(&self, wanted: Range<u64>) -> bool {
        self.numbers() == wanted.collect::<Vec<_>>()
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{what} did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const KEPT: MessageStoreConfig = MessageStoreConfig {
    bytes: Bytes::new(10_000_000),
    per_sender: Bytes::new(5_000_000),
    keep: Duration::from_secs(3600),
};

/// Returns a relay where packets wait. The sessions of sender and receiver may be on different
/// threads.
fn relay(listen: SocketAddr, store: Option<MessageStoreConfig>) -> Node {
    let services = RelayServices { rendezvous: store, ..RelayServices::default() };
    Node::start(NodeConfig { services, workers: 2, ..plain(2, listen, &[]) }).unwrap()
}

fn at_relay(address: SocketAddr) -> String {
    format!("{{ address = '{address}', identity = '{}' }}", identity(2).public())
}

fn section(to: SocketAddr, relay: SocketAddr, more: &str) -> String {
    format!(
        "listen = '127.0.0.1:0'\nto = '{to}'\nremote = {{ identity = '{}' }}\nrelays = [{}]\n\
         service = 'rendezvous'\n{more}",
        identity(4).public(),
        at_relay(relay)
    )
}

fn sending(packet: &str) -> Result<NodeConfig, NodeError> {
    let packet: toml::Table = packet.parse().unwrap();
    let grant = Some(grant(identity(1).public(), "127.0.0.0/8:*"));
    of_gateway(&[packet.into()], None, identity(1), grant)
}

/// A gateway that deposits packets at a relay, and an application in front of it.
struct Sender {
    node: Node,
    application: UdpSocket,
}

impl Sender {
    fn new(to: SocketAddr, relay: SocketAddr) -> Self {
        Self::of(sending(&section(to, relay, "keep = '1 min'")).unwrap())
    }

    fn of(config: NodeConfig) -> Self {
        let node = Node::start(config).unwrap();
        let application = UdpSocket::bind(loopback()).unwrap();
        application.connect(node.local_addresses()[0]).unwrap();
        Self { node, application }
    }

    /// Writes fewer at a time than the buffer of an application's socket holds.
    fn write(&self, numbers: Range<u64>) {
        for number in numbers {
            let mut packet = [0; 1000];
            packet[..8].copy_from_slice(&number.to_be_bytes());
            self.application.send(&packet).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn until_deposited(&self, packets: u64) {
        until("acknowledgements", || self.node.snapshot().deposited == packets);
    }
}

/// Returns a gateway whose packets wait at a relay, which delivers to `destinations`.
fn receiver(number: u8, relay: SocketAddr, grant: SignedGrant, destinations: &str) -> Node {
    let endpoint = format!(
        "listen = '127.0.0.1:0'\noperators = ['{}']\ndestinations = \
         ['{destinations}']\nallow_loopback = true\nrendezvous = [{}]",
        operator().public(),
        at_relay(relay)
    );
    let endpoint: toml::Table = endpoint.parse().unwrap();
    let grant = Some(grant);
    let config = of_gateway(&[], Some(&endpoint.into()), identity(number), grant);
    Node::start(config.unwrap()).unwrap()
}

fn owner(relay: SocketAddr) -> Node {
    receiver(4, relay, own_grant(4), "127.0.0.0/8:*")
}

fn own_grant(number: u8) -> SignedGrant {
    grant(identity(number).public(), "127.0.0.0/8:*")
}

#[test]
fn stored_packets_reach_later_receiver() {
    let (sink, relay) = (Sink::new(), relay(loopback(), Some(KEPT)));
    let sender = Sender::new(sink.address, relay.address());
    sender.write(0..80);
    sender.until_deposited(80);
    drop(sender);
    let receiver = owner(relay.address());
    until("the packets", || sink.numbers().len() >= 80);
    until("the receiver's word", || relay.snapshot().collected == 80);
    assert!(sink.has(0..80), "{:?}", sink.numbers());
    assert_eq!((relay.snapshot().deposited, receiver.snapshot().delivered), (80, 80));
}

#[test]
fn packets_follow_moved_receiver() {
    let (sink, relay) = (Sink::new(), relay(loopback(), Some(KEPT)));
    let sender = Sender::new(sink.address, relay.address());
    let here = owner(relay.address());
    sender.write(0..50);
    until("the first packets", || sink.has(0..50));
    until("the receiver's word", || relay.snapshot().collected == 50);
    drop(here);
    sender.write(50..100);
    let _there = owner(relay.address());
    until("packets at the other place", || sink.has(0..100));
}

#[test]
fn receiver_is_found_by_member_id() {
    let (sink, relay) = (Sink::new(), relay(loopback(), Some(KEPT)));
    let file = format!("tradewind-rendezvous-{}.toml", std::process::id());
    let file = std::env::temp_dir().join(file);
    let berlin = identity(4).public();
    // Nobody is at that address, and it is not used.
    let endpoint_lines = "[[endpoint]]\nid = 'berlin'\naddress = '127.0.0.1:9'\n";
    std::fs::write(&file, format!("{endpoint_lines}identity = '{berlin}'\n")).unwrap();
    let by_identity = section(sink.address, relay.address(), "");
    let remote = by_identity.lines().find(|line| line.starts_with("remote")).unwrap();
    let packet: toml::Table = by_identity.replace(remote, "remote = 'berlin'").parse().unwrap();
    let endpoint = format!("members = '{}'", file.display()).parse::<toml::Table>().unwrap();
    let grant = Some(own_grant(1));
    let config = of_gateway(&[packet.into()], Some(&endpoint.into()), identity(1), grant);
    let sender = Sender::of(config.unwrap());
    until("the members", || sender.node.report().endpoints.len() == 1);
    sender.write(0..20);
    let _receiver = owner(relay.address());
    until("the packets", || sink.has(0..20));
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn access_leg_losses_are_recovered() {
    let (sink, relay) = (Sink::new(), relay(loopback(), Some(KEPT)));
    let wire = Wire::to(relay.address());
    let sender = Sender::new(sink.address, wire.address);
    let from = SocketAddr::new(loopback().ip(), sender.node.address().port());
    wire.lose_each(from, 4);
    sender.write(0..80);
    sender.until_deposited(80);
    assert!(wire.lost() > 15, "{}", wire.lost());
    let _receiver = owner(relay.address());
    until("the packets", || sink.has(0..80));
}

#[test]
fn unacknowledged_deposits_survive_relay_restart() {
    let sink = Sink::new();
    let first = relay(loopback(), Some(KEPT));
    let address = first.address();
    let sender = Sender::new(sink.address, address);
    sender.write(0..20);
    sender.until_deposited(20);
    drop(first);
    sender.write(20..60);
    let second = relay(address, Some(KEPT));
    sender.until_deposited(60);
    let _receiver = owner(second.address());
    // The first 20 were lost with the relay that had acknowledged them.
    until("the packets", || sink.has(20..60));
}

#[test]
fn unauthorized_peers_collect_nothing() {
    let (sink, relay) = (Sink::new(), relay(loopback(), Some(KEPT)));
    let sender = Sender::new(sink.address, relay.address());
    sender.write(0..20);
    sender.until_deposited(20);
    // Another endpoint with a grant, and one with the owner's identity but without a grant of this
    // operator.
    let other = receiver(5, relay.address(), own_grant(5), "127.0.0.0/8:*");
    let false_operator = OperatorKey::from_entropy([98; 32]);
    let forged = own_grant(4).unverified().clone().sign(&false_operator).unwrap();
    let liar = receiver(4, relay.address(), forged, "127.0.0.0/8:*");
    let refused = relay.snapshot().dropped;
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((other.snapshot().delivered, liar.snapshot().delivered), (0, 0));
    assert_eq!((sink.numbers(), relay.snapshot().collected), (Vec::new(), 0));
    assert!(relay.snapshot().dropped > refused);
    drop(liar);
    let _receiver = owner(relay.address());
    until("the packets", || sink.has(0..20));
}

#[test]
fn rendezvous_receiver_applies_policy() {
    let (sink, relay) = (Sink::new(), relay(loopback(), Some(KEPT)));
    let sender = Sender::new(sink.address, relay.address());
    sender.write(0..20);
    sender.until_deposited(20);
    let strict = receiver(4, relay.address(), own_grant(4), "127.0.0.0/8:9");
    until("the packets", || relay.snapshot().collected == 20);
    assert_eq!((strict.snapshot().delivered, sink.numbers()), (0, Vec::new()));
    // The header and the packets.
    until("their drops", || strict.snapshot().dropped >= 21);
}

#[test]
fn store_is_bounded_and_absence_reported() {
    let (sink, store) =
        (Sink::new(), MessageStoreConfig { per_sender: Bytes::new(100_000), ..KEPT });
    let small = relay(loopback(), Some(store));
    let sender = Sender::new(sink.address, small.address());
    sender.write(0..200);
    sender.until_deposited(200);
    until("evictions", || small.snapshot().evicted > 100);
    let _receiver = owner(small.address());
    until("the packets", || sink.numbers().last() == Some(&199));
    let numbers = sink.numbers();
    assert!(sink.has(numbers[0]..200) && (60..100).contains(&numbers.len()), "{numbers:?}");

    let none = relay(loopback(), None);
    let sender = Sender::new(sink.address, none.address());
    sender.write(0..5);
    let is_reported = || {
        let report = sender.node.report();
        report.flows.iter().any(|flow| flow.why == "the relay does not answer" && flow.packets == 5)
    };
    until("the report", is_reported);
    assert_eq!(sender.node.snapshot().deposited, 0);
    let report = sender.node.report();
    let [flow] = &report.flows[..] else { panic!("{report:?}") };
    assert_eq!((flow.service.as_str(), flow.statistics), ("rendezvous", None));
    assert_eq!((flow.to, flow.listen), (Some(sink.address), sender.application.peer_addr().ok()));
}

#[test]
fn invalid_rendezvous_is_refused() {
    let at = loopback();
    let refused = |packet: String| sending(&packet).and_then(Node::start).unwrap_err().to_string();
    assert_eq!(refused(section(at, at, "keep = '25 h'")), "packet[0].keep: expected 1 s to 24 h");
    assert_eq!(
        refused(section(at, at, "budget = '1 s'")),
        "packet[0].budget: expected only with the services `direct`, `forwarding`, `caching`, \
         `coding` or `auto`"
    );
    assert_eq!(
        refused(section(at, at, "").replace("relays = [", "relays = [] # ")),
        "packet[0].relays: expected exactly one: where packets wait"
    );
    assert_eq!(
        refused(section(at, at, "keep = '1 min'").replace("rendezvous", "caching")),
        "packet[0].keep: expected only with `service = \"rendezvous\"`"
    );
    assert_eq!(
        refused(section(at, at, "").replace("rendezvous", "caching")),
        "packet[0].remote: missing field `address`; only a rendezvous does without"
    );
    let by_id = section(at, at, "");
    let remote = by_id.lines().find(|line| line.starts_with("remote")).unwrap();
    assert_eq!(
        refused(by_id.replace(remote, "remote = 'berlin'")),
        "packet[0].remote: `berlin` is an id of `members` in [packet_endpoint], which is missing; \
         expected that, or an address and an identity"
    );
    let many = |count: u8, remote: fn(u8) -> u8| {
        let paths = (0..count).map(|number| {
            let packet = section(at, at, "");
            let (usual, remote) = (identity(4).public(), identity(remote(number)).public());
            packet.replace(&usual.to_string(), &remote.to_string()).parse::<toml::Table>().unwrap()
        });
        let paths: Vec<toml::Value> = paths.map(toml::Value::from).collect();
        let config = of_gateway(&paths, None, identity(1), Some(own_grant(1)));
        config.and_then(Node::start).map(drop)
    };
    assert!(many(16, |_| 4).is_ok());
    assert_eq!(
        many(17, |_| 4).unwrap_err().to_string(),
        "packet: expected at most 16 rendezvous with one receiver"
    );
    assert!(many(32, |number| 10 + number % 2).is_ok());
    assert_eq!(
        many(33, |number| 10 + number).unwrap_err().to_string(),
        "packet: expected at most 32 rendezvous at one relay"
    );
    let relay_with = |message_store: &str| {
        let packet = format!("listen = '127.0.0.1:0'\nrendezvous = {message_store}");
        let packet: toml::Table = packet.parse().unwrap();
        of_relay(&packet.into(), identity(2)).and_then(Node::start)
    };
    assert!(relay_with("{}").is_ok());
    assert_eq!(
        relay_with("{ bytes = '1 MB', per_sender = '2 MB' }").unwrap_err().to_string(),
        "packet.rendezvous: expected `per_sender` of 100 kB at least, and `bytes` of no less"
    );
    assert!(relay_with("{ keep = '25 h' }").is_err());
}
