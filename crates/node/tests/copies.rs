//! Selective duplication: of a cached flow only chosen packets have copies at the relays. The
//! Internet loses all long ones; the chosen ones of them are recovered, and no others
//! `[JQ 3.5, 5.4]`.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nodes::wire::Wire;
use nodes::*;
use tradewind_node::{FlowOptions, Judge, Node, NodeConfig};
use tradewind_packet::message::Service;

const GAP: Duration = Duration::from_millis(4);
/// The wire loses datagrams longer than 900 bytes.
const LONG: usize = 1000;
const SHORT: usize = 60;

/// A remote gateway behind a wire, two relays, and an application that keeps the numbers that
/// arrive.
struct World {
    relays: Vec<Node>,
    remote: Node,
    wire: Wire,
    to: SocketAddr,
    came: Arc<Mutex<BTreeSet<u32>>>,
}

fn world() -> World {
    let remote = Node::start(plain(4, loopback(), &[2, 3])).unwrap();
    let relays: Vec<Node> =
        (2..4).map(|number| Node::start(plain(number, loopback(), &[2])).unwrap()).collect();
    let wire = Wire::to(remote.address());
    let socket = UdpSocket::bind(application()).unwrap();
    let (to, came) = (socket.local_addr().unwrap(), Arc::default());
    let received: Arc<Mutex<BTreeSet<u32>>> = Arc::clone(&came);
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, _)) = socket.recv_from(&mut buffer) {
            if let Some(number) = buffer[..length].get(4..8) {
                received.lock().unwrap().insert(u32::from_be_bytes(number.try_into().unwrap()));
            }
        }
    });
    World { relays, remote, wire, to, came }
}

/// Returns RTP with its number in the time stamp, and a key frame of H.264 or a part between two.
fn rtp(number: u32, length: usize, is_key: bool) -> Vec<u8> {
    let mut packet = vec![0x80, 96, 0, 0];
    packet.extend(number.to_be_bytes());
    packet.extend([0; 4]);
    packet.push(if is_key { 0x65 } else { 0x41 });
    packet.resize(length, 7);
    packet
}

impl World {
    /// Returns a gateway before the remote one, and an application that writes to it.
    fn gateway(&self, packet: &str, endpoint: &str) -> (Node, UdpSocket) {
        let hop = |address: SocketAddr, number: u8| {
            format!("{{ address = '{address}', identity = '{}' }}", identity(number).public())
        };
        let relays: Vec<String> = self
            .relays
            .iter()
            .zip(2..)
            .map(|(relay, number)| hop(relay.address(), number))
            .collect();
        let section = format!(
            "listen = '127.0.0.1:0'\nto = '{}'\nremote = {}\nrelays = [{}]\nservice = \
             'caching'\nbudget = '3 s'\n{packet}",
            self.to,
            hop(self.wire.address, 4),
            relays.join(", ")
        );
        let endpoint = format!("listen = '127.0.0.1:0'\nrepeat_copies = false\n{endpoint}");
        let [section, endpoint] =
            [section, endpoint].map(|text| text.parse::<toml::Table>().unwrap().into());
        let grant = Some(grant(identity(1).public(), "127.0.0.0/8:*"));
        let config = of_gateway(&[section], Some(&endpoint), identity(1), grant).unwrap();
        let node = Node::start(config).unwrap();
        let application = UdpSocket::bind(loopback()).unwrap();
        application.connect(node.local_addresses()[0]).unwrap();
        (node, application)
    }

    /// Sends numbers from `next` on until `holds`; the relays serve the flow by then.
    fn until(&self, what: &str, next: &mut u32, send: impl Fn(u32), holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            let snapshots = || (self.remote.snapshot(), self.relays[1].snapshot());
            assert!(begun.elapsed() < TEST_TIMEOUT, "{what} did not come: {:?}", snapshots());
            send(*next);
            *next += 1;
            std::thread::sleep(GAP);
        }
    }

    fn has(&self, number: u32) -> bool {
        self.came.lock().unwrap().contains(&number)
    }

    /// Returns whether most of `wanted` have arrived: on a busy machine a relay may run later than
    /// a receiver's last request.
    fn has_most(&self, wanted: &[u32]) -> bool {
        wanted.iter().filter(|number| self.has(**number)).count() * 10 >= wanted.len() * 9
    }
}

/// Sends 200 packets, of which each fifth is chosen and long, and each fifth long only; returns the
/// numbers of both.
fn mix(first: u32, send: impl Fn(u32, usize, bool)) -> [Vec<u32>; 2] {
    let mut long = [Vec::new(), Vec::new()];
    for number in first..first + 200 {
        let kind = number as usize % 5;
        if let Some(long) = long.get_mut(kind) {
            long.push(number);
        }
        send(number, if kind < 2 { LONG } else { SHORT }, kind == 0);
        std::thread::sleep(GAP);
    }
    long
}

#[test]
fn only_key_frames_are_recovered() {
    let world = world();
    let (near, application) = world.gateway("copies = { rtp_key_frames = true }", "");
    let send = |number, length, is_key| {
        application.send(&rtp(number, length, is_key)).unwrap();
    };
    let mut next = 0;
    let key = |number| send(number, SHORT, true);
    world.until("copies", &mut next, key, || world.relays[1].snapshot().cached > 20);
    world.wire.lose_each(near.address(), 1);
    let before = near.snapshot().copied;
    let [keys, others] = mix(next, send);
    next += 200;
    assert!(near.snapshot().copied - before <= keys.len() as u64 + 1);
    let usual = |number| send(number, SHORT, false);
    world.until("key frames", &mut next, usual, || world.has_most(&keys));
    assert!(!others.iter().any(|number| world.has(*number)), "what had no copy came back");
    assert!(world.remote.snapshot().recovered_cache > 20);
}

