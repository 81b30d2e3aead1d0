//! Paths with a smaller MTU than their ends' links: two hosts and a router between, each in a
//! network namespace of its own. The router reports it by ICMP, which is ignored.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod nodes;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nodes::hosts::link_in_row;
use nodes::{grant, hop, identity, plain};
use tradewind_net::iproute::{Tool, batch};
use tradewind_net::netns::Namespace;
use tradewind_net::userns::become_root_inside;
use tradewind_net::{NetError, sysctl};
use tradewind_node::{Flow, FlowOptions, Node, NodeConfig};

const TEST: &str = "path_mtu_is_found_and_updated";
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Headers: IPv4 and UDP, the seal, and the message's header before the application's bytes, in a
/// conversation, and in one that is new to the remote endpoint.
const HEADERS: usize = 28 + 29 + 5;
const FIRST_HEADERS: usize = 28 + 29 + 27;

fn main() {
    if std::env::args().any(|word| word == "--list") {
        return println!("{TEST}: test");
    }
    match become_root_inside().and_then(|()| Hosts::new()) {
        Ok(hosts) => hosts.check(),
        Err(error) => return eprintln!("SKIPPED {TEST}: {error}"),
    }
    println!("test {TEST} ... ok");
}

struct Hosts {
    near: Namespace,
    router: Namespace,
    remote: Namespace,
}

impl Hosts {
    fn new() -> Result<Self, NetError> {
        let make = Namespace::create;
        let hosts = Self { near: make()?, router: make()?, remote: make()? };
        link_in_row(90, &[&hosts.near, &hosts.router, &hosts.remote])?;
        for (host, router) in [(&hosts.near, "10.90.0.2"), (&hosts.remote, "10.90.1.1")] {
            batch(host, Tool::Ip, &[format!("route add default via {router}")])?;
        }
        hosts.router.run(|| sysctl::set("net.ipv4.ip_forward", "1"))??;
        Ok(hosts)
    }

    fn check(&self) {
        self.limit(1400);
        let remote = self.remote.run(|| Node::start(plain(4, "10.90.1.2:0".parse().unwrap(), &[])));
        let remote = remote.unwrap().unwrap();
        let echo = self.remote.run(echo).unwrap();
        let grant = grant(identity(1).public(), "127.0.0.0/8:*");
        let near = NodeConfig::of_application(identity(1), grant);
        let near = self.near.run(|| Node::start(near)).unwrap().unwrap();
        let options = FlowOptions::new(hop(remote.address(), 4), Vec::new());
        let flow = near.register(echo, Duration::ZERO, options).unwrap();
        assert!(flow.wait_open(TEST_TIMEOUT).unwrap());
        let longest = self.is_found(&flow, 1400);
        // The first datagram of another flow leaves no room for the header of a first message.
        let options = FlowOptions::new(hop(remote.address(), 4), Vec::new());
        let another = near.register(echo, Duration::ZERO, options).unwrap();
        assert!(another.wait_open(TEST_TIMEOUT).unwrap());
        assert!(comes_back(&another, longest + 20), "a flow of long datagrams does not open");
        assert!(!comes_back(&another, 1500) && near.snapshot().too_long > 0, "it is not counted");
        self.limit(1300);
        self.is_found(&flow, 1300);
    }

    /// Sets the MTU of the link between the router and the remote host.
    fn limit(&self, mtu: usize) {
        batch(&self.router, Tool::Ip, &[format!("link set right mtu {mtu}")]).unwrap();
    }

    fn is_found(&self, flow: &Flow, mtu: usize) -> usize {
        let begun = Instant::now();
        let is_near = |longest: usize| (mtu - 3..=mtu).contains(&(longest + FIRST_HEADERS));
        let longest = loop {
            match flow.longest().filter(|longest| is_near(*longest)) {
                Some(longest) => break longest,
                None => std::thread::sleep(Duration::from_millis(20)),
            }
            assert!(begun.elapsed() < TEST_TIMEOUT, "{:?} for {mtu}", flow.longest());
        };
        println!("{longest} bytes through {mtu} were found in {} ms", begun.elapsed().as_millis());
        assert!(comes_back(flow, longest), "{longest} bytes do not pass");
        assert!(!comes_back(flow, mtu - HEADERS + 1), "one more than there is room for passes");
        assert!(comes_back(flow, longest), "{longest} bytes do not pass any more");
        longest
    }
}

/// Returns whether one of some datagrams of this length comes back.
fn comes_back(flow: &Flow, length: usize) -> bool {
    (0..20).any(|_| {
        flow.send(&vec![7; length]).unwrap();
        let come = std::iter::from_fn(|| flow.receive(Duration::from_millis(50)).unwrap());
        come.take(10).any(|datagram| datagram.len() == length)
    })
}

/// Starts an application on the remote host that echoes every datagram.
fn echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.2:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _lost = socket.send_to(&buffer[..length], from);
        }
    });
    address
}
