//! Relays and gateways that apply another configuration while sessions run.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use tradewind_config::{RelayConfig, Share};
use tradewind_desired::{Connections, Encryption, Hop, Route, RouteTable};
use tradewind_gateway::Gateway;
use tradewind_grant::{Extensions, Grant};
use tradewind_relay::{Relay, RelayReloader};
use tradewind_units::Bytes;

use crate::support::{
    Chain, FullBacklog, Running, connect, content, destination, echo, forward, gateway_config,
    grant_for, identity, operator, relay_config, route_over, unix_now, wait_for,
};

fn reloadable(config: &RelayConfig) -> (Running, RelayReloader) {
    let relay = Relay::bind(config).unwrap();
    let reloader = relay.reloader();
    (Running::relay_of(relay), reloader)
}

fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"ping")?;
    stream.read_exact(&mut [0; 4])
}

#[test]
fn revoked_next_hop_ends_the_session() {
    let config = relay_config();
    let (first, reloader) = reloadable(&config);
    let chain = Chain::of(vec![first, Running::relay(&relay_config())], echo());
    let direct = Chain::of(vec![Running::relay(&relay_config())], echo());
    let (mut stream, mut other) = (chain.connect(), direct.connect());
    ping(&mut stream).unwrap();
    ping(&mut other).unwrap();
    let mut changed = config.clone();
    changed.policy.next_hops = vec!["192.0.2.0/24:*".parse().unwrap()];
    assert_eq!(reloader.apply(&changed).unwrap(), 1);
    assert!(stream.read_exact(&mut [0; 1]).is_err());
    wait_for("the count", || chain.relays[0].handle.snapshot().outcome("revoked") == 1);
    assert!(ping(&mut chain.connect()).is_err());
    ping(&mut other).unwrap();
    assert_eq!(reloader.apply(&config).unwrap(), 0);
    ping(&mut chain.connect()).unwrap();
}

#[test]
fn revoked_striped_session_ends() {
    let config = relay_config();
    let (relay, reloader) = reloadable(&config);
    let (to, served) = destination(|mut stream| {
        let mut sink = vec![0; 1 << 16];
        while stream.read(&mut sink).is_ok_and(|read| read > 0) {}
    });
    let relays = [relay];
    let mut gateway = gateway_config(route_over(&relays));
    gateway.forward = vec![forward(to)];
    gateway.leg.dial.connections = Connections::fixed(4).unwrap();
    gateway.leg.dial.stripe_after = Bytes::new(0);
    let gateway = Running::gateway(&gateway);
    let mut stream = connect(gateway.address());
    let writer = std::thread::spawn(move || {
        let block = content(1 << 16);
        while stream.write_all(&block).is_ok() {}
    });
    let handle = &relays[0].handle;
    wait_for("the stripe", || handle.snapshot().striped_connections == 4);
    let mut changed = config.clone();
    changed.policy.destinations = vec!["192.0.2.0/24:*".parse().unwrap()];
    assert_eq!(reloader.apply(&changed).unwrap(), 1);
    writer.join().unwrap();
    served.join().unwrap();
    wait_for("all its connections to end", || handle.snapshot().open == 0);
}

/// Starts a gateway whose grant ends after `life`, and whose sessions end after `age`.
fn gateway_granted(relays: &[Running], life: Duration, age: Option<Duration>) -> Running {
    let mut config = gateway_config(route_over(relays));
    config.forward = vec![forward(echo())];
    let gateway = config.identity.as_ref().unwrap().public();
    let grant = grant_for(gateway).unverified().clone();
    let extensions = Extensions { session_max_age: age, ..Extensions::default() };
    let grant = Grant { expires: unix_now() + life, extensions, ..grant };
    config.grant = Some(grant.sign(&operator()).unwrap());
    Running::gateway(&config)
}

