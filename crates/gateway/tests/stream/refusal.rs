//! Refusals, their reports and their counters.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::time::Duration;

use tradewind_desired::{Route, RouteTable};
use tradewind_grant::{self as grant, Destination, Nonce, Request, Sealer, Status};
use tradewind_net::tcp::{self, SocketOptions};
use tradewind_relay::Relay;
use tradewind_stream::Resolver;

use crate::support::{
    Chain, Running, closed_port, connect, destination, digest, echo, gateway_config, grant_for,
    identity, loopback, open_relay_config as relay_config, operator, reset, route_over, rules,
    unix_now, wait_for,
};

/// Opens CONNECT through a gateway and returns status line and body.
pub(super) fn connect_through(gateway: &Running, target: &str) -> (String, String) {
    let mut stream = connect(gateway.address());
    write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

pub(super) fn connect_gateway(route: Route) -> Running {
    let mut config = gateway_config(route);
    config.connect = vec![loopback()];
    Running::gateway(&config)
}

/// Keeps the port of a relay that is gone from being given to another test: bound, but not
/// listening.
fn keep_closed(address: SocketAddr) -> tokio::net::TcpSocket {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

#[test]
fn slow_unauthenticated_peers_block_nobody() {
    let mut config = relay_config();
    config.limits.unauthenticated = 8;
    let relay = Running::relay(&config);
    let address = relay.address();
    let mut peers: Vec<_> = (0..50).map(|_| connect(address)).collect();
    for peer in &mut peers {
        let _reset = peer.write_all(b"T");
    }
    let chain = Chain::of(vec![relay], echo());
    for _ in 0..20 {
        let mut stream = chain.connect();
        stream.write_all(b"there and back").unwrap();
        let mut answer = [0; 14];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"there and back");
    }
    drop(peers);
}

#[test]
fn refused_dial_names_hop_and_cause() {
    let relays: Vec<_> = (0..3).map(|_| Running::relay(&relay_config())).collect();
    let gateway = connect_gateway(route_over(&relays));
    let nobody = closed_port();
    let target = nobody.address;
    let (status, body) = connect_through(&gateway, &target.to_string());
    assert_eq!(status, "HTTP/1.1 502 Bad Gateway");
    let last = relays[2].address();
    assert_eq!(body, format!("relay 3 ({last}): dial {target}: connection refused\n"));
    for one in relays.iter().chain([&gateway]) {
        wait_for("the end", || one.handle.snapshot().outcome("connection_refused") == 1);
    }
}

#[test]
fn dead_relay_is_named_by_its_neighbour() {
    let mut relays: Vec<_> = (0..2).map(|_| Running::relay(&relay_config())).collect();
    let route = route_over(&relays);
    let (first, second) = (relays[0].address(), relays[1].address());
    relays.truncate(1);
    let _held = keep_closed(second);
    let (_, body) = connect_through(&connect_gateway(route), "127.0.0.1:9");
    assert_eq!(body, format!("relay 1 ({first}): dial {second}: connection refused\n"));
}

#[test]
fn dead_first_relay_is_named_by_the_gateway() {
    let relays = vec![Running::relay(&relay_config())];
    let (route, address) = (route_over(&relays), relays[0].address());
    drop(relays);
    let (_, body) = connect_through(&connect_gateway(route), "127.0.0.1:9");
    assert_eq!(body, format!("gateway: dial {address}: connection refused\n"));
}

#[test]
fn empty_policy_refuses_everything() {
    let mut config = relay_config();
    config.policy.destinations.clear();
    let relays = vec![Running::relay(&config)];
    let (status, body) = connect_through(&connect_gateway(route_over(&relays)), "127.0.0.1:9");
    assert_eq!(status, "HTTP/1.1 403 Forbidden");
    let address = relays[0].address();
    assert_eq!(body, format!("relay 1 ({address}): no rule of this relay allows 127.0.0.1:9\n"));
}

#[test]
fn loopback_needs_a_rule() {
    let mut config = relay_config();
    config.policy.allow_loopback = false;
    let relays = vec![Running::relay(&config)];
    let (status, body) = connect_through(&connect_gateway(route_over(&relays)), "127.0.0.1:9");
    assert_eq!(status, "HTTP/1.1 403 Forbidden");
    assert!(body.contains("127.0.0.1 is a loopback address, which is never dialled"), "{body}");
}

#[test]
fn relay_never_dials_itself() {
    let mut config = relay_config();
    config.listen = vec!["0.0.0.0:0".parse().unwrap()];
    let relay = Running::relay(&config);
    let port = relay.address().port();
    let mut hop = relay.hop("relay-1");
    hop.address = ([127, 0, 0, 1], port).into();
    let gateway = connect_gateway(Route::Relays(vec![hop]));
    let (status, body) = connect_through(&gateway, &format!("127.0.0.1:{port}"));
    assert_eq!(status, "HTTP/1.1 403 Forbidden", "{body}");
}

#[test]
fn next_hop_outside_policy_is_refused() {
    let mut config = relay_config();
    config.policy.next_hops.clear();
    let relays = vec![Running::relay(&config), Running::relay(&relay_config())];
    let (_, body) = connect_through(&connect_gateway(route_over(&relays)), "127.0.0.1:9");
    assert!(body.contains("no rule of this relay allows next hop"), "{body}");
    wait_for("the end", || relays[0].handle.snapshot().outcome("next_hop_refused") == 1);
}

#[test]
fn ungranted_destination_stays_at_the_gateway() {
    let relays = vec![Running::relay(&relay_config())];
    let (_, body) = connect_through(&connect_gateway(route_over(&relays)), "198.51.100.1:80");
    assert_eq!(body, "gateway: grant does not cover destination 198.51.100.1:80\n");
    assert_eq!(relays[0].handle.snapshot().accepted, 0);
}

#[test]
fn missing_route_is_reported() {
    let (status, body) = connect_through(&connect_gateway(Route::Refuse), "127.0.0.1:9");
    assert_eq!(status, "HTTP/1.1 403 Forbidden");
    assert_eq!(body, "gateway: no route to 127.0.0.1:9\n");
}

#[test]
fn wrong_relay_identity_is_refused() {
    let mut config = relay_config();
    config.timeouts.header = Duration::from_millis(100);
    let relay = Running::relay(&config);
    let mut hop = relay.hop("relay-1");
    hop.identity = identity().public();
    let gateway = connect_gateway(Route::Relays(vec![hop]));
    let (_, body) = connect_through(&gateway, "127.0.0.1:9");
    assert!(body.starts_with(&format!("gateway: next relay {}: ", relay.address())), "{body}");
    wait_for("the refusal", || relay.handle.snapshot().outcome("forged") == 1);
}

/// Returns a sealed header for `relays` as a gateway with `sealer` sends it.
pub(super) fn header(sealer: &mut Sealer, relays: &[Running], nonce: u8, age: Duration) -> Vec<u8> {
    let Route::Relays(hops) = route_over(relays) else { panic!("no relays") };
    let hop =
        |hop: &tradewind_desired::Hop| grant::Hop { address: hop.address, identity: hop.identity };
    let route = grant::Route::new(hops.iter().map(hop).collect()).unwrap();
    let destination: Destination = echo().into_destination();
    let flow = "test".parse().unwrap();
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let issued =
        tradewind_units::Timestamp::from_nanos(unix_now().as_nanos() - age.as_nanos() as u64);
    sealer.seal(issued, Nonce::from_entropy([nonce; 16]), &request).unwrap().bytes
}

trait IntoDestination {
    fn into_destination(self) -> Destination;
}

impl IntoDestination for SocketAddr {
    fn into_destination(self) -> Destination {
        Destination::address(self).unwrap()
    }
}

pub(super) fn sealer() -> Sealer {
    let key = identity();
    let grant = grant_for(key.public());
    Sealer::new(key, grant).unwrap()
}

#[test]
fn probe_quota_per_gateway() {
    let mut config = relay_config();
    config.limits.sessions = 64;
    let relays = vec![Running::relay(&config)];
    let Route::Relays(hops) = route_over(&relays) else { panic!("no relays") };
    let hop = grant::Hop { address: hops[0].address, identity: hops[0].identity };
    let route = grant::Route::new(vec![hop]).unwrap();
    let (mut sealer, flow) = (sealer(), "test".parse().unwrap());
    let mut open = Vec::new();
    let mut nonces = 0..=255;
    wait_for("a probe too many", || {
        let nonce = Nonce::from_entropy([nonces.next().unwrap(); 16]);
        let probe = sealer.seal_probe(unix_now(), nonce, &flow, &route).unwrap();
        let mut stream = connect(relays[0].address());
        stream.write_all(&probe.bytes).unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).unwrap();
        open.push(stream);
        answer[6] == Status::Overloaded as u8
    });
    assert!(open.len() > 8, "{} fit", open.len());
    wait_for("the count", || relays[0].handle.snapshot().outcome("gateway_full") == 1);
}

