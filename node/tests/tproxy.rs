//! Datagrams of an application that knows of nothing, taken off their way and put back on it: client, near gateway, far gateway and server
//! in a row, each in a network namespace of its own; the gateways are processes, which are told to end and killed.
//!
//! The near gateway's host translates addresses, so that what the server sees tells which way a datagram came: under the client's own address
//! it was carried, under the near host's it went its old way.
//!
//! This program is its own child: called with a configuration in the environment it is a gateway.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod nodes;

use std::cell::Cell;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nodes::{grant, identity, operator};
use tradewind_net::iproute::{Tool, ask, batch};
use tradewind_net::netns::Namespace;
use tradewind_net::userns::become_root_inside;
use tradewind_net::{NetError, sysctl};
use tradewind_node::{Node, NodeConfig};

const TEST: &str =
    "datagrams_are_carried_under_their_own_address_and_go_their_old_way_whoever_dies";
const CONFIG: &str = "TRADEWIND_TEST_NODE_CONFIG";
const PATIENCE: Duration = Duration::from_secs(60);

/// The server, by family.
const SERVERS: [&str; 2] = ["10.89.2.2:9000", "[fd89:2::2]:9000"];
const DESTINATIONS: &str = "10.89.2.0/24:* [fd89:2::]/64:*";
/// The near gateway's host as the server's side of the network sees it, and the far gateway's as the server does.
const NEAR: [&str; 2] = ["10.89.1.1", "fd89:1::1"];
const FAR: [&str; 2] = ["10.89.2.1", "fd89:2::1"];

fn main() {
    if let Ok(config) = std::env::var(CONFIG) {
        return be_a_gateway(&config);
    }
    if std::env::args().any(|word| word == "--list") {
        return println!("{TEST}: test");
    }
    match become_root_inside().and_then(|()| Hosts::new()) {
        Ok(hosts) => hosts.check(),
        Err(error) => return println!("SKIPPED {TEST}: {error}"),
    }
    println!("test {TEST} ... ok");
}

/// Runs until its input ends.
fn be_a_gateway(config: &str) {
    let config: toml::Table = config.parse().unwrap();
    let packets = config.get("packet").and_then(|value| value.as_array()).cloned();
    let (endpoint, is_near) = (config.get("packet_endpoint"), packets.is_some());
    let number = if is_near { 1 } else { 4 };
    let grant = is_near.then(|| grant(identity(1).public(), DESTINATIONS));
    let config =
        NodeConfig::of_gateway(&packets.unwrap_or_default(), endpoint, identity(number), grant);
    let node = Node::start(config.unwrap()).unwrap();
    println!("ready");
    let _ended = std::io::stdin().read_to_end(&mut Vec::new());
    drop(node);
}

/// A gateway, which does not outlive the test.
struct Process(Child);

