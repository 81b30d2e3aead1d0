//! Warm connections between relays, which change a setting of their network.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::net::{TcpListener, TcpStream};
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tradewind_config::RelayConfig;
use tradewind_desired::{Hop, Route};
use tradewind_gateway::survey;
use tradewind_grant::header::{HEADER_PREFIX_BYTES, header_length};
use tradewind_grant::reply::{REPLY_PREFIX_BYTES, reply_length};
use tradewind_grant::warm::{HELLO_BYTES, is_hello};
use tradewind_grant::{
    self as grant, Destination, Nonce, Reply, Request, Sealer, Status, Verifier,
};
use tradewind_net::netns::Namespace;
use tradewind_net::{sysctl, tcp};
use tradewind_units::Segments;

use crate::drain::get;
use crate::failover::command;
use crate::legs::ss_lines;
use crate::refusal::sealer;
use crate::support::{
    Chain, Running, apart, content, echo, forward, gateway_config, identity, loopback,
    open_relay_config, operator, patient, plain_legs, relay_config, relay_loopback, route_over,
    skipped, unix_now, wait_for,
};

/// Starts two relays, the first of which keeps at most one connection to the second ready.
fn chain(second: &RelayConfig, to: SocketAddr) -> Chain {
    let mut first = relay_config();
    first.leg.dial.warm = NonZeroU16::new(1);
    Chain::of(vec![Running::relay(&first), Running::relay(second)], to)
}

fn converse(chain: &Chain) {
    let mut stream = chain.connect();
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
}

/// Waits until no session is open and one connection is idle at the second relay.
fn wait_for_rest(chain: &Chain) {
    wait_for("a connection at rest", || {
        let open = |relay: usize| chain.relays[relay].handle.snapshot().open;
        (open(0), open(1)) == (0, 1) && ss_lines(chain.relays[1].address()).len() == 1
    });
}

/// Returns the local port of the only connection to `address`.
fn only_port(address: SocketAddr) -> String {
    let lines = ss_lines(address);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let local = lines[0].split_whitespace().nth(2).unwrap();
    local.rsplit(':').next().unwrap().to_owned()
}

#[test]
fn session_uses_the_warm_connection() {
    apart(|| {
        let chain = chain(&relay_config(), echo());
        converse(&chain);
        wait_for_rest(&chain);
        let second = chain.relays[1].address();
        let port = only_port(second);
        let mut stream = chain.connect();
        stream.write_all(&[7; 5000]).unwrap();
        stream.read_exact(&mut [0; 5000]).unwrap();
        let line = ss_lines(second).into_iter().find(|line| line.contains(&format!(":{port} ")));
        let line = line.expect("the connection that rested is still there");
        let sent = line.split_once(" bytes_sent:").unwrap().1.split(' ').next().unwrap();
        assert!(sent.parse::<u64>().unwrap() > 5000, "{line}");
        drop(stream);
        wait_for_rest(&chain);
        assert_ne!(only_port(second), port, "another took its place");
    });
}

#[test]
fn excess_warm_connections_are_refused() {
    apart(|| {
        let mut second = relay_config();
        second.limits.resting = 0;
        let chain = chain(&second, echo());
        converse(&chain);
        wait_for("a hello to be refused", || chain.relays[1].handle.snapshot().outcome("full") > 0);
        converse(&chain);
        wait_for("no session", || chain.relays[0].handle.snapshot().open == 0);
        assert_eq!(chain.relays[0].handle.snapshot().outcome("ended"), 2);
    });
}

/// A connection that were retained while there is no capacity for its session would be rejected
/// with it later, when there is capacity.
#[test]
fn full_relay_keeps_no_warm_connection() {
    apart(|| {
        let mut second = relay_config();
        second.limits.sessions = 2;
        second.limits.each_gateway.sessions = NonZeroU32::new(2);
        let chain = chain(&second, echo());
        let converse_on = || {
            let mut stream = chain.connect();
            stream.write_all(b"ping").unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            stream
        };
        let one = converse_on();
        wait_for("a connection at rest", || ss_lines(chain.relays[1].address()).len() == 2);
        let other = converse_on();
        wait_for("a hello to be refused", || chain.relays[1].handle.snapshot().outcome("full") > 0);
        drop((one, other));
        wait_for("no session", || chain.relays[0].handle.snapshot().open == 0);
        drop(converse_on());
        wait_for("three ended", || chain.relays[0].handle.snapshot().outcome("ended") == 3);
    });
}