/// Sends `bytes` to a relay and reads its answer: nothing, or at least a reply's first bytes.
fn answer_to(relay: &Running, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(relay.address());
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; 7];
    match stream.read_exact(&mut answer) {
        Ok(()) => answer,
        Err(_) => Vec::new(),
    }
}

#[test]
fn replayed_header_is_refused() {
    let relays = vec![Running::relay(&relay_config())];
    let bytes = header(&mut sealer(), &relays, 1, Duration::ZERO);
    assert_eq!(answer_to(&relays[0], &bytes)[6], Status::Ok as u8);
    assert_eq!(answer_to(&relays[0], &bytes)[6], Status::Replayed as u8);
    wait_for("the count", || relays[0].handle.snapshot().outcome("replayed") == 1);
}

#[test]
fn replay_to_another_worker_is_refused() {
    let mut config = relay_config();
    config.workers = Some(2);
    let relays = vec![Running::relay(&config)];
    let bytes = header(&mut sealer(), &relays, 1, Duration::ZERO);
    let ok = (0..24).filter(|_| answer_to(&relays[0], &bytes)[6] == Status::Ok as u8).count();
    assert_eq!(ok, 1);
}

#[test]
fn old_header_is_refused_for_its_time() {
    let relays = vec![Running::relay(&relay_config())];
    let bytes = header(&mut sealer(), &relays, 1, Duration::from_secs(45));
    assert_eq!(answer_to(&relays[0], &bytes)[6], Status::ClockSkew as u8);
    wait_for("the count", || relays[0].handle.snapshot().outcome("clock_skew") == 1);
}