#[test]
fn session_ends_with_grant_or_max_age() {
    let relays = [Running::relay(&relay_config())];
    let (hour, moment) = (Duration::from_secs(3600), Duration::from_secs(2));
    let lasting = gateway_granted(&relays, hour, Some(hour));
    let expiring = gateway_granted(&relays, moment, None);
    let ageing = gateway_granted(&relays, hour, Some(moment));
    let mut streams = [&lasting, &expiring, &ageing].map(|gateway| connect(gateway.address()));
    streams.iter_mut().for_each(|stream| ping(stream).unwrap());
    let [lasts, ends @ ..] = &mut streams;
    for stream in ends {
        assert!(stream.read_exact(&mut [0; 1]).is_err());
    }
    ping(lasts).unwrap();
    let relay = &relays[0].handle;
    wait_for("the count", || relay.snapshot().outcome("expired") == 2);
    // A new session has its own age; a grant that is over opens none.
    ping(&mut connect(ageing.address())).unwrap();
    assert!(ping(&mut connect(expiring.address())).is_err());
}

/// Opens a session and checks that it carries bytes.
fn open_session(chain: &Chain) -> std::io::Result<TcpStream> {
    let mut stream = chain.connect();
    ping(&mut stream).map(|()| stream)
}

#[test]
fn lower_relay_limits_keep_open_sessions() {
    let config = relay_config();
    let (relay, reloader) = reloadable(&config);
    let chain = Chain::of(vec![relay], echo());
    let mut open: Vec<_> = (0..3).map(|_| open_session(&chain).unwrap()).collect();
    let outcome = |name| chain.relays[0].handle.snapshot().outcome(name);
    let mut changed = config.clone();
    let share = |sessions| Share { sessions: NonZeroU32::new(sessions), ..Share::default() };
    changed.limits.each_gateway = share(2);
    assert_eq!(reloader.apply(&changed).unwrap(), 0);
    assert!(open_session(&chain).is_err());
    wait_for("the count", || outcome("gateway_full") == 1);
    changed.limits.each_gateway = share(9);
    changed.limits.sessions = 3;
    assert_eq!(reloader.apply(&changed).unwrap(), 0);
    assert!(open_session(&chain).is_err());
    wait_for("the count", || outcome("full") == 1);
    changed.limits.sessions = 8;
    changed.limits.each_source = share(1);
    assert_eq!(reloader.apply(&changed).unwrap(), 0);
    open.push(open_session(&chain).unwrap());
    assert!(open_session(&chain).is_err(), "the source has its one session");
    wait_for("the count", || outcome("source_full") == 1);
    assert_eq!(reloader.apply(&config).unwrap(), 0);
    open.push(open_session(&chain).unwrap());
    open.iter_mut().for_each(|stream| ping(stream).unwrap());
}

#[test]
fn relay_timeouts_apply_to_new_sessions() {
    let config = relay_config();
    let (relay, reloader) = reloadable(&config);
    let chain = Chain::of(vec![relay], echo());
    let mut old = open_session(&chain).unwrap();
    let mut changed = config.clone();
    changed.timeouts.idle = Some(Duration::from_millis(100));
    changed.timeouts.header = Duration::from_millis(100);
    assert_eq!(reloader.apply(&changed).unwrap(), 0);
    let mut new = open_session(&chain).unwrap();
    assert!(new.read_exact(&mut [0; 1]).is_err(), "silent for too long");
    let snapshot = || chain.relays[0].handle.snapshot();
    wait_for("the count", || snapshot().outcome("idle") == 1);
    let mut silent = connect(chain.relays[0].address());
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0, "closed in order");
    wait_for("the count", || snapshot().outcome("no_header") == 1);
    ping(&mut old).unwrap();
}

#[test]
fn lower_gateway_limits_keep_open_sessions() {
    let mut config = gateway_config(route_over(&[]));
    config.forward = vec![forward(echo())];
    let gateway = Gateway::bind(&config).unwrap();
    let reloader = gateway.reloader();
    let chain = Chain { gateway: Running::gateway_of(gateway), relays: Vec::new() };
    let mut open: Vec<_> = (0..3).map(|_| open_session(&chain).unwrap()).collect();
    let mut changed = config.clone();
    changed.limits.sessions = 2;
    changed.timeouts.idle = Some(Duration::from_millis(100));
    reloader.apply(&changed).unwrap();
    assert!(open_session(&chain).is_err());
    wait_for("the count", || chain.gateway.handle.snapshot().outcome("full") == 1);
    changed.limits.sessions = 4;
    reloader.apply(&changed).unwrap();
    assert!(open_session(&chain).unwrap().read_exact(&mut [0; 1]).is_err(), "silent for too long");
    open.iter_mut().for_each(|stream| ping(stream).unwrap());
}

