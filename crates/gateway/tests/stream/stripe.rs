//! Striped legs.

use std::io::{Read, Write};
use std::net::{Shutdown as Half, TcpStream};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tradewind_config::RelayConfig;
use tradewind_desired::{Connections, Route};
use tradewind_units::Bytes;

use crate::support::proxy::Proxy;
use crate::support::{
    Chain, Running, connect, content, destination, digest, echo, forward, gateway_config, hash,
    relay_config, send, wait_for,
};

/// Returns the configuration of a relay that stripes the legs that it dials.
fn striping(connections: Connections, after: u64) -> RelayConfig {
    let mut config = relay_config();
    config.leg.dial.connections = connections;
    config.leg.dial.stripe_after = Bytes::new(after);
    config
}

fn fixed(number: u64) -> Connections {
    Connections::fixed(number).unwrap()
}

/// A gateway, two relays, and between these a proxy.
struct Proxied {
    gateway: Running,
    first: Running,
    second: Running,
    proxy: Proxy,
}

impl Proxied {
    fn new(first: &RelayConfig, to: std::net::SocketAddr) -> Self {
        Self::of(first, &relay_config(), to)
    }

    fn of(first: &RelayConfig, second: &RelayConfig, to: std::net::SocketAddr) -> Self {
        let (mut first, mut second) = (first.clone(), second.clone());
        // On loopback a connection would hold the whole window, and others would get nothing.
        first.leg.dial.send_buffer = Some(Bytes::new(1 << 16));
        second.leg.accept.send_buffer = Some(Bytes::new(1 << 16));
        let (first, second) = (Running::relay(&first), Running::relay(&second));
        let proxy = Proxy::to(second.address());
        let mut last = second.hop("second");
        last.address = proxy.address;
        let mut config = gateway_config(Route::Relays(vec![first.hop("first"), last]));
        config.forward = vec![forward(to)];
        Self { gateway: Running::gateway(&config), first, second, proxy }
    }

    fn connect(&self) -> TcpStream {
        connect(self.gateway.address())
    }

    /// Opens a session whose leg between the relays has so many connections.
    fn striped(&self, connections: u64) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(b"first").unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        self.wait_for_connections(connections);
        stream
    }

    /// Waits until each of its connections has carried a good many bytes.
    fn wait_for_bytes_on_all(&self) {
        wait_for("bytes on every connection", || {
            self.proxy.wires().iter().all(|wire| wire.moved() > 300_000)
        });
    }

    fn wait_for_connections(&self, count: u64) {
        wait_for("all connections to join", || {
            self.first.handle.snapshot().striped_connections == count
                && self.second.handle.snapshot().striped_connections == count
        });
    }
}

/// Sends `content` to an echo and checks the bytes returned, while `disturb` runs.
fn converse(mut stream: TcpStream, length: usize, disturb: impl FnOnce()) {
    let sent = content(length);
    let expected = hash(&sent);
    let mut reader = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || send(&mut stream, &sent));
    disturb();
    assert_eq!(digest(&mut reader).unwrap(), (length, expected));
    sender.join().unwrap();
}

/// As [`converse`], with a stream that ends 4 MB after `disturb` is done.
fn converse_until(mut stream: TcpStream, disturb: impl FnOnce()) {
    let disturbed = Arc::new(AtomicBool::new(false));
    let mut reader = stream.try_clone().unwrap();
    let is_disturbed = Arc::clone(&disturbed);
    let sender = std::thread::spawn(move || {
        let (part, mut sent) = (content(1_000_003), Vec::new());
        let mut left = 4;
        while left > 0 {
            if is_disturbed.load(SeqCst) {
                left -= 1;
            }
            stream.write_all(&part).unwrap();
            sent.extend_from_slice(&part);
        }
        stream.shutdown(Half::Write).unwrap();
        (sent.len(), hash(&sent))
    });
    let received = std::thread::spawn(move || digest(&mut reader).unwrap());
    disturb();
    disturbed.store(true, SeqCst);
    assert_eq!(received.join().unwrap(), sender.join().unwrap());
}

