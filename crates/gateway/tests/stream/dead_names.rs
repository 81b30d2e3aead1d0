//! Names that no server answers for, and names with a trailing dot, over a gateway and a relay.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use tradewind_config::{GatewayConfig, RelayConfig};
use tradewind_desired::Route;
use tradewind_gateway::Gateway;
use tradewind_grant::Extensions;
use tradewind_relay::Relay;
use tradewind_stream::Resolver;

use crate::support::names::{NameReply, NameServer};
use crate::support::{
    Running, connect, echo, gateway_config, grant_for, identity, loopback, operator, relay_config,
    route_over, wait_for,
};

/// Starts a relay that asks a name server, and a gateway with a CONNECT proxy whose grant allows
/// `*.test`.
fn world(names: &NameServer) -> (Running, Running) {
    let (conf, hosts) = (names.conf.0.clone(), names.hosts.0.clone());
    let resolver = Resolver::reading(conf, hosts, names.port);
    let key = identity();
    let mut grant = grant_for(key.public()).unverified().clone();
    grant.destinations.push("*.test:*".parse().unwrap());
    let mut config = relay_config();
    config.policy.destinations.push("*.test:*".parse().unwrap());
    let relay = Running::relay_of(Relay::bind(&config).unwrap().with_resolver(resolver));
    let mut config = gateway_config(route_over(std::slice::from_ref(&relay)));
    config.grant = Some(grant.sign(&operator()).unwrap());
    config.identity = Some(key);
    config.connect = vec![loopback()];
    (relay, Running::gateway(&config))
}

fn ask(gateway: &Running, target: &str) -> TcpStream {
    let mut stream = connect(gateway.address());
    write!(stream, "CONNECT {target} HTTP/1.1\r\n\r\n").unwrap();
    stream
}

fn status(stream: &mut TcpStream) -> String {
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    String::from_utf8_lossy(&status).into_owned()
}

#[test]
fn dead_name_delays_no_other_name() {
    let healthy = ("healthy.test", NameReply::Address([127, 0, 0, 1]));
    let names = NameServer::new("sessions", &[healthy, ("dead.test", NameReply::Nothing)]);
    let (relay, gateway) = world(&names);
    let port = echo().port();
    let mut dead: Vec<_> = (0..30).map(|_| ask(&gateway, &format!("dead.test:{port}"))).collect();
    wait_for("the sessions", || relay.handle.snapshot().open == 30);
    wait_for("the question", || !names.questions().is_empty());
    let mut healthy = ask(&gateway, &format!("healthy.test:{port}"));
    assert_eq!(status(&mut healthy), "HTTP/1.1 200");
    assert_eq!(relay.handle.snapshot().open, 31, "the others wait on");
    for stream in &mut dead {
        assert_eq!(status(stream), "HTTP/1.1 502");
    }
}

#[test]
fn trailing_dot_name_matches_the_rule() {
    let names = NameServer::new("dotted", &[("dest.test", NameReply::Address([127, 0, 0, 1]))]);
    let (_relay, gateway) = world(&names);
    let port = echo().port();
    let mut stream = ask(&gateway, &format!("Dest.test.:{port}"));
    assert_eq!(status(&mut stream), "HTTP/1.1 200");
    let mut stream = ask(&gateway, &format!("typo.test.:{port}"));
    assert_eq!(status(&mut stream), "HTTP/1.1 502");
    assert!(names.questions().iter().all(|name| !name.contains("corp")));
}

/// Checks that none of these clients has been answered yet.
fn assert_wait(clients: &[TcpStream]) {
    for client in clients {
        client.set_nonblocking(true).unwrap();
        let peeked = client.peek(&mut [0]).map_err(|error| error.kind());
        assert_eq!(peeked, Err(ErrorKind::WouldBlock), "the others wait on");
    }
}

/// Returns distinct names without an answer.
fn dead_names(prefix: &str, count: usize) -> Vec<&'static str> {
    (0..count).map(|number| &*format!("{prefix}-{number}.test").leak()).collect()
}