#[test]
fn expired_grant_is_refused() {
    let relays = vec![Running::relay(&relay_config())];
    let key = identity();
    let now = unix_now();
    let ago = |seconds: u64| {
        tradewind_units::Timestamp::from_nanos(now.as_nanos() - seconds * 1_000_000_000)
    };
    let grant = grant::Grant {
        gateway: key.public(),
        not_before: ago(3600),
        expires: ago(1),
        sessions: None,
        extensions: grant::Extensions::default(),
        relays: grant::Relays::Any,
        destinations: rules(),
    };
    let mut sealer = Sealer::new(key, grant.sign(&operator()).unwrap()).unwrap();
    let bytes = header(&mut sealer, &relays, 1, Duration::from_secs(5));
    assert_eq!(answer_to(&relays[0], &bytes)[6], Status::GrantRefused as u8);
    wait_for("the count", || relays[0].handle.snapshot().outcome("grant_refused") == 1);
}

#[test]
fn forged_headers_get_no_answer_and_are_counted() {
    let relays = vec![Running::relay(&relay_config())];
    let mut bytes = header(&mut sealer(), &relays, 1, Duration::ZERO);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert_eq!(answer_to(&relays[0], &bytes), b"");
    let other_operator = grant::OperatorKey::from_entropy([77; 32]);
    let key = identity();
    let grant = grant_for(key.public()).unverified().clone().sign(&other_operator).unwrap();
    let mut sealer = Sealer::new(key, grant).unwrap();
    let bytes = header(&mut sealer, &relays, 2, Duration::ZERO);
    assert_eq!(answer_to(&relays[0], &bytes), b"");
    wait_for("the count", || relays[0].handle.snapshot().outcome("forged") == 2);
}