#[test]
fn stream_is_intact_over_any_connections() {
    for number in 1..=8 {
        let relays = [striping(fixed(number), 0), striping(fixed(number), 300_000), relay_config()];
        let relays: Vec<_> = relays.iter().map(Running::relay).collect();
        let chain = Chain::of(relays, echo());
        let striped = |relay: usize| chain.relays[relay].handle.snapshot().striped_connections;
        converse_until(chain.connect(), || {
            wait_for("both legs to be striped", || {
                number == 1 || (1..3).all(|relay| striped(relay) > 0)
            });
        });
        wait_for("the sessions to end", || {
            chain.relays.iter().all(|relay| relay.handle.snapshot().open == 0)
        });
        // On a machine that is busy enough a connection may stall, and another take its place.
        let has_stalled = chain.relays.iter().any(|relay| relay.handle.snapshot().resent_bytes > 0);
        for (index, relay) in chain.relays.iter().enumerate() {
            let seen = relay.handle.snapshot();
            // A connection that joins too late is counted as ended, or as without a session.
            let late = seen.accepted - 1 - seen.outcome("joined");
            let ended = seen.outcome("ended") + seen.outcome("no_session");
            assert_eq!(ended, 1 + late, "{number} connections: {seen:?}");
            assert_eq!((seen.striped_connections, seen.reordering_bytes), (0, 0), "{seen:?}");
            let joined = if index == 0 { 0 } else { number - 1 };
            assert!(has_stalled || seen.outcome("joined") <= joined, "{seen:?}");
            // After eight consecutive failed joins none is tried any more; as many as are wanted
            // may be under way by then.
            assert!(has_stalled || late <= 8 + joined, "{seen:?}");
        }
        let joined = |relay: usize| chain.relays[relay].handle.snapshot().outcome("joined");
        assert!(number == 1 || joined(1) + joined(2) > 0, "nothing was striped");
    }
}

#[test]
fn striping_on_both_sides_of_a_relay() {
    let relays = vec![Running::relay(&striping(fixed(3), 0)), Running::relay(&relay_config())];
    let mut config = gateway_config(crate::support::route_over(&relays));
    config.forward = vec![forward(echo())];
    config.leg.dial.connections = fixed(4);
    config.leg.dial.stripe_after = Bytes::new(0);
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    stream.write_all(b"first").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    wait_for("both legs to be striped", || {
        let middle = relays[0].handle.snapshot();
        (middle.striped_legs, middle.striped_connections) == (2, 7)
    });
    converse(stream, 8_000_000, || {});
}

#[test]
fn short_session_is_not_striped() {
    let chain = Chain::of(
        vec![Running::relay(&striping(fixed(8), 1 << 20)), Running::relay(&relay_config())],
        echo(),
    );
    converse(chain.connect(), 100_000, || {});
    wait_for("the session to end", || chain.relays[1].handle.snapshot().open == 0);
    assert_eq!(chain.relays[1].handle.snapshot().accepted, 1);
}

#[test]
fn killed_connection_loses_no_bytes() {
    // The first is the one on which the session began.
    for (number, victim) in [(2, 0), (2, 1), (4, 0), (4, 2), (8, 7)] {
        let world = Proxied::new(&striping(fixed(number), 0), echo());
        converse_until(world.striped(number), || {
            world.wait_for_bytes_on_all();
            world.proxy.wires()[victim].kill();
        });
    }
}

#[test]
fn stalled_connection_loses_no_bytes() {
    let world = Proxied::new(&striping(fixed(3), 0), echo());
    converse_until(world.striped(3), || {
        world.wait_for_bytes_on_all();
        world.proxy.wires()[1].stall();
    });
    wait_for("both sides to have let go", || {
        world.first.handle.snapshot().open + world.second.handle.snapshot().open == 0
    });
    let resent = |relay: &Running| relay.handle.snapshot().resent_bytes;
    assert!(resent(&world.first) + resent(&world.second) > 0);
}