#[test]
fn gateway_has_warm_connections() {
    apart(|| {
        let relays = [Running::relay(&relay_config())];
        let mut config = gateway_config(route_over(&relays));
        config.forward = vec![forward(echo())];
        config.leg.dial.warm = NonZeroU16::new(1);
        config.metrics = Some(loopback());
        let gateway = Running::gateway(&config);
        let relay = relays[0].address();
        let exchange = |bytes: &[u8]| {
            let mut stream = crate::support::connect(gateway.address());
            stream.write_all(bytes).unwrap();
            stream.read_exact(&mut vec![0; bytes.len()]).unwrap();
            stream
        };
        drop(exchange(b"ping"));
        wait_for("a connection at rest", || {
            let open = (gateway.handle.snapshot().open, relays[0].handle.snapshot().open);
            open == (0, 1) && ss_lines(relay).len() == 1
        });
        let port = only_port(relay);
        let _open = exchange(&[7; 5000]);
        let line = ss_lines(relay).into_iter().find(|line| line.contains(&format!(":{port} ")));
        let line = line.expect("the connection that rested is still there");
        let sent = line.split_once(" bytes_sent:").unwrap().1.split(' ').next().unwrap();
        assert!(sent.parse::<u64>().unwrap() > 5000, "{line}");
        let metrics = get(gateway.handle.metrics_addr().unwrap(), "/metrics");
        for line in ["gateway_warm_hits_total 1", "gateway_warm_misses_total 1"] {
            assert!(metrics.contains(line), "{metrics}");
        }
    });
}

#[test]
fn warm_connections_keep_their_window() {
    const SETTING: &str = "net.ipv4.tcp_slow_start_after_idle";
    let dialling: fn(&mut RelayConfig) = |relay| relay.leg.dial.warm = NonZeroU16::new(1);
    let accepting: fn(&mut RelayConfig) =
        |relay| relay.leg.accept.initial_window = Some(Segments::new(100).unwrap());
    for (rests, change) in
        [(false, (|_| {}) as fn(&mut RelayConfig)), (true, dialling), (true, accepting)]
    {
        apart(|| {
            if let Err(error) = sysctl::set(SETTING, "1") {
                return skipped(&error);
            }
            let mut config = relay_config();
            change(&mut config);
            let _relay = Running::relay(&config);
            assert_eq!(sysctl::get(SETTING).unwrap() == "0", rests);
        });
    }
}

#[test]
fn survey_changes_no_setting() {
    const SETTING: &str = "net.ipv4.tcp_slow_start_after_idle";
    apart(|| {
        if let Err(error) = sysctl::set(SETTING, "1") {
            return skipped(&error);
        }
        let relays = [Running::relay(&relay_config())];
        let mut config = gateway_config(route_over(&relays));
        config.leg.dial.warm = NonZeroU16::new(1);
        let report = survey(&config, None, 1).unwrap();
        assert_eq!(report.rules[0].options[0].state.as_deref(), Some("good"));
        assert_eq!(sysctl::get(SETTING).unwrap(), "1");
    });
}

/// The address named as the next relay may be any host's.
#[test]
fn no_warm_connection_to_an_unknown_relay() {
    apart(|| {
        let listener = TcpListener::bind(loopback()).unwrap();
        let hop = Hop {
            name: "silent".parse().unwrap(),
            address: listener.local_addr().unwrap(),
            identity: identity().public(),
        };
        let mut config = gateway_config(Route::Relays(vec![hop]));
        config.forward = vec![forward(echo())];
        config.leg = plain_legs();
        config.leg.dial.warm = NonZeroU16::new(4);
        let gateway = Running::gateway(&config);
        for failed in 1..=3 {
            let client = crate::support::connect(gateway.address());
            drop(listener.accept().unwrap());
            let failures = || gateway.handle.snapshot().outcome("next_hop_failed");
            wait_for("the session to fail", || failures() == failed);
            drop(client);
        }
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "somebody dialled beside the sessions");
    });
}

