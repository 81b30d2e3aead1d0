//! A client that resets while its path is being opened: every dial on the path is cancelled at
//! once.

use std::io::Write;
use std::net::{IpAddr, Shutdown as Half, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tradewind_desired::{Hop, Route};

use crate::support::{
    Running, connect, forward, gateway_config, identity, loopback, relay_config, relay_loopback,
    reset, wait_for,
};

/// Longer than a test waits for anything.
const DIAL: Duration = Duration::from_secs(600);

/// A listener whose queue is full: a dial is not answered.
struct Stuck {
    address: SocketAddr,
    _listener: Socket,
    _in_queue: TcpStream,
}

impl Stuck {
    fn new() -> Self {
        Self::at(loopback())
    }

    fn at(place: SocketAddr) -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&place.into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let in_queue = TcpStream::connect(address).unwrap();
        Self { address, _listener: listener, _in_queue: in_queue }
    }

    /// Returns true if a dial to it is pending (`SYN_SENT`, state 2 of /proc/net/tcp).
    fn is_dialled(&self) -> bool {
        let IpAddr::V4(ip) = self.address.ip() else { unreachable!() };
        let number = u32::from_ne_bytes(ip.octets());
        let wanted = format!("{number:08X}:{:04X} 02 ", self.address.port());
        std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&wanted)
    }
}

fn patient_relay() -> Running {
    let mut config = relay_config();
    config.timeouts.dial = DIAL;
    Running::relay(&config)
}

/// Resets a client over `hops` to `to` while `stuck` is being dialled, after its end of file if it
/// `ends`.
fn assert_cancelled(relays: &[Running], hops: Vec<Hop>, to: SocketAddr, stuck: &Stuck, ends: bool) {
    let route = if hops.is_empty() { Route::Direct } else { Route::Relays(hops) };
    let mut config = gateway_config(route);
    config.timeouts.dial = DIAL;
    config.forward = vec![forward(to)];
    let gateway = Running::gateway(&config);
    let mut client = connect(gateway.address());
    client.write_all(b"hello").unwrap();
    if ends {
        client.shutdown(Half::Write).unwrap();
    }
    wait_for("the dial", || stuck.is_dialled());
    reset(client);
    wait_for("the end of the dial", || !stuck.is_dialled());
    for one in relays.iter().chain([&gateway]) {
        wait_for("the session's end", || one.handle.snapshot().open == 0);
        assert_eq!(one.handle.snapshot().outcome("broken"), 1);
    }
}

#[test]
fn reset_cancels_the_dial_to_the_destination() {
    for (count, ends) in [(0, false), (0, true), (1, false), (3, false), (3, true)] {
        let stuck = Stuck::new();
        let relays: Vec<_> = (0..count).map(|_| patient_relay()).collect();
        let hops = relays.iter().enumerate().map(|(i, relay)| relay.hop(&format!("relay-{i}")));
        assert_cancelled(&relays, hops.collect(), stuck.address, &stuck, ends);
    }
}

#[test]
fn reset_cancels_the_dial_to_the_next_relay() {
    for ends in [false, true] {
        let stuck = Stuck::at(relay_loopback());
        let relays = [patient_relay()];
        let name = "stuck".parse().unwrap();
        let next = Hop { name, address: stuck.address, identity: identity().public() };
        let hops = vec![relays[0].hop("first"), next];
        assert_cancelled(&relays, hops, loopback_service(), &stuck, ends);
    }
}

#[test]
fn reset_cancels_the_dial_to_the_first_relay() {
    let stuck = Stuck::new();
    let name = "stuck".parse().unwrap();
    let first = Hop { name, address: stuck.address, identity: identity().public() };
    assert_cancelled(&[], vec![first], loopback_service(), &stuck, false);
}

/// Returns an address that the grants of tests cover; it is never dialled.
fn loopback_service() -> SocketAddr {
    "127.0.0.1:9".parse().unwrap()
}