#[test]
fn loss_of_all_connections_is_a_reset() {
    let (to, receiver) = destination(|mut stream| digest(&mut stream));
    let world = Proxied::new(&striping(fixed(3), 0), to);
    let mut stream = world.connect();
    stream.write_all(&content(1_000_000)).unwrap();
    world.wait_for_connections(3);
    stream.write_all(&content(1_000_000)).unwrap();
    world.proxy.wires().iter().for_each(|wire| wire.kill());
    let error = receiver.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let error = stream.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    wait_for("both relays to count it", || {
        [&world.first, &world.second]
            .iter()
            .all(|relay| relay.handle.snapshot().outcome("broken") == 1)
    });
}

#[test]
fn striped_reset_is_forwarded() {
    // The application resets, then the destination does.
    let (to, receiver) = destination(|mut stream| digest(&mut stream));
    let world = Proxied::new(&striping(fixed(3), 0), to);
    let mut stream = world.connect();
    stream.write_all(&content(1_000_000)).unwrap();
    world.wait_for_connections(3);
    crate::support::reset(stream);
    assert!(receiver.join().unwrap().is_err());

    let (to, resetting) = destination(|mut stream| {
        stream.read_exact(&mut vec![0; 500_000]).unwrap();
        stream
    });
    let world = Proxied::new(&striping(fixed(3), 0), to);
    let mut stream = world.connect();
    stream.write_all(&content(500_000)).unwrap();
    world.wait_for_connections(3);
    crate::support::reset(resetting.join().unwrap());
    assert!(stream.read(&mut [0]).is_err());
}

#[test]
fn directions_end_independently() {
    const LENGTH: usize = 3_000_000;
    // The application ends first, and is answered afterwards.
    let (to, answering) = destination(|mut stream| {
        let read = digest(&mut stream).unwrap();
        send(&mut stream, &content(LENGTH));
        read
    });
    let world = Proxied::new(&striping(fixed(4), 0), to);
    let mut stream = world.connect();
    send(&mut stream, &content(LENGTH));
    assert_eq!(digest(&mut stream).unwrap(), (LENGTH, hash(&content(LENGTH))));
    assert_eq!(answering.join().unwrap(), (LENGTH, hash(&content(LENGTH))));

    // The destination ends first.
    let (to, reading) = destination(|mut stream| {
        send(&mut stream, &content(LENGTH));
        digest(&mut stream).unwrap()
    });
    let world = Proxied::new(&striping(fixed(4), 0), to);
    let mut stream = world.connect();
    assert_eq!(digest(&mut stream).unwrap(), (LENGTH, hash(&content(LENGTH))));
    send(&mut stream, &content(LENGTH));
    assert_eq!(reading.join().unwrap(), (LENGTH, hash(&content(LENGTH))));

    // The application ended before the leg was striped at all.
    let (to, late) = destination(|mut stream| {
        let read = digest(&mut stream).unwrap();
        send(&mut stream, &content(LENGTH));
        read
    });
    let world = Proxied::new(&striping(fixed(4), 1_000_000), to);
    let mut stream = world.connect();
    stream.write_all(b"request").unwrap();
    stream.shutdown(Half::Write).unwrap();
    assert_eq!(digest(&mut stream).unwrap(), (LENGTH, hash(&content(LENGTH))));
    assert_eq!(late.join().unwrap().0, 7);
}

