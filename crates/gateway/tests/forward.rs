//! A chain of two forwarding relays between a client and a server without routes to each other,
//! each in a network namespace of its own.
//!
//! This program is its own child: called with a rule in the environment it is a forwarder, to be
//! killed.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod support;

use std::io::{BufRead as _, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use support::{content, digest, hash, patient, send, wait_for};
use tradewind_net::iproute::{Tool, batch};
use tradewind_net::netns::Namespace;
use tradewind_net::userns::become_root_inside;
use tradewind_net::{NetError, sysctl};
use tradewind_relay::{ForwardRule, Forwarder};
use tradewind_stream::{Shutdown, StreamError};

const TEST: &str = "two_forwarding_relays_carry_every_byte_and_leave_nothing_behind";

const RULE: &str = "TRADEWIND_TEST_FORWARD_RULE";

fn main() {
    if let Ok(text) = std::env::var(RULE) {
        let forwarder = Forwarder::set(&rule(&text)).unwrap();
        println!("ready");
        return forwarder.run(&Shutdown::on_signals().unwrap()).unwrap();
    }
    if std::env::args().any(|word| word == "--list") {
        return println!("{TEST}: test");
    }
    let made = become_root_inside().and_then(|()| Chain::new());
    match made.map(|chain| (chain.relay_rules(), chain)) {
        Ok((Ok(relays), chain)) => chain.check(relays),
        Ok((Err(StreamError::Rules(error @ NetError::MissingTool { .. })), _)) | Err(error) => {
            return eprintln!("SKIPPED {TEST}: {error}");
        }
        Ok((Err(error), _)) => panic!("{error}"),
    }
    println!("test {TEST} ... ok");
}

/// Client, two relays and server in a row; neighbours share a network, and none has a route beyond.
struct Chain {
    hosts: Vec<Namespace>,
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn rule(text: &str) -> [ForwardRule; 1] {
    [text.parse().unwrap()]
}

impl Chain {
    fn new() -> Result<Self, NetError> {
        let hosts = (0..4).map(|_| Namespace::create()).collect::<Result<Vec<_>, _>>()?;
        let path = |host: &Namespace| {
            use std::os::fd::AsRawFd;
            format!("/proc/{}/fd/{}", std::process::id(), host.as_raw_fd())
        };
        for (index, pair) in hosts.windows(2).enumerate() {
            let link = format!("link add right type veth peer name left netns {}", path(&pair[1]));
            let near = [
                link,
                format!("addr add 10.77.{index}.1/24 dev right"),
                "link set right up".to_owned(),
                "link set lo up".to_owned(),
            ];
            batch(&pair[0], Tool::Ip, &near)?;
            let remote =
                [format!("addr add 10.77.{index}.2/24 dev left"), "link set left up".to_owned()];
            batch(&pair[1], Tool::Ip, &remote)?;
        }
        for relay in &hosts[1..3] {
            relay.run(|| sysctl::set("net.ipv4.ip_forward", "1"))??;
        }
        Ok(Self { hosts })
    }

    fn relay_rules(&self) -> Result<[Forwarder; 2], StreamError> {
        let first = rule("10.77.0.2:7000=10.77.1.2:7001");
        let second = rule("10.77.1.2:7001=10.77.2.2:9000");
        let first = self.hosts[1].run(|| Forwarder::set(&first))??;
        let holder = self.hosts[2].run(|| Forwarder::set(&second))??;
        let refused = self.hosts[2].run(|| Forwarder::set(&second))?.unwrap_err().to_string();
        assert!(refused.contains("no other process holds"), "{refused}");
        drop(holder);
        Ok([first, self.hosts[2].run(|| Forwarder::set(&second))??])
    }

    fn check(&self, relays: [Forwarder; 2]) {
        assert_eq!(self.tables(2), ["table inet tradewind-forward-10.77.1.2-7001"]);
        let bytes = content(3_000_000);
        let listener =
            self.hosts[3].run(|| TcpListener::bind(at("10.77.2.2:9000")).unwrap()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, peer) = listener.accept().unwrap();
            patient(&stream);
            let (mut received, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
            while let read @ 1.. = stream.read(&mut buffer).unwrap() {
                received.extend_from_slice(&buffer[..read]);
            }
            send(&mut stream, &received);
            peer
        });
        let mut stream = self.connect().unwrap();
        patient(&stream);
        let mut reader = stream.try_clone().unwrap();
        let answer = std::thread::spawn(move || digest(&mut reader).unwrap());
        send(&mut stream, &bytes);
        assert_eq!(answer.join().unwrap(), (bytes.len(), hash(&bytes)));
        assert_eq!(server.join().unwrap().ip(), at("10.77.2.1:0").ip(), "the relay's address");
        let [first, second] = relays;
        self.hosts[1].run(|| drop(first)).unwrap();
        self.hosts[2].run(|| drop(second)).unwrap();
        assert_eq!(self.tables(1), [""; 0]);
        assert_eq!(self.tables(2), [""; 0]);
        assert!(self.connect().is_err(), "nothing is forwarded any more");
        self.gone_after_a_kill();
        self.refused_without_forwarding();
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        self.hosts[0].run(|| TcpStream::connect(at("10.77.0.2:7000"))).unwrap()
    }

    fn tables(&self, host: usize) -> Vec<String> {
        let list = || Command::new("nft").args(["list", "tables"]).output().unwrap().stdout;
        let text = String::from_utf8(self.hosts[host].run(list).unwrap()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Checks that the rules of a forwarder that is killed are removed.
    fn gone_after_a_kill(&self) {
        let start = || {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(RULE, "10.77.0.2:7000=10.77.1.2:7001");
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
        };
        let mut forwarder = self.hosts[1].run(start).unwrap();
        let mut line = String::new();
        BufReader::new(forwarder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let tables = self.tables(1);
        forwarder.kill().unwrap();
        forwarder.wait().unwrap();
        assert_eq!((line.as_str(), tables.len()), ("ready\n", 1), "{tables:?}");
        wait_for("the rules to go", || self.tables(1).is_empty());
    }

    /// Checks that a host that does not forward is refused, and keeps no rule.
    fn refused_without_forwarding(&self) {
        let refused = self.hosts[3].run(|| Forwarder::set(&rule("10.77.2.2:7000=10.77.2.1:1")));
        let error = refused.unwrap().unwrap_err().to_string();
        assert!(error.contains("sysctl -w net.ipv4.ip_forward=1"), "{error}");
        assert_eq!(self.tables(3), [""; 0]);
    }
}