#[test]
fn relay_restart_loses_no_session() {
    apart(|| {
        let mut second = relay_config();
        let mut chain = chain(&second, echo());
        converse(&chain);
        wait_for_rest(&chain);
        second.listen = vec![chain.relays[1].address()];
        drop(chain.relays.pop());
        chain.relays.push(Running::relay_again(&second));
        for _ in 0..5 {
            converse(&chain);
        }
        // The new one has learned its neighbour by the first header.
        wait_for_rest(&chain);
        converse(&chain);
    });
}

#[test]
fn drain_ignores_warm_connections() {
    apart(|| {
        let mut chain = chain(&relay_config(), echo());
        converse(&chain);
        wait_for_rest(&chain);
        let second = chain.relays.pop().unwrap();
        let handle = second.handle.clone();
        second.shutdown.drain();
        second.join();
        assert_eq!((handle.snapshot().open, handle.snapshot().outcome("cut")), (0, 0));
    });
}

/// The fate of connections whose hello was accepted.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// They stay idle.
    Rest,
    /// They are dropped without a packet.
    Vanish,
}

/// A last relay of this test, which speaks no TLS, and which echoes the data behind a header
/// itself.
struct Last {
    hop: Hop,
    vanished: Arc<AtomicUsize>,
    headers: Arc<AtomicUsize>,
    /// Locked from the accepted hello until the connection is dropped, and by sessions: none begins
    /// in between.
    turn: Arc<Mutex<()>>,
}

impl Last {
    fn new(fate: Fate) -> Self {
        let identity = identity();
        let listener = TcpListener::bind(relay_loopback()).unwrap();
        let hop = Hop {
            name: "last".parse().unwrap(),
            address: listener.local_addr().unwrap(),
            identity: identity.public(),
        };
        let verifier = Arc::new(Mutex::new(Verifier::new(identity, vec![operator().public()])));
        let (vanished, headers) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let turn = Arc::<Mutex<()>>::default();
        let counts = (Arc::clone(&vanished), Arc::clone(&headers), Arc::clone(&turn));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (verifier, counts) = (Arc::clone(&verifier), counts.clone());
                std::thread::spawn(move || {
                    serve(stream.unwrap(), &verifier, fate, &counts.0, &counts.1, &counts.2);
                });
            }
        });
        Self { hop, vanished, headers, turn }
    }
}

fn serve(
    mut stream: TcpStream,
    verifier: &Mutex<Verifier>,
    fate: Fate,
    vanished: &AtomicUsize,
    headers: &AtomicUsize,
    turn: &Mutex<()>,
) {
    patient(&stream);
    let mut bytes = vec![0; HEADER_PREFIX_BYTES];
    if stream.read_exact(&mut bytes).is_err() {
        return;
    }
    let hello = is_hello(&bytes);
    bytes.resize(if hello { HELLO_BYTES } else { header_length(&bytes).unwrap() }, 0);
    stream.read_exact(&mut bytes[HEADER_PREFIX_BYTES..]).unwrap();
    if hello {
        let _turn = turn.lock().unwrap();
        let mut verifier = verifier.lock().unwrap();
        // On a busy machine its turn may come later than the hello is valid, or after the peer has
        // given up.
        let Ok(key) = verifier.open_hello(unix_now(), &bytes) else { return };
        drop(verifier);
        if stream.write_all(&key.seal(&Reply::ok(0))).is_err() {
            return;
        }
        if fate == Fate::Rest {
            let _never = stream.read(&mut [0]);
            return;
        }
        // The reply has arrived before the connection is dropped.
        wait_for("the reply to be read", || {
            tcp::unacknowledged(&stream).unwrap() == tradewind_units::Bytes::ZERO
        });
        tcp::vanish(stream).unwrap();
        vanished.fetch_add(1, Ordering::SeqCst);
    } else {
        let header = verifier.lock().unwrap().open(unix_now(), &bytes).unwrap();
        headers.fetch_add(1, Ordering::SeqCst);
        stream.write_all(&header.upstream.seal(&Reply::ok(header.hop))).unwrap();
        let _gone = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
    }
}