#[test]
fn invalid_header_gets_no_answer() {
    let mut config = relay_config();
    config.timeouts.header = Duration::from_millis(100);
    let relay = Running::relay(&config);
    for (bytes, outcome) in
        [(b"GET / HTTP/1.1\r\n\r\n".as_slice(), "forged"), (b"TRACE / HTTP/1.1\r\n", "malformed")]
    {
        assert_eq!(answer_to(&relay, bytes), b"");
        wait_for("the count", || relay.handle.snapshot().outcome(outcome) == 1);
    }
}

#[test]
fn slow_header_is_closed_at_deadline() {
    let mut config = relay_config();
    config.timeouts.header = Duration::from_millis(100);
    let relays = vec![Running::relay(&config)];
    let bytes = header(&mut sealer(), &relays, 1, Duration::ZERO);
    let mut stream = connect(relays[0].address());
    stream.write_all(&bytes[..40]).unwrap();
    assert_eq!(digest(&mut stream).unwrap().0, 0, "it is closed in order, without a word");
    wait_for("the count", || relays[0].handle.snapshot().outcome("no_header") == 1);
}

#[test]
fn fragmented_header_loses_no_data() {
    let relays = vec![Running::relay(&relay_config())];
    let mut bytes = header(&mut sealer(), &relays, 1, Duration::ZERO);
    bytes.extend(b"early bird");
    let mut stream = connect(relays[0].address());
    stream.set_nodelay(true).unwrap();
    for piece in bytes.chunks(7) {
        stream.write_all(piece).unwrap();
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(b"early bird"), "{answer:?}");
}

#[test]
fn oldest_without_header_is_evicted() {
    let mut config = relay_config();
    config.limits.unauthenticated = 3;
    let relays = vec![Running::relay(&config)];
    let mut idle: Vec<TcpStream> = (0..3).map(|_| connect(relays[0].address())).collect();
    wait_for("the idle ones", || relays[0].handle.snapshot().open == 3);
    idle.push(connect(relays[0].address()));
    assert!(digest(&mut idle[0]).is_err(), "the first is reset for the fourth");
    let bytes = header(&mut sealer(), &relays, 1, Duration::ZERO);
    assert_eq!(answer_to(&relays[0], &bytes)[6], Status::Ok as u8);
    assert!(digest(&mut idle[1]).is_err(), "the second for one that may be here");
    wait_for("the count", || relays[0].handle.snapshot().outcome("evicted") == 2);
    drop(idle);
}

#[test]
fn connections_without_header_time_out() {
    let mut config = relay_config();
    config.timeouts.header = Duration::from_millis(300);
    let relay = Running::relay(&config);
    assert_eq!(digest(&mut connect(relay.address())).unwrap().0, 0);
    wait_for("the count", || relay.handle.snapshot().outcome("no_header") == 1);
}

