//! The list of forbidden destinations, requested of a real relay and of a real gateway's direct
//! route.
//!
//! Every rule is as open as it can be. Where network namespaces may be created, every address there
//! is routed to another host, and a trap that listens on all of them, there and here, counts
//! connections.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

#[path = "../../grant/tests/common/forbidden.rs"]
mod list;
mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use list::{Entry, entries};
use support::{Running, connect, gateway_config, loopback, operator, relay_config, unix_now};
use tradewind_desired::{Route, RouteTable};
use tradewind_gateway::Gateway;
use tradewind_grant::{Destination, DestinationRule, Grant, PublicIdentity, Relays, SignedGrant};
use tradewind_net::NetError;
use tradewind_net::iproute::{Tool, batch};
use tradewind_net::netns::Namespace;
use tradewind_net::userns::become_root_inside;
use tradewind_relay::Relay;
use tradewind_stream::Resolver;

const TEST: &str = "what_is_forbidden_is_refused_by_relay_and_gateway_alike";
/// Rules that cover all addresses, also those that only a rule for that address alone covers.
const EVERYTHING: [&str; 12] = [
    "0.0.0.0/0:*",
    "[::]/0:*",
    "0.0.0.0/8:*",
    "10.0.0.0/8:*",
    "100.64.0.0/10:*",
    "127.0.0.0/8:*",
    "168.63.129.16/32:*",
    "169.254.0.0/16:*",
    "[::1]/128:*",
    "[fc00::]/7:*",
    "[fe80::]/10:*",
    "*.example.com:*",
];

fn main() {
    if std::env::args().any(|word| word == "--list") {
        return println!("{TEST}: test");
    }
    // Before any thread is started.
    let trap = match become_root_inside().and_then(|()| Trap::set()) {
        Ok(trap) => Some(trap),
        Err(reason) => {
            eprintln!("SKIPPED {TEST}: without the trap for dials: {reason}");
            None
        }
    };
    refuse_the_list(trap.as_ref());
    println!("test {TEST} ... ok");
}

/// Listeners on every address of this host, and on all others, which another host holds.
struct Trap {
    port: u16,
    dialled: Arc<Mutex<Vec<IpAddr>>>,
    _elsewhere: Namespace,
}

impl Trap {
    fn set() -> Result<Self, NetError> {
        let (here, elsewhere) = (Namespace::of_this_thread()?, Namespace::create()?);
        let path = format!("/proc/{}/fd/{}", std::process::id(), elsewhere.as_raw_fd());
        let link = format!("link add out type veth peer name in netns {path}");
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        let elsewhere_has: Vec<_> = lines(&[
            "link set lo up",
            "addr add 192.168.255.2/30 dev in",
            "addr add fdff::2/126 dev in nodad",
            "link set in up",
            "route add local 0.0.0.0/0 dev lo table main",
            "route add local ::/0 dev lo table main",
        ]);
        let here_has: Vec<_> = lines(&[
            "link set lo up",
            &link,
            "addr add 192.168.255.1/30 dev out",
            "addr add fdff::1/126 dev out nodad",
            "link set out up",
            "route add default via 192.168.255.2",
            "route add default via fdff::2",
        ]);
        batch(&here, Tool::Ip, &here_has)?;
        batch(&elsewhere, Tool::Ip, &elsewhere_has)?;
        let v4 = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = v4.local_addr().unwrap().port();
        let listen = |address: &str| {
            // With IPv4 on the other listener this one takes IPv6 alone.
            let options = tradewind_net::tcp::SocketOptions::default();
            let address = format!("{address}:{port}").parse().unwrap();
            let listener = tradewind_net::tcp::listen(address, 1, 16, &options).unwrap().remove(0);
            listener.set_nonblocking(false).unwrap();
            listener
        };
        let v6 = listen("[::]");
        let others = elsewhere.run(|| [listen("0.0.0.0"), listen("[::]")])?;
        let dialled = Arc::new(Mutex::new(Vec::new()));
        for listener in [v4, v6].into_iter().chain(others) {
            let dialled = Arc::clone(&dialled);
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let at = stream.unwrap().local_addr().unwrap().ip();
                    dialled.lock().unwrap().push(at);
                }
            });
        }
        Ok(Self { port, dialled, _elsewhere: elsewhere })
    }

    fn take(&self) -> Vec<IpAddr> {
        std::mem::take(&mut self.dialled.lock().unwrap())
    }
}

/// A resolver that gives the answers of the list one after the other, and the number of its
/// lookups.
struct Oracle {
    answers: BTreeMap<&'static str, Vec<Vec<IpAddr>>>,
    asked: Mutex<BTreeMap<String, usize>>,
}

impl Oracle {
    fn of(entries: &[Entry]) -> Arc<Self> {
        let answers = entries.iter().map(|entry| (entry.request, entry.answers.clone()));
        Arc::new(Self { answers: answers.collect(), asked: Mutex::default() })
    }