#[test]
fn striped_backpressure_bounds_memory() {
    let mut first = striping(fixed(4), 0);
    first.limits.memory = Some(Bytes::new(4_000_000));
    let (to, slow) = destination(|stream| stream);
    let mut last = relay_config();
    last.limits.memory = Some(Bytes::new(4_000_000));
    let chain = Chain::of(vec![Running::relay(&first), Running::relay(&last)], to);
    let mut stream = chain.connect();
    stream.set_write_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    let (chunk, mut sent) = (content(1 << 16), 0u64);
    // The timeout shows that nothing more is accepted.
    while sent < 1 << 30
        && let Ok(count) = stream.write(&chunk)
    {
        sent += count as u64;
        for relay in &chain.relays {
            assert!(relay.handle.held_bytes().unwrap() < 4_000_000);
        }
    }
    assert!(sent < 1 << 30, "nothing stops the sender");
    // And at most one in place of each that has stalled meanwhile.
    assert!((4..=8).contains(&chain.relays[1].handle.snapshot().striped_connections));
    let mut slow = slow.join().unwrap();
    stream.shutdown(Half::Write).unwrap();
    assert_eq!(digest(&mut slow).unwrap().0 as u64, sent);
}

#[test]
fn refused_joins_leave_one_connection() {
    let first = striping(fixed(4), 0);
    let mut last = relay_config();
    last.limits.each_source.sessions = NonZeroU32::new(1);
    let chain = Chain::of(vec![Running::relay(&first), Running::relay(&last)], echo());
    converse(chain.connect(), 5_000_000, || {});
}

#[test]
fn joins_count_against_the_grant() {
    let mut last = relay_config();
    last.limits.each_grant.sessions = NonZeroU32::new(2);
    let relays = vec![Running::relay(&striping(fixed(4), 0)), Running::relay(&last)];
    let chain = Chain::of(relays, echo());
    converse(chain.connect(), 5_000_000, || {});
    let last = &chain.relays[1].handle;
    wait_for("the sessions' end", || last.snapshot().open == 0);
    let snapshot = last.snapshot();
    assert!(snapshot.outcome("grant_full") >= 2, "{snapshot:?}");
    assert!(snapshot.outcome("joined") <= 1, "{snapshot:?}");
}

#[test]
fn adaptive_leg_begins_with_two_connections() {
    let world = Proxied::new(&striping(Connections::Adaptive, 0), echo());
    converse(world.striped(2), 1_000_000, || {});
}

#[test]
fn reordered_data_is_within_its_share() {
    const LIMIT: u64 = 32_000_000;
    let mut second = relay_config();
    second.limits.memory = Some(Bytes::new(LIMIT));
    let world = Proxied::of(&striping(fixed(4), 0), &second, echo());
    let mut most = 0;
    converse_until(world.striped(4), || {
        wait_for("bytes on a further connection", || {
            let busy = world.proxy.wires().into_iter().skip(1).max_by_key(|wire| wire.moved());
            let busy = busy.filter(|wire| wire.moved() > 300_000);
            busy.inspect(|wire| wire.stall()).is_some()
        });
        let mut resent_at = None;
        wait_for("the stream to go on without it", || {
            let seen = world.second.handle.snapshot();
            most = seen.reordering_bytes.max(most);
            assert!(world.second.handle.held_bytes().unwrap() as u64 <= LIMIT);
            if resent_at.is_none() && world.first.handle.snapshot().resent_bytes > 0 {
                resent_at = Some(seen.bytes_up);
            }
            // More than may wait beyond a gap: the gap is filled.
            resent_at.is_some_and(|at| seen.bytes_up > at + LIMIT / 8)
        });
    });
    assert!(most > 0, "nothing came out of order");
    assert!(most <= LIMIT / 16, "{most} bytes beyond a gap");
}

#[test]
fn drain_lets_striped_session_end() {
    for draining in 0..2 {
        let config = |mut config: RelayConfig| {
            config.timeouts.drain = std::time::Duration::from_secs(600);
            config
        };
        let relays =
            [striping(fixed(4), 0), relay_config()].map(|relay| Running::relay(&config(relay)));
        let mut chain = Chain::of(relays.into(), echo());
        let mut stream = chain.connect();
        stream.write_all(b"first").unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        wait_for("all connections to join", || {
            chain.relays[1].handle.snapshot().striped_connections == 4
        });
        let relay = chain.relays.remove(draining);
        relay.shutdown.drain();
        converse(stream, 5_000_000, || {});
        relay.join();
    }
}
