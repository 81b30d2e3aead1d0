//! Whole packets of unmodified applications, read from one TUN device and written to another:
//! client, local gateway, remote gateway and server in a row, each in a network namespace of its
//! own; the gateways are processes, which are killed.
//!
//! Carried packets and those on the original path look the same to both ends, so that connections
//! outlive gateways. To tell them apart, the remote host can stop forwarding from one link to the
//! other: then only carried packets arrive.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod nodes;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Instant;

use nodes::hosts::{Process, Row, TEST_TIMEOUT, connected_to, run_test};
use nodes::{identity, operator};
use tradewind_net::NetError;
use tradewind_net::iproute::{Tool, ask, batch};
use tradewind_net::netns::Namespace;

const TEST: &str = "tunnelled_packets_survive_failures";

/// The server, by family, and an address of the remote host itself.
const SERVERS: [&str; 2] = ["10.89.2.2:9000", "[fd89:2::2]:9000"];
const REMOTE: &str = "10.89.2.1:9000";
const DESTINATIONS: &str = "10.89.2.0/24:* [fd89:2::]/64:*";
/// More bytes than the remote host's link to the local one takes in one packet.
const BYTES: usize = 100_000;
const MTU: usize = 1400;

fn main() {
    run_test(TEST, DESTINATIONS, Hosts::new, Hosts::check);
}

struct Hosts(Row);

impl Hosts {
    fn new() -> Result<Self, NetError> {
        let row = Row::new()?;
        batch(&row.near, Tool::Ip, &[format!("link set right mtu {MTU}")])?;
        batch(&row.remote, Tool::Ip, &[format!("link set left mtu {MTU}")])?;
        Ok(Self(row))
    }

    fn check(&self) {
        for (host, address) in
            [(&self.0.server, SERVERS[0]), (&self.0.server, SERVERS[1]), (&self.0.remote, REMOTE)]
        {
            host.run(|| answer(address)).unwrap();
        }
        let older = Talks::new(self);
        older.wait_until_answered("over the original path");
        let mut remote = self.remote_gateway();
        for _ in 0..2 {
            let near = self.near_gateway();
            self.set_closed(true);
            older.wait_until_answered("in conversations that are older than the gateway");
            let younger = Talks::new(self);
            younger.wait_until_answered("in younger conversations");
            assert_eq!(self.pieces(), [0; 4], "packets were fragmented");
            self.set_closed(false);
            let killed = Instant::now();
            drop(near);
            older.wait_until_answered("over the original path");
            younger.wait_until_answered("over the original path");
            println!("{} ms after SIGKILL all had answers again", killed.elapsed().as_millis());
            assert!(!self.has_route(&self.0.near), "a route outlived its gateway");
        }

        let mut near = self.near_gateway();
        self.set_closed(true);
        older.wait_until_answered("through the new local gateway");
        for (gateway, whose) in [(&mut near, "near"), (&mut remote, "remote")] {
            gateway.upgrade();
            let changed = Instant::now();
            older.wait_until_answered("through a gateway's successor");
            println!(
                "{} ms after the {whose} gateway's successor took over",
                changed.elapsed().as_millis()
            );
        }
        for (gateway, whose) in [(&near, "near"), (&remote, "remote")] {
            self.set_closed(false);
            gateway.set_halted(true);
            let halted = Instant::now();
            older.wait_until_answered("round a gateway that hangs");
            println!("{} ms after the {whose} gateway hung", halted.elapsed().as_millis());
            gateway.set_halted(false);
            self.set_closed(true);
            older.wait_until_answered("through a gateway that went on");
        }
        self.set_closed(false);
        let killed = Instant::now();
        drop(remote);
        older.wait_until_answered("round a dead remote gateway");
        println!("{} ms after the remote gateway's", killed.elapsed().as_millis());
        remote = self.remote_gateway();
        self.set_closed(true);
        older.wait_until_answered("through the new remote gateway");
        near.end();
        remote.end();
        self.set_closed(false);
        older.wait_until_answered("over the original path after an orderly end");
        for host in [&self.0.near, &self.0.remote] {
            assert!(!self.has_route(host), "a route outlived its gateway");
        }
    }

    fn near_gateway(&self) -> Process {
        let remote = identity(4).public();
        Process::start(
            &self.0.near,
            &format!(
                "[[packet]]
                tun = {{ name = 'tw0', destinations = ['10.89.2.0/24:*', '[fd89:2::]/64:*'] }}
                remote = {{ address = '10.89.1.2:7001', identity = '{remote}' }}
                [packet_endpoint]"
            ),
        )
    }

    fn remote_gateway(&self) -> Process {
        let operator = operator().public();
        Process::start(
            &self.0.remote,
            &format!(
                "[packet_endpoint]
                listen = '10.89.1.2:7001'
                operators = ['{operator}']
                destinations = ['10.89.2.0/24:*', '10.89.2.1/32:*', '[fd89:2::]/64:*']
                tun = {{ name = 'tw1', sources = ['10.89.0.0/24:*', '10.89.1.1/32:*', \
                '[fd89::]/64:*'] }}"
            ),
        )
    }

