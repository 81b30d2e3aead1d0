//! Destinations that are forbidden although rules cover them, and sources that packets must not
//! claim: client, local gateway, remote gateway and server in a row, each in a network namespace of
//! its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod nodes;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nodes::hosts::{Row, connected_to};
use nodes::{TEST_TIMEOUT, grant, grant_with_sources, identity, of_gateway, operator};
use tradewind_net::NetError;
use tradewind_net::iproute::{Tool, batch};
use tradewind_net::netns::Namespace;
use tradewind_net::userns::become_root_inside;
use tradewind_node::Node;

type Test = fn(&Row);
const TESTS: [(&str, Test); 6] = [
    ("ungranted_sources_are_dropped", sources_are_granted),
    ("remote_host_deliveries_are_refused", local_host_is_refused),
    ("conversation_ends_when_remote_host_gets_address", local_host_comes_later),
    ("remote_host_deliveries_need_a_rule", local_host_is_named),
    ("returned_deliveries_are_not_intercepted", returned_go_on),
    ("deliveries_are_not_intercepted", deliveries_are_not_intercepted),
];

const RANGES: [&str; 2] = ["10.89.2.0/24:*", "[fd89:2::]/64:*"];
/// The server, and the remote host itself, by family.
const SERVERS: [&str; 2] = ["10.89.2.2:9000", "[fd89:2::2]:9000"];
const REMOTE: [&str; 2] = ["10.89.2.1:9000", "[fd89:2::1]:9000"];

fn main() {
    if std::env::args().any(|word| word == "--list") {
        return TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
    }
    let root = become_root_inside();
    for (name, test) in TESTS {
        match root.as_ref().map_err(ToString::to_string).and_then(|()| row()) {
            Ok(row) => test(&row),
            Err(error) => {
                eprintln!("SKIPPED {name}: {error}");
                continue;
            }
        }
        println!("test {name} ... ok");
    }
}

fn row() -> Result<Row, String> {
    Row::new().map_err(|error: NetError| error.to_string())
}

/// Starts echo services on all addresses of a host; returns the count of datagrams received.
fn services(host: &Namespace) -> Arc<AtomicUsize> {
    let came = Arc::<AtomicUsize>::default();
    let open = || {
        let v4 = UdpSocket::bind("0.0.0.0:9000").unwrap();
        // With IPv4 on the other one, this one takes IPv6 alone.
        let v6 = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None).unwrap();
        v6.set_only_v6(true).unwrap();
        let any: std::net::SocketAddr = "[::]:9000".parse().unwrap();
        v6.bind(&any.into()).unwrap();
        [v4, v6.into()]
    };
    for socket in host.run(open).unwrap() {
        let came = Arc::clone(&came);
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                came.fetch_add(1, Relaxed);
                let _lost = socket.send_to(&buffer[..length], from);
            }
        });
    }
    came
}

/// Returns a remote gateway that delivers to `destinations`; `more` is appended to its
/// configuration.
fn remote_gateway(row: &Row, destinations: &[&str], more: &str) -> Node {
    let text = format!(
        "listen = '0.0.0.0:7001'\noperators = ['{}']\ndestinations = {destinations:?}\n{more}",
        operator().public()
    );
    let endpoint: toml::Table = text.parse().unwrap();
    let config = of_gateway(&[], Some(&endpoint.into()), identity(4), None).unwrap();
    row.remote.run(|| Node::start(config)).unwrap().unwrap()
}

/// Returns a local gateway with a port on loopback for each of `to`.
fn near_gateway(row: &Row, to: &[&str]) -> Node {
    let remote = identity(4).public();
    let packets: Vec<toml::Value> = (to.iter())
        .map(|to| {
            let text = format!(
                "listen = '127.0.0.1:0'\nto = '{to}'\nremote = {{ address = '10.89.1.2:7001', \
                 identity = '{remote}' }}"
            );
            text.parse::<toml::Table>().unwrap().into()
        })
        .collect();
    let grant = Some(grant(identity(1).public(), &RANGES.join(" ")));
    let config = of_gateway(&packets, None, identity(1), grant).unwrap();
    row.near.run(|| Node::start(config)).unwrap().unwrap()
}