/// Opens sessions over `relays`, the last of which drops warm connections silently, from a gateway
/// with `warm` legs.
fn die_in_silence(relays: Vec<RelayConfig>, warm: Option<NonZeroU16>) {
    if let Err(error) = tcp::vanish(TcpStream::connect(echo()).unwrap()) {
        return skipped(&error);
    }
    let last = Last::new(Fate::Vanish);
    let relays: Vec<Running> = relays.iter().map(Running::relay).collect();
    let mut hops: Vec<Hop> = relays.iter().map(|relay| relay.hop("first")).collect();
    hops.push(last.hop.clone());
    let mut config = gateway_config(Route::Relays(hops));
    if warm.is_some() {
        config.leg.dial = plain_legs().dial;
        config.leg.dial.warm = warm;
    }
    config.forward = vec![forward(echo())];
    let gateway = Running::gateway(&config);
    let sent = content(150_000);
    let mut sessions = 0;
    while last.vanished.load(Ordering::SeqCst) < 4 {
        let _turn = last.turn.lock().unwrap();
        let mut stream = crate::support::connect(gateway.address());
        // More than one read and less than is retained: no byte may be lost or sent twice.
        stream.write_all(&sent).unwrap();
        let mut answer = vec![0; sent.len()];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer == sent);
        sessions += 1;
        // The last relay counts before it answers: each header arrived on a fresh connection.
        assert_eq!(last.headers.load(Ordering::SeqCst), sessions);
    }
}

#[test]
fn silently_dead_warm_connection_is_replaced() {
    let mut first = relay_config();
    first.leg.dial = plain_legs().dial;
    first.leg.dial.warm = NonZeroU16::new(1);
    apart(|| die_in_silence(vec![first], None));
}

#[test]
fn silently_dead_gateway_connection_is_replaced() {
    apart(|| die_in_silence(Vec::new(), NonZeroU16::new(1)));
}

/// Returns the reply of a first relay at `address` to a session over `hops`.
fn reply_to_session(address: SocketAddr, sealer: &mut Sealer, hops: &[Hop], number: u8) -> Reply {
    let hop = |hop: &Hop| grant::Hop { address: hop.address, identity: hop.identity };
    let route = grant::Route::new(hops.iter().map(hop).collect()).unwrap();
    let (flow, destination) = ("test".parse().unwrap(), Destination::address(echo()).unwrap());
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let nonce = Nonce::from_entropy([number; 16]);
    let sealed = sealer.seal(unix_now(), nonce, &request).unwrap();
    let mut stream = crate::support::connect(address);
    stream.write_all(&sealed.bytes).unwrap();
    let mut reply = vec![0; REPLY_PREFIX_BYTES];
    stream.read_exact(&mut reply).unwrap();
    reply.resize(reply_length(&reply).unwrap(), 0);
    stream.read_exact(&mut reply[REPLY_PREFIX_BYTES..]).unwrap();
    sealed.downstream.open(&reply).unwrap()
}

#[test]
fn silent_relay_with_header_is_not_retried() {
    let namespace = match Namespace::create() {
        Ok(namespace) => namespace,
        Err(error) => return skipped(&error),
    };
    let silence = || {
        assert!(command("ip", "link set lo up"), "`ip` brings loopback up");
        if !command("nft", "add table ip silence") {
            return skipped(&"no packet filter: `nft` is missing or not allowed");
        }
        let last = Last::new(Fate::Rest);
        let mut config = open_relay_config();
        config.leg.dial = plain_legs().dial;
        config.leg.dial.warm = NonZeroU16::new(1);
        config.timeouts.dial = Duration::from_secs(1);
        config.metrics = Some(loopback());
        let first = Running::relay(&config);
        let hops = [first.hop("first"), last.hop.clone()];
        let (address, mut sealer) = (first.address(), sealer());
        let mut ask = |number| reply_to_session(address, &mut sealer, &hops, number);
        assert_eq!(ask(1).status, Status::Ok);
        let metrics = first.handle.metrics_addr().unwrap();
        wait_for("a connection at rest", || {
            get(metrics, "/metrics").contains("relay_warm_resting 1")
        });
        let hook = "add chain ip silence out { type filter hook output priority 0 ; }";
        let port = last.hop.address.port();
        assert!(command("nft", hook));
        assert!(command("nft", &format!("add rule ip silence out tcp dport {port} drop")));
        let reply = ask(2);
        assert_eq!(reply.status, Status::TimedOut, "{}", reply.message);
        assert!(reply.dialled, "the header may have arrived, and only its acknowledgement not");
    };
    namespace.run(silence).unwrap();
}