impl Process {
    fn start(host: &Namespace, config: &str) -> Self {
        let start = || {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(CONFIG, config).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let mut process = Self(host.run(start).unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        process
    }

    /// Tells it to end, and waits.
    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

struct Hosts {
    client: Namespace,
    near: Namespace,
    far: Namespace,
    server: Namespace,
}

impl Hosts {
    fn new() -> Result<Self, NetError> {
        let make = Namespace::create;
        let hosts = Self { client: make()?, near: make()?, far: make()?, server: make()? };
        let links =
            [(&hosts.client, &hosts.near), (&hosts.near, &hosts.far), (&hosts.far, &hosts.server)];
        for (index, (left, right)) in links.into_iter().enumerate() {
            let path = format!("/proc/{}/fd/{}", std::process::id(), right.as_raw_fd());
            let ends = |device: &str, number: u8| {
                [
                    format!("addr add 10.89.{index}.{number}/24 dev {device}"),
                    format!("addr add fd89:{index}::{number}/64 dev {device} nodad"),
                    format!("link set {device} up"),
                    "link set lo up".to_owned(),
                ]
            };
            let link = format!("link add right type veth peer name left netns {path}");
            batch(left, Tool::Ip, &[&[link][..], &ends("right", 1)].concat())?;
            batch(right, Tool::Ip, &ends("left", 2))?;
        }
        let routes = [
            (&hosts.client, ["default via 10.89.0.2", "default via fd89:0::2"]),
            (&hosts.near, ["10.89.2.0/24 via 10.89.1.2", "fd89:2::/64 via fd89:1::2"]),
            (&hosts.far, ["10.89.0.0/24 via 10.89.1.1", "fd89:0::/64 via fd89:1::1"]),
            (&hosts.server, ["default via 10.89.2.1", "default via fd89:2::1"]),
        ];
        for (host, routes) in routes {
            batch(host, Tool::Ip, &routes.map(|route| format!("route add {route}")))?;
        }
        for host in [&hosts.near, &hosts.far] {
            host.run(|| {
                sysctl::set("net.ipv4.ip_forward", "1")?;
                sysctl::set("net.ipv6.conf.all.forwarding", "1")
            })??;
        }
        hosts.near.run(translate_addresses)?;
        Ok(hosts)
    }

    fn check(&self) {
        for server in SERVERS {
            let socket = self.server.run(|| UdpSocket::bind(server).unwrap()).unwrap();
            std::thread::spawn(move || answer(&socket));
        }
        let far = self.far_gateway();
        let older = Talks::new(self);
        older.wait_until("the old way", Way::Old);

        for is_orderly in [true, false] {
            let near = self.near_gateway();
            let younger = Talks::new(self);
            older.wait_until("the datagrams of older conversations", Way::Carried);
            younger.wait_until("the datagrams of younger conversations", Way::Carried);
            match is_orderly {
                true => near.end(),
                false => drop(near),
            }
            let ended = Instant::now();
            older.wait_until("the old way", Way::Old);
            younger.wait_until("the old way", Way::Old);
            let how = if is_orderly { "its end" } else { "SIGKILL" };
            println!("the old way was open {} ms after {how}", ended.elapsed().as_millis());
            assert!(!self.tables().contains("tradewind-tproxy"), "{}", self.tables());
        }

        let near = self.near_gateway();
        older.wait_until("carried datagrams", Way::Carried);
        drop(far);
        let ended = Instant::now();
        older.wait_until("the old way round a dead far gateway", Way::Old);
        println!("and {} ms after the far gateway's", ended.elapsed().as_millis());
        let far = self.far_gateway();
        older.wait_until("the new far gateway", Way::Carried);
        near.end();
        far.end();
        let rules = [&self.near, &self.far].map(|host| {
            host.run(|| ["-4", "-6"].map(|family| ask(Tool::Ip, &[family, "rule"]).unwrap()))
                .unwrap()
        });
        assert!(!rules.concat().concat().contains("0x5457"), "{rules:?}");
    }

    fn near_gateway(&self) -> Process {
        let far = identity(4).public();
        Process::start(
            &self.near,
            &format!(
                "[[packet]]
                tproxy = {{ destinations = ['10.89.2.0/24:9000', '[fd89:2::]/64:9000'], own_host = true }}
                far = {{ address = '10.89.1.2:7001', identity = '{far}' }}
                [packet_endpoint]"
            ),
        )
    }

    fn far_gateway(&self) -> Process {
        let operator = operator().public();
        Process::start(
            &self.far,
            &format!(
                "[packet_endpoint]
                listen = '10.89.1.2:7001'
                operators = ['{operator}']
                destinations = ['10.89.2.0/24:*', '[fd89:2::]/64:*']
                keep_sources = ['10.89.0.0/24:*', '[fd89::]/64:*']"
            ),
        )
    }

    fn tables(&self) -> String {
        let list = || Command::new("nft").args(["list", "tables"]).output().unwrap().stdout;
        String::from_utf8(self.near.run(list).unwrap()).unwrap()
    }
}

/// What passes this host from the client leaves under the host's address.
fn translate_addresses() {
    let rules = "table inet translation { chain leaving { type nat hook postrouting priority srcnat; oifname right masquerade; }; }";
    let status = Command::new("nft").arg(rules).status().unwrap();
    assert!(status.success());
}

/// Which way datagrams go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Old,
    Carried,
}

/// Conversations of one age: by family, of the client and of the near gateway's own host.
struct Talks(Vec<Talk>);

struct Talk {
    socket: UdpSocket,
    /// The number of its next datagram.
    next: Cell<u64>,
    /// Whom the server sees, by way.
    old: IpAddr,
    carried: IpAddr,
}

impl Talks {
    fn new(hosts: &Hosts) -> Self {
        let mut talks = Vec::new();
        for (family, server) in SERVERS.into_iter().enumerate() {
            let near: IpAddr = NEAR[family].parse().unwrap();
            for host in [&hosts.client, &hosts.near] {
                let socket = host.run(|| connected_to(server)).unwrap();
                let own = socket.local_addr().unwrap().ip();
                // The far gateway keeps the client's address, and nobody else's.
                let carried = if own == near { FAR[family].parse().unwrap() } else { own };
                talks.push(Talk { socket, next: Cell::new(0), old: near, carried });
            }
        }
        Self(talks)
    }

    /// Sends until an answer tells of this way, in each conversation.
    fn wait_until(&self, what: &str, way: Way) {
        for talk in &self.0 {
            talk.wait_until(what, way);
        }
    }
}

impl Talk {
    fn wait_until(&self, what: &str, way: Way) {
        let own = self.socket.local_addr().unwrap();
        let wanted = if way == Way::Old { self.old } else { self.carried };
        let begun = Instant::now();
        let mut seen = None;
        let mut buffer = [0; 2048];
        let first = self.next.get();
        loop {
            assert!(begun.elapsed() < PATIENCE, "{what} did not come to {own}, but {seen:?}");
            let _refused = self.socket.send(&self.next.get().to_be_bytes().repeat(100));
            self.next.set(self.next.get() + 1);
            // What comes from another address than was written to does not come to this socket.
            let Ok(length) = self.socket.recv(&mut buffer) else { continue };
            let split = buffer.iter().position(|byte| *byte == b'|').unwrap();
            let peer: SocketAddr = str::from_utf8(&buffer[..split]).unwrap().parse().unwrap();
            let told = &buffer[split + 1..length];
            let number: [u8; 8] = told[..8].try_into().unwrap();
            assert_eq!(told, number.repeat(100));
            // What was sent earlier may have gone another way.
            if u64::from_be_bytes(number) < first {
                continue;
            }
            seen = Some(peer);
            if peer.ip() == wanted {
                let keeps_port = way == Way::Old || wanted != own.ip() || peer.port() == own.port();
                assert!(keeps_port, "{peer} is not {own}");
                return;
            }
        }
    }
}

fn connected_to(server: &str) -> UdpSocket {
    let server: SocketAddr = server.parse().unwrap();
    let any: SocketAddr = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    socket
}

/// Tells whom it sees, and what it got.
fn answer(socket: &UdpSocket) {
    let mut buffer = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let told = [format!("{from}|").as_bytes(), &buffer[..length]].concat();
        let _lost = socket.send_to(&told, from);
    }
}
