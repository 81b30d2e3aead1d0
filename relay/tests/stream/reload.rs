//! A relay that takes another configuration over while sessions run.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tradewind_desired::Connections;
use tradewind_grant::{Extensions, Grant};
use tradewind_relay::{Relay, RelayConfig, RelayReloader};
use tradewind_units::Bytes;

use crate::support::{
    Chain, Running, connect, content, destination, echo, forward, gateway_config, grant_for,
    operator, relay_config, route_over, unix_now, wait_for,
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
fn a_session_ends_when_its_next_hop_is_allowed_no_more() {
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
fn a_striped_session_ends_with_all_its_connections_when_it_is_allowed_no_more() {
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

/// A gateway whose grant ends after `life`, and whose sessions end after `age`.
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
fn a_session_ends_with_its_grant_or_at_its_greatest_age() {
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