#[test]
fn dead_names_of_one_listener_delay_no_other() {
    const DEAD: usize = 140;
    let dead = dead_names("dead", DEAD);
    let mut names: Vec<_> = dead.iter().map(|name| (*name, NameReply::Nothing)).collect();
    names.push(("healthy.test", NameReply::Address([127, 0, 0, 1])));
    let names = NameServer::new("listeners", &names);
    let resolver = Resolver::reading(names.conf.0.clone(), names.hosts.0.clone(), names.port);
    let mut config = gateway_config(Route::Direct);
    config.connect = vec![loopback(), loopback()];
    let gateway = Gateway::bind(&config).unwrap().with_resolver(resolver);
    let gateway = Running::gateway_of(gateway);
    let ask = |listener: usize, name: &str| {
        let mut stream = connect(gateway.handle.local_addrs()[listener]);
        write!(stream, "CONNECT {name}:{} HTTP/1.1\r\n\r\n", 1).unwrap();
        stream
    };
    let waiting: Vec<_> = dead.iter().map(|name| ask(0, name)).collect();
    wait_for("the sessions", || gateway.handle.snapshot().open == DEAD as u64);
    wait_for("the questions", || !names.questions().is_empty());
    let mut healthy = ask(1, "healthy.test");
    // No listener is there, which is known once the name is found.
    assert_eq!(status(&mut healthy), "HTTP/1.1 502");
    assert_wait(&waiting);
}

#[test]
fn dead_names_of_one_program_delay_no_other() {
    const DEAD: usize = 64;
    let dead = dead_names("program", DEAD);
    let mut names: Vec<_> = dead.iter().map(|name| (*name, NameReply::Nothing)).collect();
    names.push(("healthy.test", NameReply::Address([127, 0, 0, 1])));
    let names = NameServer::new("programs", &names);
    let resolver = Resolver::reading(names.conf.0.clone(), names.hosts.0.clone(), names.port);
    let mut config = gateway_config(Route::Direct);
    config.connect = vec![loopback()];
    let gateway = Gateway::bind(&config).unwrap().with_resolver(resolver);
    let gateway = Running::gateway_of(gateway);
    let waiting: Vec<_> = dead.iter().map(|name| ask(&gateway, &format!("{name}:1"))).collect();
    wait_for("the sessions", || gateway.handle.snapshot().open == DEAD as u64);
    let mut healthy = ask(&gateway, "healthy.test:1");
    // No listener is there, which is known once the name is found.
    assert_eq!(status(&mut healthy), "HTTP/1.1 502");
    assert_wait(&waiting);
}

#[test]
fn lookup_limit_is_per_gateway() {
    const MAX: usize = 32;
    let dead = dead_names("grants", 2 * MAX + 20);
    let mut known: Vec<_> = dead.iter().map(|name| (*name, NameReply::Nothing)).collect();
    known.push(("healthy.test", NameReply::Address([127, 0, 0, 1])));
    let names = NameServer::new("grants", &known);
    let resolver = Resolver::reading(names.conf.0.clone(), names.hosts.0.clone(), names.port);
    let mut config: RelayConfig = relay_config();
    config.policy.destinations.push("*.test:*".parse().unwrap());
    let relay = Running::relay_of(Relay::bind(&config).unwrap().with_resolver(resolver));
    let key = identity();
    let gateway_of = |key: &tradewind_grant::IdentityKey, sessions: u32| {
        let mut grant = grant_for(key.public()).unverified().clone();
        grant.destinations.push("*.test:*".parse().unwrap());
        grant.sessions = std::num::NonZeroU32::new(sessions);
        grant.extensions = Extensions::default();
        let config = gateway_config(route_over(std::slice::from_ref(&relay)));
        let config = GatewayConfig {
            grant: Some(grant.sign(&operator()).unwrap()),
            identity: Some(key.clone()),
            connect: vec![loopback()],
            ..config
        };
        Running::gateway(&config)
    };
    // Two grants of one gateway, which differ in what they allow.
    let gateways = [gateway_of(&key, 1000), gateway_of(&key, 2000)];
    let ask_all = |gateway: &Running, names: &[&str]| -> Vec<TcpStream> {
        names.iter().map(|name| ask(gateway, &format!("{name}:1"))).collect()
    };
    let (first, second) = dead.split_at(dead.len() / 2);
    let mut waiting = ask_all(&gateways[0], first);
    waiting.extend(ask_all(&gateways[1], second));
    let open = |count: usize| relay.handle.snapshot().open == count as u64;
    wait_for("the sessions", || open(dead.len()));
    let other = gateway_of(&identity(), 1000);
    assert_eq!(status(&mut ask(&other, "healthy.test:1")), "HTTP/1.1 502");
    let asked: std::collections::BTreeSet<_> =
        names.questions().into_iter().filter(|name| name.starts_with("grants")).collect();
    assert!(asked.len() <= MAX, "{} of one gateway", asked.len());
    drop(waiting);
}
