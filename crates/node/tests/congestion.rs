//! Congestion marks of a TUN device's packets for losses that their sender does not notice: client,
//! local gateway, remote gateway with a relay on its host, and server in a row. The remote
//! gateway's host drops a share of the packets over the Internet path; the relay recovers them, and
//! they are marked as having met congestion.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod nodes;

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use nodes::hosts::{Process, Row, TEST_TIMEOUT, connected_to, run_test};
use nodes::{identity, operator};
use tradewind_net::netns::Namespace;

const TEST: &str = "recovered_packets_carry_congestion_mark";
const SERVER: &str = "10.89.2.2:9000";
const DESTINATIONS: &str = "10.89.2.0/24:*";
/// Explicit congestion notification in a service field: supported [RFC 3168].
const UNDERSTOOD: u32 = 0b10;

fn main() {
    run_test(TEST, DESTINATIONS, Row::new, check);
}

fn check(row: &Row) {
    let _relay = Process::start(&row.remote, &relay());
    let _remote = Process::start(&row.remote, &remote_gateway());
    let _near = Process::start(&row.near, &near_gateway());
    let _server = row.server.run(|| UdpSocket::bind(SERVER).unwrap()).unwrap();
    let client = row.client.run(|| connected_to(SERVER)).unwrap();
    // Packets on the original path would arrive unmarked, and count as if they had come over the
    // Internet.
    nft(
        &row.remote,
        "table inet closed { chain passing { type filter hook forward priority 0; iifname left \
         oifname right drop; }; }",
    );
    nft(
        &row.server,
        "table inet seen { counter met { }; counter able { }; counter unable { }; chain coming { \
         type filter hook input priority 0; \
         udp dport 9000 ip ecn ce counter name met; udp dport 9000 ip ecn ect0 counter name able; \
         udp dport 9000 ip ecn not-ect counter name unable; }; }",
    );
    set_ecn(&client, UNDERSTOOD);
    send_until(&client, || counted(&row.server, "able") >= 50);
    let by_chance = counted(&row.server, "able") / 5;
    assert!(
        counted(&row.server, "met") <= by_chance,
        "nothing was lost, though some may have been late"
    );
    // A fifth of the packets from the local gateway itself, and not over the relay.
    nft(
        &row.remote,
        "table inet lossy { chain coming { type filter hook input priority 0; ip saddr 10.89.1.1 \
         udp dport 7001 numgen random mod 5 0 drop; }; }",
    );
    send_until(&client, || counted(&row.server, "met") >= 20);
    assert!(counted(&row.server, "able") > 50, "what the Internet delivers says nothing");
    set_ecn(&client, 0);
    let before = counted(&row.server, "met");
    send_until(&client, || counted(&row.server, "unable") >= 200);
    // Those in flight may have arrived since.
    assert!(
        counted(&row.server, "met") <= before + 5,
        "whose ends do not understand, is not marked"
    );
}

fn relay() -> String {
    let gateway = identity(4).public();
    format!(
        "[relay]
        listen = '10.89.1.2:7002'
        workers = 1
        relays = ['{gateway}']
        next_hops = ['10.89.1.2/32:7001']"
    )
}

fn remote_gateway() -> String {
    let (operator, relay) = (operator().public(), identity(2).public());
    format!(
        "[packet_endpoint]
        listen = '10.89.1.2:7001'
        operators = ['{operator}']
        relays = ['{relay}']
        destinations = ['{DESTINATIONS}']
        tun = {{ name = 'tw1', sources = ['10.89.0.0/24:*'] }}"
    )
}

fn near_gateway() -> String {
    let (remote, relay) = (identity(4).public(), identity(2).public());
    format!(
        "[[packet]]
        tun = {{ name = 'tw0', destinations = ['{DESTINATIONS}'] }}
        remote = {{ address = '10.89.1.2:7001', identity = '{remote}' }}
        relays = [{{ address = '10.89.1.2:7002', identity = '{relay}' }}]
        service = 'caching'
        budget = '2 s'
        [packet_endpoint]"
    )
}

fn set_ecn(socket: &UdpSocket, bits: u32) {
    socket2::SockRef::from(socket).set_tos_v4(bits).unwrap();
}

/// Sends until it `holds`, as an application would, a few packets at a time.
fn send_until(client: &UdpSocket, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "too few came");
        for _ in 0..20 {
            let _lost = client.send(&[7; 200]);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn nft(host: &Namespace, rules: &str) {
    let run = || Command::new("nft").arg(rules).status().unwrap();
    assert!(host.run(run).unwrap().success(), "{rules}");
}

/// Returns the packets that a counter has counted.
fn counted(host: &Namespace, counter: &str) -> u64 {
    let list = || Command::new("nft").args(["list", "counter", "inet", "seen", counter]).output();
    let output = String::from_utf8(host.run(list).unwrap().unwrap().stdout).unwrap();
    let mut words = output.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).unwrap().parse().unwrap()
}
