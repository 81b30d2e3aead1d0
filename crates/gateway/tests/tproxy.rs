//! A transparent gateway between a client and a server that are not configured for it, each in a
//! network namespace of its own; the gateway is a process, which is ended, killed, and upgraded
//! under load.
//!
//! This program is its own child: called with a configuration in the environment it is the gateway.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown as Half, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use support::{Running, patient, wait_for};
use tradewind_config::GatewayConfig;
use tradewind_gateway::Gateway;
use tradewind_net::interception::{AddressRange, Capture, Interception, make_transparent};
use tradewind_net::iproute::{Tool, ask, batch};
use tradewind_net::netns::Namespace;
use tradewind_net::privileges::{Account, Capability, become_user, is_root, keep_only};
use tradewind_net::userns::become_root_inside;
use tradewind_net::{NetError, sandbox, sysctl};
use tradewind_stream::{Rights, Shutdown};

type Test = fn(&Hosts);
const TESTS: [(&str, Test); 5] = [
    ("tproxy_keeps_client_address_and_cleans_up", Hosts::check),
    ("tproxy_upgrade_refuses_no_connection", Hosts::check_upgrade),
    ("tproxy_connection_survives_a_rule_change", Hosts::check_rules_that_change),
    ("hung_gateway_is_bypassed_by_new_connections", Hosts::check_halt),
    ("relay_dials_are_not_intercepted_again", Hosts::check_loop),
];
const CONFIG: &str = "TRADEWIND_TEST_GATEWAY_CONFIG";

fn main() {
    if let Ok(config) = std::env::var(CONFIG) {
        return be_a_gateway(&config);
    }
    if std::env::args().any(|word| word == "--list") {
        return TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
    }
    let root = become_root_inside();
    for (name, test) in TESTS {
        match root.as_ref().map_err(ToString::to_string).and_then(|()| Hosts::new()) {
            Ok(hosts) => test(&hosts),
            Err(error) => {
                eprintln!("SKIPPED {name}: {error}");
                continue;
            }
        }
        println!("test {name} ... ok");
    }
}

fn be_a_gateway(config: &str) {
    let config = GatewayConfig::parse(config).unwrap();
    let rights = Rights::of_gateway(&config);
    give_up_all_but(&rights.of_process, &rights.of_workers);
    let shutdown = Shutdown::on_signals().unwrap();
    let mut gateway = Gateway::bind(&config).unwrap();
    gateway.intercept(&shutdown).unwrap();
    println!("{}", std::process::id());
    gateway.run(&shutdown).unwrap();
}

/// Continues as another user with these capabilities, of which workers keep some, in the sandbox,
/// as the program does.
fn give_up_all_but(keep: &[Capability], of_workers: &[Capability]) {
    let nobody = Account::find("nobody").unwrap().filter(|_| is_root());
    match nobody.filter(|nobody| nobody.out_of_reach().is_none()) {
        Some(nobody) => become_user(&nobody, keep).unwrap(),
        None => drop(keep_only(keep).unwrap()),
    }
    sandbox::enter(keep, of_workers).unwrap();
}

/// A copy of this program that any user may start, as an upgrade does; removed with this.
struct Program(PathBuf);

