//! Names that nobody answers for, and names with a dot at their end, over a gateway and a relay.

use std::io::{Read, Write};
use std::net::TcpStream;

use tradewind_relay::{Relay, Resolver};

use crate::support::names::{NameServer, Says};
use crate::support::{
    Running, connect, echo, gateway_config, grant_for, identity, loopback, operator, relay_config,
    route_over, wait_for,
};

/// A relay that asks a name server, and a gateway with a CONNECT proxy whose grant opens `*.test`.
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
fn sessions_to_a_dead_name_delay_no_other_name_of_the_grant() {
    let healthy = ("healthy.test", Says::Address([127, 0, 0, 1]));
    let names = NameServer::new("sessions", &[healthy, ("dead.test", Says::Nothing)]);
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
fn name_with_a_dot_at_its_end_is_reached_by_the_same_rule() {
    let names = NameServer::new("dotted", &[("dest.test", Says::Address([127, 0, 0, 1]))]);
    let (_relay, gateway) = world(&names);
    let port = echo().port();
    let mut stream = ask(&gateway, &format!("Dest.test.:{port}"));
    assert_eq!(status(&mut stream), "HTTP/1.1 200");
    let mut stream = ask(&gateway, &format!("typo.test.:{port}"));
    assert_eq!(status(&mut stream), "HTTP/1.1 502");
    assert!(names.questions().iter().all(|name| !name.contains("corp")));
}
