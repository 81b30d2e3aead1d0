//! Relays and gateways whose identities change while they run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use tradewind_config::{GatewayConfig, RelayConfig};
use tradewind_desired::{Connections, Hop, Route, RouteTable};
use tradewind_gateway::{Gateway, GatewayReloader};
use tradewind_grant::IdentityKey;
use tradewind_relay::{Relay, RelayReloader};
use tradewind_stream::Handle;
use tradewind_units::Bytes;

use crate::drain::get;
use crate::support::{
    Running, connect, echo, forward, gateway_config, grant_for, identity, loopback, relay_config,
    wait_for,
};

fn ping(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"ping")?;
    stream.read_exact(&mut [0; 4])
}

/// A relay or gateway, its current configuration, and its reloader.
struct Reloadable<C, R> {
    running: Running,
    config: C,
    reloader: R,
}

type ReloadableRelay = Reloadable<RelayConfig, RelayReloader>;

fn relay(config: RelayConfig) -> ReloadableRelay {
    let relay = Relay::bind(&config).unwrap();
    let reloader = relay.reloader();
    Reloadable { running: Running::relay_of(relay), config, reloader }
}

impl ReloadableRelay {
    /// Makes `new` its identity, and keeps the previous one.
    fn adds(&mut self, new: &IdentityKey) {
        self.config.previous_identity = self.config.identity.replace(new.clone());
        self.reloads();
    }

    fn forgets_previous(&mut self) {
        self.config.previous_identity = None;
        self.reloads();
    }

    fn reloads(&self) {
        assert_eq!(self.reloader.apply(&self.config).unwrap(), 0, "no session ends");
    }
}

impl Reloadable<GatewayConfig, GatewayReloader> {
    fn reloads(&self) {
        self.reloader.apply(&self.config).unwrap();
    }
}

/// Returns the route over these relays with their current identities.
fn routes(relays: &[ReloadableRelay]) -> RouteTable {
    let hop = |(at, relay): (usize, &ReloadableRelay)| Hop {
        name: format!("relay-{}", at + 1).parse().unwrap(),
        address: relay.running.address(),
        identity: relay.config.identity.as_ref().unwrap().public(),
    };
    let route = Route::Relays(relays.iter().enumerate().map(hop).collect());
    RouteTable::new(Vec::new(), route).unwrap()
}

/// Returns a counter of a relay or gateway by its name at the metrics port.
fn metric(of: &Handle, name: &str) -> u64 {
    let page = get(of.metrics_addr().unwrap(), "/metrics");
    let line = page.lines().find_map(|line| line.split_once(&format!("_{name} ")));
    line.unwrap_or_else(|| panic!("{page}")).1.trim().parse().unwrap()
}

/// Opens sessions at `gateway`, one after the other, until `over`; counts them, and returns the
/// number that failed.
fn opens_sessions(gateway: SocketAddr, count: &AtomicUsize, over: &AtomicBool) -> usize {
    let mut failed = 0;
    while !over.load(Relaxed) {
        failed += usize::from(ping(&mut connect(gateway)).is_err());
        count.fetch_add(1, Relaxed);
    }
    failed
}

/// Sets a flag when dropped, by a panic as well.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Uses of the tested connections, in each step of a rotation, at each process that counts them.
const USES: u64 = 5;

/// A function that returns the uses of the tested connections so far: of a gateway and its two
/// relays, in order.
type Used = fn(&[Handle]) -> Vec<u64>;

/// Changes the identities of two relays and a gateway, which dials by `leg`, while sessions run and
/// begin; checks that the uses that `used` counts grow in each step.
fn assert_rotates(leg: impl Fn(&mut tradewind_desired::LegProfile), used: Used) {
    let mut relays = [relay_config(), relay_config()].map(|mut config| {
        leg(&mut config.leg.dial);
        config.metrics = Some(loopback());
        relay(config)
    });
    let mut config = gateway_config(Route::Refuse);
    config.routes = routes(&relays);
    config.forward = vec![forward(echo())];
    config.metrics = Some(loopback());
    leg(&mut config.leg.dial);
    let gateway = Gateway::bind(&config).unwrap();
    let reloader = gateway.reloader();
    let mut gateway = Reloadable { running: Running::gateway_of(gateway), config, reloader };
    let address = gateway.running.address();
    let mut lasting = connect(address);
    ping(&mut lasting).unwrap();
    let old_routes = gateway.config.routes.clone();
    let all = [&gateway.running].into_iter().chain(relays.iter().map(|relay| &relay.running));
    let all: Vec<_> = all.map(|running| running.handle.clone()).collect();
    let (count, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let failed = std::thread::scope(|scope| {
        let opener = scope.spawn(|| opens_sessions(address, &count, &over));
        let is_over = Over(&over);
        let mut some_sessions = || {
            let (before, used_before) = (count.load(Relaxed), used(&all));
            wait_for("sessions", || count.load(Relaxed) >= before + 5);
            wait_for("uses", || {
                let mut both = used(&all).into_iter().zip(&used_before);
                both.all(|(now, before)| now >= before + USES)
            });
            ping(&mut lasting).unwrap();
        };
        some_sessions();
        for relay in &mut relays {
            relay.adds(&identity());
            some_sessions();
        }
        gateway.config.routes = routes(&relays);
        gateway.reloads();
        some_sessions();
        let new = identity();
        gateway.config.previous_identity = gateway.config.identity.replace(new.clone());
        gateway.reloads();
        some_sessions();
        gateway.config.grant = Some(grant_for(new.public()));
        gateway.reloads();
        some_sessions();
        gateway.config.previous_identity = None;
        gateway.reloads();
        for relay in &mut relays {
            relay.forgets_previous();
            some_sessions();
        }
        drop(is_over);
        opener.join().unwrap()
    });
    assert_eq!(failed, 0, "of {}", count.load(Relaxed));
    // The old identities are no longer valid.
    gateway.config.routes = old_routes;
    gateway.reloads();
    assert!(ping(&mut connect(address)).is_err());
}

#[test]
fn rotation_keeps_sessions_working() {
    assert_rotates(|_| {}, |_| Vec::new());
}

#[test]
fn rotation_keeps_warm_sessions_working() {
    // At the gateway and at the first relay, under either identity of the connections: fewer are
    // idle than are used in each step.
    assert_rotates(
        |leg| leg.warm = std::num::NonZeroU16::new(2),
        |all| all[..2].iter().map(|one| metric(one, "warm_hits_total")).collect(),
    );
}

#[test]
fn rotation_keeps_striped_sessions_working() {
    assert_rotates(
        |leg| {
            leg.connections = Connections::fixed(2).unwrap();
            leg.stripe_after = Bytes::new(0);
        },
        |all| all[1..].iter().map(|relay| relay.snapshot().outcome("joined")).collect(),
    );
}