#[test]
fn striped_session_keeps_its_idle_limit() {
    let config = relay_config();
    let (relay, reloader) = reloadable(&config);
    let mut gateway = gateway_config(route_over(std::slice::from_ref(&relay)));
    gateway.forward = vec![forward(echo())];
    gateway.leg.dial.connections = Connections::fixed(2).unwrap();
    gateway.leg.dial.stripe_after = Bytes::new(0);
    let gateway = Running::gateway(&gateway);
    let mut old = connect(gateway.address());
    ping(&mut old).unwrap();
    wait_for("the stripe", || relay.handle.snapshot().striped_connections == 2);
    let silent_since = Instant::now();
    let mut changed = config.clone();
    changed.timeouts.idle = Some(Duration::from_millis(100));
    assert_eq!(reloader.apply(&changed).unwrap(), 0);
    // Striped sessions are checked once a second.
    while silent_since.elapsed() < Duration::from_secs(2) {
        let mut new = connect(gateway.address());
        ping(&mut new).unwrap();
        assert!(new.read_exact(&mut [0; 1]).is_err(), "silent for too long");
    }
    ping(&mut old).unwrap();
}

/// Returns true if a connection to `port` of loopback is being dialled.
fn is_dialled(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let syn_sent = format!("0100007F:{port:04X} 02 ");
    table.lines().any(|line| line.contains(&syn_sent))
}

/// Changes the rules of a session by `change` while the first of `relays` dials, and returns the
/// bytes that the destination receives of it.
fn seen_after_a_slow_dial(
    relay: RelayConfig,
    change: impl FnOnce(&mut RelayConfig),
    is_next_hop: bool,
) -> Vec<u8> {
    let full = FullBacklog::new();
    let (running, reloader) = reloadable(&relay);
    let handle = running.handle.clone();
    let mut config = gateway_config(route_over(std::slice::from_ref(&running)));
    config.forward = vec![forward(full.address)];
    if is_next_hop {
        let name = "second".parse().unwrap();
        let second = Hop { name, address: full.address, identity: identity().public() };
        let route = Route::Relays(vec![running.hop("first"), second]);
        config.routes = RouteTable::new(Vec::new(), route).unwrap();
    }
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    stream.write_all(b"secret").unwrap();
    wait_for("the dial", || is_dialled(full.address.port()));
    let mut changed = relay.clone();
    change(&mut changed);
    assert_eq!(reloader.apply(&changed).unwrap(), 0, "none is open");
    let others = full.others_until(|| handle.snapshot().outcome("revoked") == 1);
    let mut seen = Vec::new();
    for mut dialled in others {
        let _reset = dialled.read_to_end(&mut seen);
    }
    seen
}

#[test]
fn destination_revoked_during_dial_sees_nothing() {
    let seen = seen_after_a_slow_dial(
        relay_config(),
        |config| config.policy.destinations = vec!["192.0.2.0/24:*".parse().unwrap()],
        false,
    );
    assert!(seen.is_empty(), "{}", String::from_utf8_lossy(&seen));
}

#[test]
fn next_hop_revoked_during_dial_sees_no_header() {
    let mut config = relay_config();
    config.policy.next_hops = vec!["127.0.0.0/8:*".parse().unwrap()];
    config.policy.destinations = vec!["192.0.2.0/24:*".parse().unwrap()];
    config.leg.dial.encryption = Some(Encryption::None);
    let seen = seen_after_a_slow_dial(
        config,
        |config| config.policy.next_hops = vec!["192.0.2.0/24:*".parse().unwrap()],
        true,
    );
    assert!(seen.is_empty(), "{} bytes", seen.len());
}
