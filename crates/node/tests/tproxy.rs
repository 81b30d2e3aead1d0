//! Datagrams of an unmodified application, intercepted and delivered under their own addresses:
//! client, local gateway, remote gateway and server in a row, each in a network namespace of its
//! own; the gateways are processes, which are ended and killed.
//!
//! The local gateway's host translates addresses, so that the source which the server sees shows a
//! datagram's path: with the client's own address it was carried, with the local host's it took the
//! original path.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod nodes;

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Instant;

use nodes::hosts::{Process, Row, TEST_TIMEOUT, connected_to, run_test};
use nodes::{identity, operator};
use tradewind_net::NetError;
use tradewind_net::iproute::{Tool, ask};

const TEST: &str = "intercepted_datagrams_survive_failures";

/// The limit of conversations.
const CONVERSATIONS: u16 = 1024;

/// The server, by family: at a port that takes a capability, and at one that does not.
const SERVERS: [&str; 2] = ["10.89.2.2:53", "[fd89:2::2]:9000"];
const DESTINATIONS: &str = "10.89.2.0/24:* [fd89:2::]/64:*";
/// The local gateway's host as the server's side of the network sees it, and the remote gateway's
/// as the server does.
const NEAR: [&str; 2] = ["10.89.1.1", "fd89:1::1"];
const REMOTE: [&str; 2] = ["10.89.2.1", "fd89:2::1"];

fn main() {
    run_test(TEST, DESTINATIONS, Hosts::new, Hosts::check);
}

struct Hosts(Row);

impl Hosts {
    fn new() -> Result<Self, NetError> {
        let row = Row::new()?;
        row.near.run(translate_addresses)?;
        Ok(Self(row))
    }

    fn check(&self) {
        for server in SERVERS {
            let socket = self.0.server.run(|| UdpSocket::bind(server).unwrap()).unwrap();
            std::thread::spawn(move || answer(&socket));
        }
        let mut remote = self.remote_gateway();
        let older = Talks::new(self);
        older.wait_until("the original path", ObservedPath::Original);

        for is_orderly in [true, false] {
            let near = self.near_gateway();
            let younger = Talks::new(self);
            older.wait_until("the datagrams of older conversations", ObservedPath::Carried);
            younger.wait_until("the datagrams of younger conversations", ObservedPath::Carried);
            if is_orderly {
                near.end()
            } else {
                drop(near)
            }
            let ended = Instant::now();
            older.wait_until("the original path", ObservedPath::Original);
            younger.wait_until("the original path", ObservedPath::Original);
            let how = if is_orderly { "its end" } else { "SIGKILL" };
            println!("the original path was open {} ms after {how}", ended.elapsed().as_millis());
            assert!(!self.tables().contains("tradewind-tproxy"), "{}", self.tables());
        }

        let mut near = self.near_gateway();
        older.wait_until("carried datagrams", ObservedPath::Carried);
        // A datagram that fills the client's link has no room for a gateway's headers.
        let long = Talks::new(self);
        long.wait_until_of("longer datagrams on their original path", ObservedPath::Original, 184);
        long.wait_until("shorter datagrams of the same conversations", ObservedPath::Carried);
        self.flood(&near, &older);
        for (gateway, whose) in [(&mut near, "near"), (&mut remote, "remote")] {
            gateway.upgrade();
            let changed = Instant::now();
            older.wait_until("what a gateway's successor carries", ObservedPath::Carried);
            println!(
                "{} ms after the {whose} gateway's successor took over",
                changed.elapsed().as_millis()
            );
        }
        for (gateway, whose) in [(&near, "near"), (&remote, "remote")] {
            gateway.set_halted(true);
            let halted = Instant::now();
            older
                .wait_until("the original path round a gateway that hangs", ObservedPath::Original);
            println!("and {} ms after the {whose} gateway hung", halted.elapsed().as_millis());
            gateway.set_halted(false);
            older.wait_until("carried datagrams once it went on", ObservedPath::Carried);
        }
        drop(remote);
        let ended = Instant::now();
        older.wait_until("the original path round a dead remote gateway", ObservedPath::Original);
        println!("and {} ms after the remote gateway's", ended.elapsed().as_millis());
        let remote = self.remote_gateway();
        older.wait_until("the new remote gateway", ObservedPath::Carried);
        near.end();
        remote.end();
        let rules = [&self.0.near, &self.0.remote].map(|host| {
            host.run(|| ["-4", "-6"].map(|family| ask(Tool::Ip, &[family, "rule"]).unwrap()))
                .unwrap()
        });
        assert!(!rules.concat().concat().contains("0x5457"), "{rules:?}");
    }