#[test]
fn last_of_window_is_recovered() {
    let world = world();
    let (near, application) = world.gateway("copies = { last_after = '40 ms' }", "");
    let send = |number, length| {
        application.send(&rtp(number, length, false)).unwrap();
    };
    // A packet after a silence shows that packets before it are missing.
    let window = |first: u32, length| {
        (first..first + 4).for_each(|number| send(number, length));
        std::thread::sleep(Duration::from_millis(150));
        send(first + 4, SHORT);
        first + 3
    };
    let (mut next, begun) = (0, Instant::now());
    while world.relays[1].snapshot().cached < 3 {
        assert!(begun.elapsed() < TEST_TIMEOUT, "no copies: {:?}", near.snapshot());
        next = window(next, SHORT) + 2;
    }
    world.wire.lose_each(near.address(), 1);
    let lasts: Vec<u32> = (0..10).map(|at| window(next + at * 5, LONG)).collect();
    next += 50;
    world.until(
        "the last ones",
        &mut next,
        |number| send(number, SHORT),
        || world.has_most(&lasts),
    );
}

#[test]
fn rule_port_packets_are_copied() {
    let world = world();
    let copies = format!("copies = {{ ports = [{}] }}", world.to.port());
    let (near, application) = world.gateway(&copies, "");
    let send = |number| {
        application.send(&rtp(number, SHORT, false)).unwrap();
    };
    world.until("copies", &mut 0, send, || near.snapshot().copied > 20);
}

#[test]
fn copies_stay_within_uplink() {
    let world = world();
    let (near, application) = world.gateway("", "uplink = '1 Mbit/s'");
    let send = |number, length| {
        application.send(&rtp(number, length, false)).unwrap();
    };
    let mut next = 0;
    world.until("copies", &mut next, |number| send(number, SHORT), || near.snapshot().copied > 5);
    let (before, begun) = (near.snapshot(), Instant::now());
    for number in next..next + 300 {
        send(number, LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
    let (copied, passed) = (near.snapshot().copied - before.copied, begun.elapsed());
    world.until(
        "the packets",
        &mut 1000,
        |number| send(number, SHORT),
        || world.has_most(&(next..next + 300).collect::<Vec<_>>()),
    );
    // 16 kB at once, then 125 kB a second, of which the packets themselves take their part first.
    let bears = 16_000.0 + 125_000.0 * passed.as_secs_f64();
    let left = (bears - 300.0 * LONG as f64).max(16_000.0) / LONG as f64;
    assert!(copied as f64 <= left, "{copied} copies of 300 in {passed:?}, {left} are left");
}

#[test]
fn program_chooses_copies() {
    let world = world();
    let config =
        NodeConfig::of_application(identity(1), grant(identity(1).public(), "127.0.0.0/8:*"));
    let node = Node::start(NodeConfig { listen: loopback(), ..config }).unwrap();
    let relays = world.relays.iter().zip(2..);
    let relays: Vec<_> = relays.map(|(relay, number)| hop(relay.address(), number)).collect();
    let options = FlowOptions {
        service: Some(Service::Caching),
        judge: Some(Judge::new(|datagram| datagram[12] == 0x65)),
        ..FlowOptions::new(hop(world.wire.address, 4), relays)
    };
    let flow = node.register(world.to, Duration::from_secs(3), options).unwrap();
    assert!(flow.wait_open(TEST_TIMEOUT).unwrap());
    let send = |number, length, is_key| flow.send(&rtp(number, length, is_key)).unwrap();
    let mut next = 0;
    world.until(
        "copies",
        &mut next,
        |number| send(number, SHORT, true),
        || world.relays[1].snapshot().cached > 20,
    );
    world.wire.lose_each(node.address(), 1);
    let [judged, others] = mix(next, send);
    let marked = next + 200;
    flow.send_high_priority(&rtp(marked, LONG, false)).unwrap();
    next = marked + 1;
    world.until(
        "chosen ones",
        &mut next,
        |number| send(number, SHORT, false),
        || world.has_most(&judged) && world.has(marked),
    );
    assert!(!others.iter().any(|number| world.has(*number)), "what had no copy came back");
}

#[test]
fn invalid_copy_rules_are_refused() {
    let world = world();
    let refused = |packet: &str| {
        let section = format!(
            "listen = '127.0.0.1:0'\nto = '{}'\nremote = {{ address = '{}', identity = '{}' \
             }}\n{packet}",
            world.to,
            world.remote.address(),
            identity(4).public()
        );
        let section = section.parse::<toml::Table>().unwrap().into();
        let grant = Some(grant(identity(1).public(), "127.0.0.0/8:*"));
        let config = of_gateway(&[section], None, identity(1), grant);
        config.and_then(Node::start).unwrap_err().to_string()
    };
    let relays = format!(
        "service = 'caching'\nrelays = [{{ address = '127.0.0.1:1', identity = '{}' }}]",
        identity(2).public()
    );
    for (packet, expected) in [
        (
            "copies = { ports = [1] }".to_owned(),
            "expected only with the services `forwarding`, `caching`, `coding` or `auto`",
        ),
        (format!("{relays}\ncopies = {{}}"), "nothing is chosen; expected at least one rule"),
        (format!("{relays}\ncopies = {{ dscp = [64] }}"), "expected code points of 0 to 63"),
        (
            format!("{relays}\ncopies = {{ tcp_syn = true }}"),
            "expected `tcp_syn` only with `tun`: no datagram is one",
        ),
    ] {
        assert_eq!(refused(&packet), format!("packet[0].copies: {expected}"));
    }
}