    fn resolver(self: &Arc<Self>) -> Resolver {
        let oracle = Arc::clone(self);
        Resolver::by(move |name| {
            let mut asked = oracle.asked.lock().unwrap();
            let times = asked.entry(name.to_owned()).or_default();
            *times += 1;
            let answers = oracle.answers.get(name).map_or(&[][..], Vec::as_slice);
            answers.get(*times - 1).or(answers.last()).cloned().unwrap_or_default()
        })
    }

    /// Leaves one answer out.
    fn skip(&self, name: &str) {
        *self.asked.lock().unwrap().entry(name.to_owned()).or_default() += 1;
    }

    fn asked(&self, name: &str) -> usize {
        self.asked.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

fn everything() -> Vec<DestinationRule> {
    EVERYTHING.map(|rule| rule.parse().unwrap()).to_vec()
}

fn grant_of_everything(gateway: PublicIdentity) -> SignedGrant {
    let now = unix_now();
    Grant {
        gateway,
        not_before: now,
        expires: now + Duration::from_secs(3600),
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays: Relays::Any,
        destinations: everything(),
    }
    .sign(&operator())
    .unwrap()
}

fn open_relay(resolver: Resolver) -> Running {
    let mut config = relay_config();
    config.policy.destinations = everything();
    // A next hop is no destination.
    config.policy.next_hops.clear();
    config.policy.allow_loopback = false;
    Running::relay_of(Relay::bind(&config).unwrap().with_resolver(resolver))
}

/// Starts a gateway that speaks CONNECT and puts everything on `route`.
fn open_gateway(route: &Route, resolver: Resolver) -> Running {
    let mut config = gateway_config(Route::Refuse);
    let rules = everything().into_iter().map(|rule| (rule, route.clone())).collect();
    config.routes = RouteTable::new(rules, route.clone()).unwrap();
    config.grant = Some(grant_of_everything(config.identity.as_ref().unwrap().public()));
    config.allow_loopback = false;
    config.connect = vec![loopback()];
    Running::gateway_of(Gateway::bind(&config).unwrap().with_resolver(resolver))
}

/// Requests `host` and returns the status line and the body of the answer.
fn ask(gateway: &Running, host: &str, port: u16) -> (String, String) {
    let is_bare_v6 = host.contains(':') && host.parse::<IpAddr>().is_ok();
    let target = if is_bare_v6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut stream = connect(gateway.address());
    write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _reset = stream.read_to_string(&mut answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.lines().next().unwrap_or_default().to_owned(), body.trim().to_owned())
}

fn refuse_the_list(trap: Option<&Trap>) {
    let entries = entries();
    let port = trap.map_or(80, |trap| trap.port);
    let (at_relay, at_gateway) = (Oracle::of(&entries), Oracle::of(&entries));
    let relay = open_relay(at_relay.resolver());
    let over_relay = open_gateway(&Route::Relays(vec![relay.hop("open")]), Resolver::default());
    let direct = open_gateway(&Route::Direct, at_gateway.resolver());
    let mut by_relay = 0;
    for (gateway, oracle) in [(&over_relay, &at_relay), (&direct, &at_gateway)] {
        for Entry { request, answers, why } in &entries {
            // Lookups before the last have good answers, which lead into the trap.
            for (number, good) in answers.iter().rev().skip(1).rev().enumerate() {
                let Some(trap) = trap else {
                    oracle.skip(request);
                    continue;
                };
                let (status, _) = ask(gateway, request, port);
                assert_eq!(status, "HTTP/1.1 200 Connection established", "{why}");
                assert_eq!(oracle.asked(request), number + 1, "{why}: asked once for a session");
                support::wait_for("the dial", || !trap.dialled.lock().unwrap().is_empty());
                assert_eq!(trap.take(), good[..1], "{why}: dialled is what was checked");
            }
            let (status, body) = ask(gateway, request, port);
            match Destination::new(request, port) {
                Err(_) => assert_eq!(status, "HTTP/1.1 400 Bad Request", "{why}"),
                Ok(_) => {
                    assert_eq!(status, "HTTP/1.1 403 Forbidden", "{why}: {body}");
                    // A grant cannot even name addresses that were never assigned.
                    let unnamed = body.starts_with("gateway: grant does not cover destination");
                    // The address of a name is not reported.
                    let expected = if answers.is_empty() {
                        "which is never dialled"
                    } else {
                        "no address that may be dialled"
                    };
                    let never = body.ends_with(expected);
                    assert!(never || (unnamed && answers.is_empty()), "{why}: {body}");
                    by_relay += u64::from(body.starts_with("relay 1 "));
                }
            }
            assert_eq!(oracle.asked(request), answers.len(), "{why}: asked once for a session");
        }
    }
    if let Some(trap) = trap {
        assert_eq!(trap.take(), Vec::<IpAddr>::new(), "dialled, though refused");
    }
    assert!(by_relay >= 80, "{by_relay} reached the relay");
    assert_eq!(relay.handle.snapshot().outcome("destination_refused"), by_relay);
}
