//! Hosts with several addresses, and neighbours that send from other addresses for a while: real
//! sockets on loopback.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nodes::wire::Wire;
use nodes::*;
use tradewind_grant::Hop;
use tradewind_node::{Assumed, DeliveryPolicy, FlowOptions, Node, NodeConfig, Path, TrafficSource};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;

/// Time at another address. Chosen: longer than a neighbour is pinged before it counts as moved.
const ELSEWHERE_FOR: Duration = Duration::from_secs(4);

/// Returns the port of a node, at one of the host's other addresses.
fn at(node: &Node, last: u8) -> SocketAddr {
    ([127, 0, 0, last], node.address().port()).into()
}

fn near(remote: Hop, relays: Vec<Hop>, listen: SocketAddr) -> (Node, SocketAddr) {
    let paths = if relays.is_empty() { Paths::Both } else { Paths::Overlay };
    let service = if relays.is_empty() { Service::Direct } else { Service::Forwarding };
    let to = echo();
    let path = Path {
        source: TrafficSource::Port { listen, to },
        delivery: DeliveryPolicy {
            remote: remote.into(),
            relays: relays.into(),
            carriage: Carriage {
                service,
                paths,
                budget_ms: 1000,
                in_order: false,
                fragment: false,
            },
            max_loss: None,
            copies: None,
            assumed: Assumed::default(),
        },
    };
    let grant = Some(grant(identity(1).public(), "127.0.0.0/8:*"));
    let node = NodeConfig { grant, paths: vec![path], ..plain(1, loopback(), &[]) };
    (Node::start(node).unwrap(), to)
}

/// Returns an application that accepts replies only from the address that it writes to.
fn application(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(loopback()).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    socket
}

fn is_answered(application: &UdpSocket, number: u32) -> bool {
    application.send(&number.to_be_bytes()).unwrap();
    let mut buffer = [0; 64];
    while let Ok(length) = application.recv(&mut buffer) {
        if buffer[..length] == number.to_be_bytes() {
            return true;
        }
    }
    false
}

fn until(what: &str, node: &Node, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{what} did not come: {:?}", node.snapshot());
    }
}

#[test]
fn nodes_reply_from_addressed_ip() {
    let any: SocketAddr = ([0, 0, 0, 0], 0).into();
    let remote = Node::start(plain(4, any, &[2])).unwrap();
    let mut relay = NodeConfig { workers: 2, ..plain(2, any, &[]) };
    relay.policy.next_hops.push("127.0.0.2/32:*".parse().unwrap());
    let relay = Node::start(relay).unwrap();
    let hops = vec![hop(at(&relay, 3), 2)];
    let (near, _) = near(hop(at(&remote, 2), 4), hops, any);
    // Forwarded over the relay alone; its leg to the remote gateway moves to another address, too.
    let source = SocketAddr::from(([127, 0, 0, 9], near.local_addresses()[0].port()));
    let application = application(source);
    until("the first answer", &near, || is_answered(&application, 0));
    until("the overlay path", &near, || near.snapshot().paths_up == 1);
    until("an answer over it", &near, || {
        is_answered(&application, 1) && relay.snapshot().forwarded > 10
    });
}

#[test]
fn moved_gateway_is_found_at_configured_address() {
    let remote = Node::start(plain(4, loopback(), &[])).unwrap();
    let wire = Wire::to(remote.address());
    let (near, _) = near(hop(wire.address, 4), Vec::new(), loopback());
    let application = application(near.local_addresses()[0]);
    until("the first answer", &near, || is_answered(&application, 0));
    // A NAT that has restarted maps it to another port, at which it can be reached, too.
    let (other, begun) = (wire.send_from_elsewhere(), Instant::now());
    until("an answer from elsewhere", &near, || {
        is_answered(&application, 1) && other.received() > 0 && begun.elapsed() > ELSEWHERE_FOR
    });
    // That mapping is gone, and the configured port leads there as before.
    other.end();
    until("an answer from where it is configured", &near, || is_answered(&application, 2));
}

/// A gateway without a listening address of its own reaches neighbours of either family.
#[test]
fn gateway_has_neighbours_of_both_families() {
    if UdpSocket::bind("[::1]:0").is_err() {
        eprintln!("SKIPPED gateway_has_neighbours_of_both_families: this host has no IPv6");
        return;
    }
    let grant = grant(identity(1).public(), "127.0.0.0/8:*");
    let near = Node::start(NodeConfig::of_application(identity(1), grant)).unwrap();
    for (number, listen) in [(4, "127.0.0.1:0"), (5, "[::1]:0")] {
        let remote = Node::start(plain(number, listen.parse().unwrap(), &[])).unwrap();
        let options = FlowOptions::new(hop(remote.address(), number), Vec::new());
        let flow = near.register(echo(), Duration::ZERO, options).unwrap();
        assert!(flow.wait_open(TEST_TIMEOUT).unwrap(), "{listen}: {:?}", near.snapshot());
    }
}