/// Returns applications at the local gateway's ports.
fn applications(row: &Row, near: &Node) -> Vec<UdpSocket> {
    let ports = near.local_addresses();
    let socket = |port: &std::net::SocketAddr| connected_to(&port.to_string());
    row.near.run(|| ports.iter().map(socket).collect()).unwrap()
}

/// Sends to all until `holds`, one round after another; returns how many replies each has had.
fn talk(applications: &[UdpSocket], holds: impl Fn(&[usize]) -> bool) -> Vec<usize> {
    let (begun, mut replies) = (Instant::now(), vec![0; applications.len()]);
    while !holds(&replies) {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{replies:?} answers came");
        for (application, replies) in applications.iter().zip(&mut replies) {
            let _refused = application.send(b"any");
            application.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            while application.recv(&mut [0; 16]).is_ok() {
                *replies += 1;
            }
        }
    }
    replies
}

/// Returns a local gateway that intercepts datagrams to the server, with a grant for packets of
/// `sources`.
fn intercepting_gateway(row: &Row, sources: &str, section: &str) -> Node {
    let remote = identity(4).public();
    let text =
        format!("{section}\nremote = {{ address = '10.89.1.2:7001', identity = '{remote}' }}");
    let packet = text.parse::<toml::Table>().unwrap().into();
    let grant = Some(grant_with_sources(identity(1).public(), &RANGES.join(" "), sources));
    let config = of_gateway(&[packet], None, identity(1), grant).unwrap();
    row.near.run(|| Node::start(config)).unwrap().unwrap()
}

/// Writes from the client to the server until the remote gateway has counted enough.
fn write_until(row: &Row, remote: &Node, what: impl Fn(tradewind_node::Snapshot) -> u64) {
    let clients = row.client.run(|| SERVERS.map(connected_to)).unwrap();
    let (before, begun) = (what(remote.snapshot()), Instant::now());
    while what(remote.snapshot()) < before + 10 {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", remote.snapshot());
        for client in &clients {
            let _refused = client.send(b"any");
            let _answer = client.recv(&mut [0; 16]);
        }
    }
}

fn sources_are_granted(row: &Row) {
    let (_at_server, granted) = (services(&row.server), "10.89.0.0/24 fd89::/64");
    let tproxy = format!("tproxy = {{ destinations = {RANGES:?} }}");
    let tun = format!("tun = {{ name = 'tw0', destinations = {RANGES:?} }}");
    let keeps = "preserve_source = ['10.89.0.0/16:*', '[fd89::]/16:*']";
    let puts_out = "tun = { name = 'tw1', sources = ['10.89.0.0/24:*', '[fd89::]/64:*'] }";
    for (section, more) in [(&tproxy, keeps), (&tun, puts_out)] {
        for sources in ["", "10.89.7.0/24 fd89:7::/64"] {
            let remote = remote_gateway(row, &RANGES, more);
            let near = intercepting_gateway(row, sources, section);
            write_until(row, &remote, |counts| counts.foreign_sources);
            assert_eq!(remote.snapshot().delivered, 0, "{section} under {sources:?}");
            let begun = Instant::now();
            while remote.report().foreign_sources == 0 {
                assert!(begun.elapsed() < TEST_TIMEOUT, "the report does not tell");
            }
            drop(near);
        }
        let remote = remote_gateway(row, &RANGES, more);
        let near = intercepting_gateway(row, granted, section);
        write_until(row, &remote, |counts| counts.delivered);
        assert_eq!(remote.snapshot().foreign_sources, 0, "{section}");
        drop(near);
    }
}

