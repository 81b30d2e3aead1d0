//! Hosts in a row, each in a network namespace of its own, and gateways on them, which are
//! processes that can be ended and killed.
//!
//! A test that uses these is its own child: with a configuration in the environment it runs as a
//! gateway.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tradewind_net::iproute::{Tool, batch};
use tradewind_net::netns::Namespace;
use tradewind_net::privileges::{Account, Capability, become_user};
use tradewind_net::userns::become_root_inside;
use tradewind_net::{NetError, descriptors, processes, sandbox, sysctl};
use tradewind_node::{Node, NodeConfig};

use super::{grant_with_sources, identity, of_gateway, of_relay};

const CONFIG: &str = "TRADEWIND_TEST_NODE_CONFIG";
/// Sources of the packets that a local gateway of a row sends: its client's and its own host's.
pub const NEAR_SOURCES: &str = "10.89.0.0/24 10.89.1.1 fd89::/64 fd89:1::1";
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Links each host to the next: `right` of one leads to `left` of the other, with the addresses
/// `10.network.place.1` and `.2`, and `fdNN:place::1` and `::2`.
pub fn link_in_row(network: u8, hosts: &[&Namespace]) -> Result<(), NetError> {
    for (place, pair) in hosts.windows(2).enumerate() {
        let &[left, right] = pair else { continue };
        let path = format!("/proc/{}/fd/{}", std::process::id(), right.as_raw_fd());
        let ends = |device: &str, number: u8| {
            [
                format!("addr add 10.{network}.{place}.{number}/24 dev {device}"),
                format!("addr add fd{network}:{place}::{number}/64 dev {device} nodad"),
                format!("link set {device} up"),
                "link set lo up".to_owned(),
            ]
        };
        let link = format!("link add right type veth peer name left netns {path}");
        batch(left, Tool::Ip, &[&[link][..], &ends("right", 1)].concat())?;
        batch(right, Tool::Ip, &ends("left", 2))?;
    }
    Ok(())
}

/// Client, local gateway's host, remote gateway's, and server, at 10.89.0.1, 10.89.1.1, 10.89.1.2
/// and 10.89.2.2.
pub struct Row {
    pub client: Namespace,
    pub near: Namespace,
    pub remote: Namespace,
    pub server: Namespace,
}

impl Row {
    pub fn new() -> Result<Self, NetError> {
        let make = Namespace::create;
        let row = Self { client: make()?, near: make()?, remote: make()?, server: make()? };
        link_in_row(89, &[&row.client, &row.near, &row.remote, &row.server])?;
        let routes = [
            (&row.client, ["default via 10.89.0.2", "default via fd89:0::2"]),
            (&row.near, ["10.89.2.0/24 via 10.89.1.2", "fd89:2::/64 via fd89:1::2"]),
            (&row.remote, ["10.89.0.0/24 via 10.89.1.1", "fd89:0::/64 via fd89:1::1"]),
            (&row.server, ["default via 10.89.2.1", "default via fd89:2::1"]),
        ];
        for (host, routes) in routes {
            batch(host, Tool::Ip, &routes.map(|route| format!("route add {route}")))?;
        }
        for host in [&row.near, &row.remote] {
            host.run(|| {
                sysctl::set("net.ipv4.ip_forward", "1")?;
                sysctl::set("net.ipv6.conf.all.forwarding", "1")
            })??;
        }
        Ok(row)
    }
}

/// Runs the only test of a file without harness, on hosts that `make` creates; it is skipped with a
/// message where there can be none. A child process runs as a gateway, a local one with a grant for
/// `destinations`.
pub fn run_test<H>(
    name: &str,
    destinations: &str,
    make: impl FnOnce() -> Result<H, NetError>,
    check: impl FnOnce(&H),
) {
    if is_a_gateway(destinations) {
        return;
    }
    if std::env::args().any(|word| word == "--list") {
        return println!("{name}: test");
    }
    match become_root_inside().and_then(|()| make()) {
        Ok(hosts) => check(&hosts),
        Err(error) => return eprintln!("SKIPPED {name}: {error}"),
    }
    println!("test {name} ... ok");
}

/// Returns a socket that is connected to a server, and waits only briefly for replies.
pub fn connected_to(server: &str) -> UdpSocket {
    let server: SocketAddr = server.parse().unwrap();
    let any: SocketAddr = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    socket
}

/// Runs as a gateway until its input ends, if this process is to be one; a local one has a grant
/// for `destinations`. With a `[relay]` in place of its parts it is a relay. For each line of its
/// input the gateway hands over to another.
pub fn is_a_gateway(destinations: &str) -> bool {
    let Ok(config) = std::env::var(CONFIG) else { return false };
    let config: toml::Table = config.parse().unwrap();
    // Workers deliver and reply under others' addresses, from any port.
    let of_workers = [Capability::NetBindService, Capability::NetRaw];
    give_up_all_but(&[&of_workers[..], &[Capability::NetAdmin]].concat(), &of_workers);
    let mut node = Node::open(config_of(&config, destinations), Vec::new()).unwrap();
    node.run(None).unwrap();
    println!("ready");
    for _upgrade in std::io::stdin().lines() {
        let next = Node::open(config_of(&config, destinations), node.hand_on()).unwrap();
        // This ends the previous one.
        node = next;
        node.run(None).unwrap();
        println!("ready");
    }
    drop(node);
    true
}

/// Continues as another user with these capabilities, of which workers keep some, in the sandbox,
/// as the program does.
fn give_up_all_but(keep: &[Capability], of_workers: &[Capability]) {
    let nobody = Account::find("nobody").unwrap();
    if let Some(nobody) = nobody.filter(|nobody| nobody.out_of_reach().is_none()) {
        become_user(&nobody, keep).unwrap();
    }
    sandbox::enter(keep, of_workers).unwrap();
}

fn config_of(config: &toml::Table, destinations: &str) -> NodeConfig {
    if let Some(relay) = config.get("relay") {
        return of_relay(relay, identity(2)).unwrap();
    }
    let packets = config.get("packet").and_then(|value| value.as_array()).cloned();
    let (endpoint, is_near) = (config.get("packet_endpoint"), packets.is_some());
    let number = if is_near { 1 } else { 4 };
    let grant =
        is_near.then(|| grant_with_sources(identity(1).public(), destinations, NEAR_SOURCES));
    of_gateway(&packets.unwrap_or_default(), endpoint, identity(number), grant).unwrap()
}

/// A gateway or relay, which does not outlive the test.
pub struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(host: &Namespace, config: &str) -> Self {
        let start = || {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(CONFIG, config).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let mut child = host.run(start).unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, stdout };
        process.wait_until_ready();
        process
    }

    /// Has another process take over.
    pub fn upgrade(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
    }

    /// Returns how many descriptors it has.
    pub fn descriptors(&self) -> u64 {
        descriptors::count(self.child.id()).unwrap()
    }

    /// Stops it (SIGSTOP), or continues it (SIGCONT).
    pub fn set_halted(&self, is_halted: bool) {
        let change = if is_halted { processes::pause } else { processes::resume };
        change(self.child.id()).unwrap();
    }

    /// Ends it, and waits.
    pub fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