/// A neighbour of which one address leads nowhere, whichever comes first.
#[test]
fn answering_address_is_used() {
    let (relay, remote) = (
        Node::start(plain(2, loopback(), &[])).unwrap(),
        Node::start(plain(4, loopback(), &[2])).unwrap(),
    );
    let nowhere = UdpSocket::bind(loopback()).unwrap();
    let placed = |node: &Node, number: u8, is_first: bool| {
        let (there, nowhere) = (node.address(), nowhere.local_addr().unwrap());
        let [one, other] = if is_first { [there, nowhere] } else { [nowhere, there] };
        let identity = identity(number).public();
        format!("{{ address = ['{one}', '{other}'], identity = '{identity}' }}")
    };
    for is_first in [true, false] {
        let text = format!(
            "listen = '127.0.0.1:0'\nto = '{}'\nremote = {}\nrelays = [{}]\nservice = 'caching'",
            echo(),
            placed(&remote, 4, is_first),
            placed(&relay, 2, is_first)
        );
        let packet = text.parse::<toml::Table>().unwrap().into();
        let grant = Some(grant(identity(1).public(), "127.0.0.0/8:*"));
        let config = of_gateway(&[packet], None, identity(1), grant).unwrap();
        let near = Node::start(config).unwrap();
        let application = application(near.local_addresses()[0]);
        until("an answer", &near, || is_answered(&application, 1));
        // The path's header names the first address of the remote gateway to the relay.
        if is_first {
            until("copies", &near, || is_answered(&application, 2) && near.snapshot().copied > 10);
        }
    }
}

/// Returns an application that echoes every datagram, and the sources of these.
fn echo_that_remembers() -> (SocketAddr, Arc<Mutex<BTreeSet<SocketAddr>>>) {
    let socket = UdpSocket::bind("127.0.0.2:0").unwrap();
    let (address, sources) = (socket.local_addr().unwrap(), Arc::default());
    let known: Arc<Mutex<BTreeSet<SocketAddr>>> = Arc::clone(&sources);
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            known.lock().unwrap().insert(from);
            let _lost = socket.send_to(&buffer[..length], from);
        }
    });
    (address, sources)
}

/// Packets over the Internet alone, and those that are numbered, of one flow.
#[test]
fn remote_port_is_stable_across_addresses() {
    let remote = Node::start(plain(4, loopback(), &[2])).unwrap();
    let relay = Node::start(plain(2, loopback(), &[])).unwrap();
    let wires = [Wire::to(remote.address()), Wire::to(remote.address())];
    let (to, sources) = echo_that_remembers();
    for (service, relays) in [
        ("direct", String::new()),
        (
            "caching",
            format!(
                "relays = [{{ address = '{}', identity = '{}' }}]",
                relay.address(),
                identity(2).public()
            ),
        ),
    ] {
        let [one, other] = wires.each_ref().map(|wire| wire.address);
        let text = format!(
            "listen = '127.0.0.1:0'\nto = '{to}'\n{relays}\nservice = '{service}'\n\
             remote = {{ address = ['{one}', '{other}'], identity = '{}' }}",
            identity(4).public()
        );
        let packet = text.parse::<toml::Table>().unwrap().into();
        let grant = Some(grant(identity(1).public(), "127.0.0.0/8:*"));
        let config = of_gateway(&[packet], None, identity(1), grant).unwrap();
        let near = Node::start(config).unwrap();
        sources.lock().unwrap().clear();
        let application = application(near.local_addresses()[0]);
        until("the first answer", &near, || is_answered(&application, 0));
        let socket = SocketAddr::from(([127, 0, 0, 1], near.address().port()));
        for (number, wire) in (1..).zip(wires.iter().cycle().take(3)) {
            wire.cut(socket, true);
            until("an answer by another address", &near, || is_answered(&application, number));
            wire.cut(socket, false);
            until("an answer by the address before", &near, || {
                is_answered(&application, number + 10)
            });
        }
        let sources = sources.lock().unwrap();
        assert_eq!(sources.len(), 1, "{service}: the application sees {sources:?}");
    }
}