#[test]
fn grant_session_limit() {
    let relays = vec![Running::relay(&relay_config())];
    let key = identity();
    let mut grant = grant_for(key.public()).unverified().clone();
    grant.sessions = NonZeroU32::new(2);
    let mut config = gateway_config(route_over(&relays));
    config.grant = Some(grant.sign(&operator()).unwrap());
    config.identity = Some(key);
    config.connect = vec![loopback()];
    let gateway = Running::gateway(&config);
    let target = echo().to_string();
    let open = || {
        let mut stream = connect(gateway.address());
        write!(stream, "CONNECT {target} HTTP/1.1\r\n\r\n").unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        stream
    };
    let (first, second) = (open(), open());
    let (status, body) = connect_through(&gateway, &target);
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert!(body.contains("the grant's sessions are all in use"), "{body}");
    reset(first);
    wait_for("a place", || relays[0].handle.snapshot().open == 1);
    drop((open(), second));
}

#[test]
fn unresolved_name_is_reported() {
    let relays = vec![Running::relay(&relay_config())];
    let key = identity();
    let mut grant = grant_for(key.public()).unverified().clone();
    grant.destinations.push("*.invalid:*".parse().unwrap());
    let mut config = gateway_config(route_over(&relays));
    config.grant = Some(grant.sign(&operator()).unwrap());
    config.identity = Some(key);
    config.connect = vec![loopback()];
    let gateway = Running::gateway(&config);
    let (status, body) = connect_through(&gateway, "db.invalid:5432");
    assert!(status.starts_with("HTTP/1.1 50"), "{status}");
    let expected = format!("relay 1 ({}): resolve db.invalid: ", relays[0].address());
    assert!(body.starts_with(&expected), "{body}");
}

/// Returns a listener that answers no dial: its queue is full.
fn mute_listener(address: SocketAddr) -> (TcpListener, Vec<TcpStream>) {
    let listener = tcp::listen(address, 1, 1, &SocketOptions::default()).unwrap().remove(0);
    let mut waiting = Vec::new();
    let mut refused = 0;
    while refused < 3 {
        match TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
            Ok(stream) => waiting.push(stream),
            Err(_) => refused += 1,
        }
    }
    (listener, waiting)
}

#[test]
fn silent_address_falls_back_to_the_next() {
    let to = echo();
    let silent = SocketAddr::new([127, 0, 0, 3].into(), to.port());
    let _held = mute_listener(silent);
    let resolver = Resolver::by(move |_| vec![silent.ip(), to.ip()]);
    let key = identity();
    let mut grant = grant_for(key.public()).unverified().clone();
    grant.destinations.push("*.example.com:*".parse().unwrap());
    let relay = Running::relay_of(Relay::bind(&relay_config()).unwrap().with_resolver(resolver));
    let mut config = gateway_config(route_over(std::slice::from_ref(&relay)));
    config.grant = Some(grant.sign(&operator()).unwrap());
    config.identity = Some(key);
    config.connect = vec![loopback()];
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    write!(stream, "CONNECT db.example.com:{} HTTP/1.1\r\n\r\n", to.port()).unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(std::str::from_utf8(&status), Ok("HTTP/1.1 200"));
}

#[test]
fn failed_port_forward_is_reset() {
    let nobody = closed_port();
    let chain = Chain::new(2, nobody.address);
    assert!(digest(&mut chain.connect()).is_err());
}

#[test]
fn routes_are_chosen_by_destination() {
    let (to, served) = destination(|mut stream| digest(&mut stream).unwrap().0);
    let relays = vec![Running::relay(&relay_config())];
    let rule = format!("{to}").parse().unwrap();
    let mut config = gateway_config(Route::Refuse);
    config.routes = RouteTable::new(vec![(rule, route_over(&relays))], Route::Refuse).unwrap();
    let nobody = closed_port();
    config.forward = [to, nobody.address].map(crate::support::forward).into();
    let gateway = Running::gateway(&config);
    drop(connect(gateway.handle.local_addrs()[0]));
    assert_eq!(served.join().unwrap(), 0);
    assert!(digest(&mut connect(gateway.handle.local_addrs()[1])).is_err());
    wait_for("the count", || gateway.handle.snapshot().outcome("destination_refused") == 1);
}
