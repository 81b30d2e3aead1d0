//! A relay that takes another configuration over while sessions run.

use std::io::{Read, Write};
use std::net::TcpStream;

use tradewind_desired::Connections;
use tradewind_relay::{Relay, RelayConfig, RelayReloader};
use tradewind_units::Bytes;

use crate::support::{
    Chain, Running, connect, content, destination, echo, forward, gateway_config, relay_config,
    route_over, wait_for,
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
    assert_eq!(reloader.apply(&changed), 1);
    assert!(stream.read_exact(&mut [0; 1]).is_err());
    wait_for("the count", || chain.relays[0].handle.snapshot().outcome("revoked") == 1);
    assert!(ping(&mut chain.connect()).is_err());
    ping(&mut other).unwrap();
    assert_eq!(reloader.apply(&config), 0);
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
    assert_eq!(reloader.apply(&changed), 1);
    writer.join().unwrap();
    served.join().unwrap();
    wait_for("all its connections to end", || handle.snapshot().open == 0);
}