fn local_host_is_refused(row: &Row) {
    let (at_remote, _at_server) = (services(&row.remote), services(&row.server));
    let remote = remote_gateway(row, &RANGES, "");
    let near = near_gateway(row, &[REMOTE[0], REMOTE[1], SERVERS[0], SERVERS[1]]);
    let applications = applications(row, &near);
    let replies = talk(&applications, |replies| replies[2..].iter().all(|replies| *replies >= 20));
    assert_eq!(replies[..2], [0, 0], "the remote gateway's own host has answered");
    assert_eq!(at_remote.load(Relaxed), 0, "its own host was reached");
    assert!(remote.snapshot().dropped > 0);
}

fn local_host_comes_later(row: &Row) {
    let (at_remote, at_server) = (services(&row.remote), services(&row.server));
    let remote = remote_gateway(row, &RANGES, "");
    let near = near_gateway(row, &SERVERS);
    let applications = applications(row, &near);
    talk(&applications, |replies| replies.iter().all(|replies| *replies > 0));
    let before = remote.snapshot().dropped;
    let addresses = ["addr add 10.89.2.2/32 dev lo", "addr add fd89:2::2/128 dev lo nodad"];
    batch(&row.remote, Tool::Ip, &addresses.map(str::to_owned)).unwrap();
    // A reply may be in flight.
    let (answered, begun) = (at_server.load(Relaxed), Instant::now());
    while remote.snapshot().dropped < before + 40 {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{:?}", remote.snapshot());
        applications.iter().for_each(|application| drop(application.send(b"any")));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(at_remote.load(Relaxed), 0, "its own host was reached");
    assert!(at_server.load(Relaxed) <= answered + 2);
    // They begin anew once the server's addresses are no longer local.
    let addresses = ["addr del 10.89.2.2/32 dev lo", "addr del fd89:2::2/128 dev lo"];
    batch(&row.remote, Tool::Ip, &addresses.map(str::to_owned)).unwrap();
    talk(&applications, |replies| replies.iter().all(|replies| *replies > 1));
}

fn local_host_is_named(row: &Row) {
    let _at_remote = services(&row.remote);
    let _remote = remote_gateway(row, &["10.89.2.1/32:9000", "[fd89:2::1]/128:9000"], "");
    let near = near_gateway(row, &REMOTE);
    talk(&applications(row, &near), |replies| replies.iter().all(|replies| *replies > 0));
}

/// Most datagrams that were sent before a count and intercepted after it.
const IN_FLIGHT: usize = 100;

/// The remote gateway's path to the client leads through the local one, which intercepts packets to
/// it; and so does the client's path to the server through the remote one.
fn returned_go_on(row: &Row) {
    let at_client = services(&row.client);
    let ranges = ["10.89.0.0/24:*", "[fd89::]/64:*"];
    let packet = format!(
        "tproxy = {{ destinations = {ranges:?} }}
        remote = {{ address = '10.89.1.2:7001', identity = '{}' }}",
        identity(4).public()
    );
    let packet: toml::Value = packet.parse::<toml::Table>().unwrap().into();
    // Of all rounds: datagrams of one may be received in the next.
    let mut sent_before = 0;
    for preserves in ["", "preserve_source = ['10.89.2.0/24:*', '[fd89:2::]/64:*']"] {
        let remote = remote_gateway(row, &ranges, preserves);
        let (clients, servers) = (ranges.join(" "), "10.89.2.0/24 fd89:2::/64");
        let grant = Some(grant_with_sources(identity(1).public(), &clients, servers));
        let packets = std::slice::from_ref(&packet);
        let config = of_gateway(packets, None, identity(1), grant).unwrap();
        let near = row.near.run(|| Node::start(config)).unwrap().unwrap();
        let servers = row.server.run(|| ["10.89.0.1:9000", "[fd89::1]:9000"].map(connected_to));
        let mut sent = 0;
        for server in servers.unwrap() {
            let mut until_delivered = |count: u64| {
                let (before, begun) = (remote.snapshot().delivered, Instant::now());
                let sent_before = sent;
                while remote.snapshot().delivered < before + count {
                    assert!(begun.elapsed() < TEST_TIMEOUT, "{sent} sent, {:?}", remote.snapshot());
                    server.send(b"any").unwrap();
                    sent += 1;
                    let _reply = server.recv(&mut [0; 16]);
                }
                sent - sent_before
            };
            until_delivered(1);
            // From here on each datagram is intercepted once, and so is its answer.
            let counts = || [near.snapshot().accepted, remote.snapshot().accepted];
            let before = counts();
            let most = until_delivered(300) + IN_FLIGHT;
            let more = counts().into_iter().zip(before).map(|(now, before)| now - before);
            for more in more {
                assert!(more <= most as u64, "{more} of {most} intercepted, {preserves}");
            }
        }
        let (received, sent_in_all) = (at_client.load(Relaxed), sent_before + sent);
        assert!(received <= sent_in_all, "{received} received of {sent_in_all}, {preserves}");
        sent_before = sent_in_all;
    }
}

/// A local gateway that intercepts its own host's datagrams to the server, and delivers others'
/// there.
fn deliveries_are_not_intercepted(row: &Row) {
    let packet = |text: String| toml::Value::from(text.parse::<toml::Table>().unwrap());
    let (near_key, remote_key, operator) = (identity(1), identity(4), operator().public());
    let endpoint = |listen: &str| {
        packet(format!(
            "listen = '{listen}'\noperators = ['{operator}']\ndestinations = {RANGES:?}"
        ))
    };
    let grant_of =
        |key: &tradewind_grant::IdentityKey| Some(grant(key.public(), &RANGES.join(" ")));
    let remote_packets = SERVERS.map(|to| {
        packet(format!(
            "listen = '127.0.0.1:0'\nto = '{to}'
            remote = {{ address = '10.89.1.1:7001', identity = '{}' }}",
            near_key.public()
        ))
    });
    let (listen, grant) = (endpoint("0.0.0.0:7001"), grant_of(&remote_key));
    let remote = of_gateway(&remote_packets, Some(&listen), remote_key.clone(), grant).unwrap();
    let remote = row.remote.run(|| Node::start(remote)).unwrap().unwrap();
    let near_packet = packet(format!(
        "tproxy = {{ destinations = {RANGES:?}, local_output = true }}
        remote = {{ address = '10.89.1.2:7001', identity = '{}' }}",
        remote_key.public()
    ));
    let grant = grant_of(&near_key);
    let near = of_gateway(&[near_packet], Some(&listen), near_key, grant).unwrap();
    let near = row.near.run(|| Node::start(near)).unwrap().unwrap();
    // The rules are in force once the host's own datagrams are intercepted.
    let own = row.near.run(|| SERVERS.map(connected_to)).unwrap();
    let ports = remote.local_addresses();
    let socket = |port: &std::net::SocketAddr| connected_to(&port.to_string());
    let others: Vec<UdpSocket> = row.remote.run(|| ports.iter().map(socket).collect()).unwrap();
    let write_to = |sockets: &[UdpSocket], holds: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < TEST_TIMEOUT, "near {:?}", near.snapshot());
            for socket in sockets {
                let _refused = socket.send(b"any");
                let _none = socket.recv(&mut [0; 16]);
            }
        }
    };
    for (own, other) in own.iter().zip(&others) {
        let before = near.snapshot();
        write_to(std::slice::from_ref(own), &|| near.snapshot().accepted >= before.accepted + 10);
        // Its own datagrams in flight arrive before this one.
        let before = near.snapshot();
        write_to(std::slice::from_ref(other), &|| near.snapshot().delivered > before.delivered);
        let before = near.snapshot();
        write_to(std::slice::from_ref(other), &|| {
            near.snapshot().delivered >= before.delivered + 10
        });
        assert_eq!(near.snapshot().accepted, before.accepted, "what it delivered was taken");
    }
}