    /// Sets whether the remote host forwards nothing between its links.
    fn set_closed(&self, is_closed: bool) {
        let rules = if is_closed {
            "table inet closed { chain passing { type filter hook forward priority 0; iifname \
             left oifname right drop; iifname right oifname left drop; }; \
             chain coming { type filter hook input priority 0; iifname left ip daddr 10.89.2.1 \
             drop; }; }"
        } else {
            "delete table inet closed"
        };
        let run = || Command::new("nft").arg(rules).status().unwrap();
        assert!(self.0.remote.run(run).unwrap().success());
    }

    /// Returns the fragments that the gateways' hosts have made of packets, by host and family.
    fn pieces(&self) -> [u64; 4] {
        let [near, remote] =
            [&self.0.near, &self.0.remote].map(|host| host.run(pieces_here).unwrap());
        [near[0], near[1], remote[0], remote[1]]
    }

    fn has_route(&self, host: &Namespace) -> bool {
        let routes = host.run(|| {
            ["-4", "-6"]
                .map(|family| ask(Tool::Ip, &[family, "route", "show", "table", "all"]).unwrap())
        });
        routes.unwrap().iter().any(|routes| routes.contains("dev tw"))
    }
}

/// Returns the fragments that this thread's host has made of packets, IPv4 and IPv6.
fn pieces_here() -> [u64; 2] {
    let read =
        |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let v4 = read("snmp");
    let rows: Vec<Vec<&str>> = v4
        .lines()
        .filter(|line| line.starts_with("Ip:"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let place = rows[0].iter().position(|name| *name == "FragCreates").unwrap();
    let v6 = read("snmp6");
    let row = v6.lines().find(|line| line.starts_with("Ip6FragCreates")).unwrap();
    [rows[1][place], row.split_whitespace().last().unwrap()].map(|count| count.parse().unwrap())
}

/// Conversations of one age: a connection and datagrams, by family, of the client; a connection of
/// the local host itself to the remote one.
struct Talks {
    streams: Vec<TcpStream>,
    sockets: Vec<UdpSocket>,
}

impl Talks {
    fn new(hosts: &Hosts) -> Self {
        let connect = |host: &Namespace, to: &str| {
            let to: SocketAddr = to.parse().unwrap();
            let stream =
                host.run(|| TcpStream::connect_timeout(&to, TEST_TIMEOUT)).unwrap().unwrap();
            stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            stream
        };
        let client = &hosts.0.client;
        let mut streams: Vec<TcpStream> = SERVERS.iter().map(|to| connect(client, to)).collect();
        streams.push(connect(&hosts.0.near, REMOTE));
        let socket = |to: &&str| client.run(|| connected_to(to)).unwrap();
        Self { streams, sockets: SERVERS.iter().map(socket).collect() }
    }

    /// Sends, in each, until a whole reply has arrived; and to a port where nobody is, until ICMP
    /// reports that.
    fn wait_until_answered(&self, how: &str) {
        for socket in &self.sockets {
            let answered = wait_for(|| {
                let _lost = socket.send(&[7; 1000]);
                socket.recv(&mut [0; 2048]).is_ok_and(|length| length == 1000)
            });
            assert!(answered, "no datagram came {how} from {:?}", socket.peer_addr());
        }
        for socket in &self.sockets {
            let nobody = SocketAddr::new(socket.peer_addr().unwrap().ip(), 9);
            let near = socket.try_clone().unwrap();
            near.connect(nobody).unwrap();
            let refused = wait_for(|| {
                let result = near.send(&[7; 10]).and_then(|_| near.recv(&mut [0; 16]));
                result.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            });
            near.connect(SocketAddr::new(nobody.ip(), 9000)).unwrap();
            assert!(refused, "nothing told {how} that nobody is at {nobody}");
        }
        for stream in &self.streams {
            let sent: Vec<u8> = (0..BYTES).map(|place| (place % 251) as u8).collect();
            let mut came = vec![0; BYTES];
            std::thread::scope(|scope| {
                let (mut sender, mut receiver) = (stream, stream);
                let sent = &sent;
                scope.spawn(move || sender.write_all(sent).unwrap());
                let read = receiver.read_exact(&mut came);
                assert!(read.is_ok(), "{read:?} {how} from {:?}", stream.peer_addr());
            });
            assert!(came == sent, "something else came {how}");
        }
    }
}

fn wait_for(mut holds: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < TEST_TIMEOUT {
        if holds() {
            return true;
        }
    }
    false
}

/// Echoes datagrams and connections, for as long as the test runs.
fn answer(address: &str) {
    let (socket, listener) =
        (UdpSocket::bind(address).unwrap(), TcpListener::bind(address).unwrap());
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _lost = socket.send_to(&buffer[..length], from);
        }
    });
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = stream.try_clone().unwrap();
                std::io::copy(&mut reader, &mut stream)
            });
        }
    });
}