impl Program {
    fn link() -> Self {
        let link = std::env::temp_dir().join(format!("tradewind-tproxy-{}", std::process::id()));
        let program = std::env::current_exe().unwrap();
        fs::hard_link(&program, &link).or_else(|_| fs::copy(&program, &link).map(drop)).unwrap();
        Self(link)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

/// A gateway, which does not outlive the test.
struct Process {
    child: Child,
    /// Its successors write here, too.
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn end(&mut self, with: &str) {
        assert!(signal(with, self.child.id()));
        self.child.wait().unwrap();
    }

    /// Returns the next process that reports its rules in force.
    fn ready(&mut self) -> u32 {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A process whose parent has ended.
struct Orphan(u32);

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ended = signal("-KILL", self.0);
    }
}

fn signal(signal: &str, process: u32) -> bool {
    let mut kill = Command::new("kill");
    kill.args([signal, &process.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

/// Sets the flag when dropped, also by a panic: threads that poll it end.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Client, gateway and server in a row; the client's route to the server is through the gateway's
/// host.
struct Hosts {
    client: Namespace,
    middle: Namespace,
    server: Namespace,
    program: Program,
}

const SERVER_V4: &str = "10.88.1.2:9000";
const SERVER_V6: &str = "[fd88:1::2]:9000";

impl Hosts {
    fn new() -> Result<Self, String> {
        Self::joined().map_err(|error| error.to_string())
    }

    fn joined() -> Result<Self, NetError> {
        let [client, middle, server] =
            [Namespace::create()?, Namespace::create()?, Namespace::create()?];
        let links = [(&client, &middle, 0), (&middle, &server, 1)];
        for (left, right, index) in links {
            use std::os::fd::AsRawFd;
            let path = format!("/proc/{}/fd/{}", std::process::id(), right.as_raw_fd());
            let ends = |device: &str, number: u8| {
                [
                    format!("addr add 10.88.{index}.{number}/24 dev {device}"),
                    format!("addr add fd88:{index}::{number}/64 dev {device} nodad"),
                    format!("link set {device} up"),
                    "link set lo up".to_owned(),
                ]
            };
            let link = format!("link add right type veth peer name left netns {path}");
            batch(left, Tool::Ip, &[&[link][..], &ends("right", 1)].concat())?;
            batch(right, Tool::Ip, &ends("left", 2))?;
        }
        let default = |to: &str| [format!("route add default via {to}")];
        batch(&client, Tool::Ip, &[default("10.88.0.2"), default("fd88:0::2")].concat())?;
        batch(&server, Tool::Ip, &[default("10.88.1.1"), default("fd88:1::1")].concat())?;
        middle.run(|| {
            sysctl::set("net.ipv4.ip_forward", "1")?;
            sysctl::set("net.ipv6.conf.all.forwarding", "1")
        })??;
        Ok(Self { client, middle, server, program: Program::link() })
    }

    fn check(&self) {
        self.serve();
        // Rules that a killed gateway has left, and foreign ones.
        let rule = |words: &str| {
            let words: Vec<&str> = words.split(' ').collect();
            self.middle.run(|| ask(Tool::Ip, &words)).unwrap().unwrap();
        };
        rule("rule add fwmark 0x54570009 lookup 1414987785 proto 84 pref 84");
        rule("route add local default dev lo table 1414987785 proto 84");
        rule("rule add fwmark 0x9 lookup 1414987785 proto 84 pref 90");
        let before = self.traces();
        assert_eq!(before.matches("fwmark").count(), 2, "{before}");

        for end in ["-TERM", "-KILL"] {
            let mut gateway = self.gateway();
            let traces = self.traces();
            assert!(traces.contains("tradewind-tproxy-"), "{traces}");
            assert!(!traces.contains("0x54570009"), "leftovers are swept: {traces}");
            for to in [SERVER_V4, SERVER_V6] {
                self.passes_through_the_gateway(&self.client, to);
                self.passes_through_the_gateway(&self.middle, to);
            }
            gateway.end(end);
            wait_for("the rules to go", || !self.traces().contains("tradewind-tproxy-"));
            for to in [SERVER_V4, SERVER_V6] {
                self.goes_its_own_way(&self.client, to);
                self.goes_its_own_way(&self.middle, to);
            }
        }
        // Only the routing, which does nothing by itself, outlives SIGKILL, until the next gateway
        // starts. A signal at once, before it serves, ends it in order as well.
        self.gateway().end("-TERM");
        let after = self.traces();
        assert!(!after.contains("fwmark 0x5457") && after.contains("fwmark 0x9 "), "{after}");
    }

    /// Checks that connections through the gateway's host and from it are not disturbed while the
    /// next process takes over.
    fn check_upgrade(&self) {
        self.serve();
        let mut gateway = self.gateway();
        let ways = [(&self.client, SERVER_V4), (&self.client, SERVER_V6)];
        let ways = [&ways[..], &[(&self.middle, SERVER_V4), (&self.middle, SERVER_V6)]].concat();
        let long: Vec<TcpStream> = ways.iter().map(|(from, to)| connect(from, to)).collect();
        let (over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
        let successor = std::thread::scope(|scope| {
            let _over = SetAtEnd(&over);
            let come_and_go = |(from, to): (&Namespace, &str)| {
                while !over.load(Ordering::Relaxed) {
                    self.passes_through_the_gateway(from, to);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            };
            let load: Vec<_> =
                ways.iter().map(|way| scope.spawn(move || come_and_go(*way))).collect();
            let more = || {
                let before = count.load(Ordering::Relaxed);
                let broken = || load.iter().any(std::thread::ScopedJoinHandle::is_finished);
                wait_for("connections", || {
                    count.load(Ordering::Relaxed) >= before + 200 || broken()
                });
                assert!(!broken(), "a connection failed, or went its own way");
            };
            more();
            assert!(signal("-USR2", gateway.child.id()));
            let successor = Orphan(gateway.ready());
            more();
            // The old process serves its connections to their end, and ends then.
            assert!(gateway.child.try_wait().unwrap().is_none());
            long.into_iter().for_each(end_in_order);
            assert!(gateway.child.wait().unwrap().success());
            more();
            successor
        });
        assert!(signal("-TERM", successor.0));
        wait_for("the rules to go", || !self.traces().contains("tradewind-tproxy-"));
        for (from, to) in ways {
            self.goes_its_own_way(from, to);
        }
    }

    /// Checks a gateway that hangs, and its successor while it has connections left itself.
    fn check_halt(&self) {
        self.serve();
        let mut gateway = self.gateway();
        self.check_halt_of(gateway.child.id());
        let long = connect(&self.client, SERVER_V4);
        assert!(signal("-USR2", gateway.child.id()));
        let successor = Orphan(gateway.ready());
        self.check_halt_of(successor.0);
        assert!(gateway.child.try_wait().unwrap().is_none());
        end_in_order(long);
        assert!(gateway.child.wait().unwrap().success());
    }

    fn check_halt_of(&self, gateway: u32) {
        let ways =
            [&self.client, &self.middle].map(|from| [SERVER_V4, SERVER_V6].map(|to| (from, to)));
        let ways = ways.as_flattened();
        let long: Vec<TcpStream> = ways.iter().map(|(from, to)| connect(from, to)).collect();
        assert!(signal("-STOP", gateway));
        wait_for("the rules to lapse", || self.felt() == 0);
        for (from, to) in ways {
            self.goes_its_own_way(from, to);
        }
        assert!(signal("-CONT", gateway));
        wait_for("the rules to hold again", || self.felt() == 2);
        for (from, to) in ways {
            self.passes_through_the_gateway(from, to);
        }
        long.into_iter().for_each(end_in_order);
    }

    /// Returns the number of families whose rules name a process that goes on.
    fn felt(&self) -> usize {
        let list = || Command::new("nft").args(["list", "sets"]).output().unwrap().stdout;
        String::from_utf8(self.middle.run(list).unwrap()).unwrap().matches("expires").count()
    }

    /// Checks connections that this host opened under the first rules alone, and those that waited
    /// for the listener until the rules were gone.
    fn check_rules_that_change(&self) {
        let change = || {
            let listener = TcpListener::bind(support::loopback()).unwrap();
            make_transparent(&listener).unwrap();
            let capture = Capture {
                destinations: vec![AddressRange {
                    base: "10.88.1.0".parse().unwrap(),
                    prefix_bits: 24,
                    ports: 9000..=9000,
                }],
                listeners: vec![listener.local_addr().unwrap()],
                local_output: true,
            };
            let first = Interception::set(&capture).unwrap();
            let mut near = TcpStream::connect(SERVER_V4).unwrap();
            let _next = Interception::set(&capture).unwrap();
            drop(first);
            near.write_all(b"goes on").unwrap();
            let (mut remote, _) = listener.accept().unwrap();
            patient(&remote);
            let mut received = [0; 7];
            remote.read_exact(&mut received).unwrap();
            assert_eq!(&received, b"goes on");
        };
        self.middle.run(change).unwrap();
    }

    /// Answers connections to the server.
    fn serve(&self) {
        let listener = self.server.run(|| TcpListener::bind("[::]:9000").unwrap()).unwrap();
        let answer = |one: std::io::Result<TcpStream>| {
            std::thread::spawn(move || answer(one.unwrap()));
        };
        std::thread::spawn(move || listener.incoming().for_each(answer));
    }

    /// Checks a relay whose route to the server leads through the gateway as well: by the address
    /// that the gateway knows, and by another one, as of a relay behind a translator.
    fn check_loop(&self) {
        self.serve();
        let mut config = support::relay_config();
        config.listen = vec!["10.88.0.1:7000".parse().unwrap()];
        config.policy.destinations.push("10.88.1.0/24:9000".parse().unwrap());
        let relay = self.client.run(|| Running::relay(&config)).unwrap();
        let key = support::identity();
        let mut grant = support::grant_for(key.public()).unverified().clone();
        grant.destinations.push("10.88.1.0/24:9000".parse().unwrap());
        let hop = relay.hop("near");
        let _gateway = self.gateway_of(&format!(
            "identity = '{}'
            grant = '{}'
            workers = 1
            [limits]
            sessions = 50
            [routes]
            default = ['near']
            [[routes.relay]]
            name = 'near'
            address = '{}'
            identity = '{}'
            [[tproxy]]
            destinations = ['10.88.1.0/24:9000']",
            *key.to_secret_text(),
            grant.sign(&support::operator()).unwrap(),
            hop.address,
            hop.identity,
        ));
        batch(&self.client, Tool::Ip, &["addr add 10.88.0.9/24 dev right".to_owned()]).unwrap();
        for source in ["10.88.0.1", "10.88.0.9"] {
            let route = format!("route replace 10.88.1.0/24 via 10.88.0.2 src {source}");
            batch(&self.client, Tool::Ip, &[route]).unwrap();
            let before = relay.handle.snapshot().accepted;
            let (_, _, (peer, data)) = self.exchange(&self.client, SERVER_V4);
            assert_eq!((peer.ip().to_string().as_str(), data.as_slice()), (source, &b"hello"[..]));
            wait_for("the session's end", || relay.handle.snapshot().open == 0);
            assert_eq!(relay.handle.snapshot().accepted - before, 1, "one session and no more");
        }
    }

    fn gateway(&self) -> Process {
        self.gateway_of(
            "direct = true
            [routes]
            default = 'direct'
            [[tproxy]]
            destinations = ['10.88.1.0/24:9000', '[fd88:1::]/64:9000']
            local_output = true
            send_proxy = 'v2'",
        )
    }

    fn gateway_of(&self, config: &str) -> Process {
        let start = || {
            let mut command = Command::new(&self.program.0);
            command.env(CONFIG, config).stdin(Stdio::null()).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let mut child = self.middle.run(start).unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut process = Process { child, stdout };
        assert_eq!(process.ready(), process.child.id());
        process
    }

    /// Returns everything that an interception could leave behind on the gateway's host.
    fn traces(&self) -> String {
        let list = || {
            let tables = Command::new("nft").args(["list", "tables"]).output().unwrap().stdout;
            let rules = ["-4", "-6"].map(|family| ask(Tool::Ip, &[family, "rule"]).unwrap());
            [String::from_utf8(tables).unwrap(), rules.concat()].concat()
        };
        self.middle.run(list).unwrap()
    }

    fn passes_through_the_gateway(&self, from: &Namespace, to: &str) {
        let (client, server, received) = self.exchange(from, to);
        let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
        match (client.ip(), server.ip()) {
            (IpAddr::V4(client), IpAddr::V4(server)) => {
                expected.extend([0x11, 0, 12]);
                expected.extend([client.octets(), server.octets()].concat());
            }
            (IpAddr::V6(client), IpAddr::V6(server)) => {
                expected.extend([0x21, 0, 36]);
                expected.extend([client.octets(), server.octets()].concat());
            }
            mixed => panic!("{mixed:?}"),
        }
        expected.extend([client.port().to_be_bytes(), server.port().to_be_bytes()].concat());
        expected.extend(b"hello");
        let (peer, data) = received;
        assert_eq!(data, expected, "the true client, then its data");
        assert!(["10.88.1.1", "fd88:1::1"].contains(&peer.ip().to_string().as_str()), "{peer}");
        // From another host the gateway's port may be the client's by chance; from its own it
        // cannot.
        assert_ne!(peer, client, "another connection");
    }

    fn goes_its_own_way(&self, from: &Namespace, to: &str) {
        let (client, _, (peer, data)) = self.exchange(from, to);
        assert_eq!((peer, data.as_slice()), (client, b"hello".as_slice()));
    }

    /// Exchanges a greeting; returns the connection's own ends, and those that the server saw.
    fn exchange(
        &self,
        from: &Namespace,
        to: &str,
    ) -> (SocketAddr, SocketAddr, (SocketAddr, Vec<u8>)) {
        let mut stream = connect(from, to);
        let ends = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        assert_eq!(ends.1.to_string(), to);
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Half::Write).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        let split = received.iter().position(|byte| *byte == b'|').unwrap();
        let peer = String::from_utf8(received[..split].to_vec()).unwrap().parse().unwrap();
        (ends.0, ends.1, (peer, received[split + 1..].to_vec()))
    }
}

fn connect(from: &Namespace, to: &str) -> TcpStream {
    let stream = from.run(|| TcpStream::connect(to)).unwrap().unwrap();
    patient(&stream);
    stream
}

/// Sends the last data of a connection at a gateway, which must still reach the server and be
/// answered.
fn end_in_order(mut stream: TcpStream) {
    stream.write_all(b"still").unwrap();
    stream.shutdown(Half::Write).unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    assert!(received.ends_with(b"still"), "{}", String::from_utf8_lossy(&received));
}

/// Sends the client the peer address, and all that was received.
fn answer(mut stream: TcpStream) {
    patient(&stream);
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    let peer = stream.peer_addr().unwrap();
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    stream.write_all(&[format!("{peer}|").as_bytes(), &received].concat()).unwrap();
}