    /// Has the client write to more destinations than there may be conversations with: new ones are
    /// carried all the same, and no socket is kept for conversations that are over.
    fn flood(&self, near: &Process, older: &Talks) {
        let before = near.descriptors();
        let client = self.0.client.run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        for port in 20_000..20_000 + 2 * CONVERSATIONS {
            client.send_to(b"any", ("10.89.2.2", port)).unwrap();
            if port % 100 == 0 {
                // Active conversations stay.
                older.wait_until("carried datagrams during the flood", ObservedPath::Carried);
            }
        }
        Talks::new(self)
            .wait_until("the datagrams of conversations after the flood", ObservedPath::Carried);
        let most = before + u64::from(CONVERSATIONS);
        assert!(near.descriptors() <= most, "{before} before, {} now", near.descriptors());
    }

    fn near_gateway(&self) -> Process {
        let remote = identity(4).public();
        Process::start(
            &self.0.near,
            &format!(
                "[[packet]]
                tproxy = {{ destinations = ['10.89.2.0/24:*', '[fd89:2::]/64:*'], local_output = \
                true }}
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
                destinations = ['10.89.2.0/24:*', '[fd89:2::]/64:*']
                preserve_source = ['10.89.0.0/24:*', '[fd89::]/64:*']"
            ),
        )
    }

    fn tables(&self) -> String {
        let list = || Command::new("nft").args(["list", "tables"]).output().unwrap().stdout;
        String::from_utf8(self.0.near.run(list).unwrap()).unwrap()
    }
}

/// Gives packets of the client that pass this host the host's address as their source.
fn translate_addresses() {
    let rules = "table inet translation { chain leaving { type nat hook postrouting priority \
        srcnat; oifname right masquerade; }; }";
    let status = Command::new("nft").arg(rules).status().unwrap();
    assert!(status.success());
}

/// The path of datagrams.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ObservedPath {
    Original,
    Carried,
}

/// Conversations of one age: by family, of the client and of the local gateway's own host.
struct Talks(Vec<Talk>);

struct Talk {
    socket: UdpSocket,
    /// The number of its next datagram.
    next: Cell<u64>,
    /// The source that the server sees, by path.
    old: IpAddr,
    carried: IpAddr,
}

impl Talks {
    fn new(hosts: &Hosts) -> Self {
        let mut talks = Vec::new();
        for (family, server) in SERVERS.into_iter().enumerate() {
            let near: IpAddr = NEAR[family].parse().unwrap();
            for host in [&hosts.0.client, &hosts.0.near] {
                let socket = host.run(|| connected_to(server)).unwrap();
                let own = socket.local_addr().unwrap().ip();
                // The remote gateway preserves the client's address, and no other.
                let carried = if own == near { REMOTE[family].parse().unwrap() } else { own };
                talks.push(Talk { socket, next: Cell::new(0), old: near, carried });
            }
        }
        Self(talks)
    }

    /// Sends until a reply shows this path, in each conversation.
    fn wait_until(&self, what: &str, path: ObservedPath) {
        self.wait_until_of(what, path, 100);
    }

    /// Does the same with datagrams of so many numbers, of 8 bytes each.
    fn wait_until_of(&self, what: &str, path: ObservedPath, numbers: usize) {
        for talk in &self.0 {
            talk.wait_until(what, path, numbers);
        }
    }
}

impl Talk {
    fn wait_until(&self, what: &str, path: ObservedPath, numbers: usize) {
        let own = self.socket.local_addr().unwrap();
        let wanted = if path == ObservedPath::Original { self.old } else { self.carried };
        let begun = Instant::now();
        let mut seen = None;
        let mut buffer = [0; 2048];
        let first = self.next.get();
        loop {
            assert!(begun.elapsed() < TEST_TIMEOUT, "{what} did not come to {own}, but {seen:?}");
            let _refused = self.socket.send(&self.next.get().to_be_bytes().repeat(numbers));
            self.next.set(self.next.get() + 1);
            // Replies from another address than was written to do not reach this socket.
            let Ok(length) = self.socket.recv(&mut buffer) else { continue };
            let split = buffer.iter().position(|byte| *byte == b'|').unwrap();
            let peer: SocketAddr = str::from_utf8(&buffer[..split]).unwrap().parse().unwrap();
            let content = &buffer[split + 1..length];
            let number: [u8; 8] = content[..8].try_into().unwrap();
            // Earlier datagrams may have taken another path.
            if u64::from_be_bytes(number) < first {
                continue;
            }
            assert_eq!(content, number.repeat(numbers));
            seen = Some(peer);
            if peer.ip() == wanted {
                let keeps_port = path == ObservedPath::Original
                    || wanted != own.ip()
                    || peer.port() == own.port();
                assert!(keeps_port, "{peer} is not {own}");
                return;
            }
        }
    }
}

/// Replies with the source that it sees, and the content.
fn answer(socket: &UdpSocket) {
    let mut buffer = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let reply = [format!("{from}|").as_bytes(), &buffer[..length]].concat();
        let _lost = socket.send_to(&reply, from);
    }
}
