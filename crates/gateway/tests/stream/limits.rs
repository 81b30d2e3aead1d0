//! Limits of sessions, rates and memory: the sessions they apply to, and their replies.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use tradewind_config::{Limits, Share};
use tradewind_desired::Route;
use tradewind_units::{Bandwidth, Bytes};

use super::drain::get;
use super::refusal::{connect_gateway, connect_through};
use crate::support::{
    Chain, Running, content, destination, digest, echo, forward, gateway_config, hash, loopback,
    relay_config, route_over, send, wait_for,
};

fn relay_with(limits: Limits) -> Running {
    let mut config = relay_config();
    config.limits = limits;
    Running::relay(&config)
}

fn sessions(most: u32) -> Share {
    Share { sessions: NonZeroU32::new(most), ..Share::default() }
}

fn open_session(chain: &Chain) -> TcpStream {
    let mut stream = chain.connect();
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    stream
}

/// Checks that a relay has capacity for `most`, replies `expected` to the next, and has capacity
/// again afterwards.
fn assert_limit(limits: Limits, most: usize, outcome: &str, expected: &str) {
    let to = echo();
    let chain = Chain::of(vec![relay_with(limits)], to);
    let relay = &chain.relays[0];
    let asking = connect_gateway(route_over(&chain.relays));
    let open: Vec<_> = (0..most).map(|_| open_session(&chain)).collect();
    let (status, body) = connect_through(&asking, &to.to_string());
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable", "{body}");
    assert_eq!(body, format!("relay 1 ({}): {expected}\n", relay.address()));
    wait_for("the count", || relay.handle.snapshot().outcome(outcome) == 1);
    drop(open);
    wait_for("room", || relay.handle.snapshot().open == 0);
    open_session(&chain);
}

#[test]
fn session_limit_is_reported() {
    let limits = Limits { sessions: 8, each_gateway: sessions(8), ..Limits::default() };
    assert_limit(limits, 8, "full", "the sessions are all in use");
}

#[test]
fn source_session_limit_is_reported() {
    let limits = Limits { each_source: sessions(3), ..Limits::default() };
    assert_limit(limits, 3, "source_full", "the sessions of this source are all in use");
}

#[test]
fn default_grant_session_limit() {
    let limits = Limits { each_grant: sessions(2), ..Limits::default() };
    let chain = Chain::of(vec![relay_with(limits)], echo());
    let _open: Vec<_> = (0..2).map(|_| open_session(&chain)).collect();
    assert!(digest(&mut chain.connect()).is_err(), "a port forward can only be reset");
    wait_for("the count", || chain.relays[0].handle.snapshot().outcome("grant_full") == 1);
    // Another gateway has a grant of its own.
    let hops = route_over(&chain.relays);
    let status = connect_and_end(&connect_gateway(hops), echo());
    assert_eq!(status, "HTTP/1.1 200 Connection established");
}

/// Opens CONNECT, ends it, and returns the status line.
fn connect_and_end(gateway: &Running, to: SocketAddr) -> String {
    let mut stream = crate::support::connect(gateway.address());
    write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn trusted_source_is_unlimited() {
    let limits = Limits {
        each_source: sessions(1),
        trusted_sources: vec!["127.0.0.0/8:*".parse().unwrap()],
        ..Limits::default()
    };
    let chain = Chain::of(vec![relay_with(limits)], echo());
    let _open: Vec<_> = (0..5).map(|_| open_session(&chain)).collect();
}

/// Moves `bytes` through a relay with `limits`: nothing is lost, and the relay has delayed it. The
/// tests of `quota` check the delay in virtual time.
fn assert_waits(limits: Limits, bytes: usize) {
    let bytes = content(bytes);
    let expected = (bytes.len(), hash(&bytes));
    let (to, served) = destination(|mut stream| digest(&mut stream).unwrap());
    let chain = Chain::of(vec![relay_with(limits)], to);
    send(&mut chain.connect(), &bytes);
    assert_eq!(served.join().unwrap(), expected);
    wait_for("the end", || chain.relays[0].handle.snapshot().outcome("ended") == 1);
    assert!(chain.relays[0].handle.snapshot().throttled > 0);
}

#[test]
fn rate_limits_hold() {
    // Five times the burst of a tenth of a second.
    let rate = Some(Bandwidth::from_mbps(16.0).unwrap());
    let share = Share { rate, ..Share::default() };
    for limits in [
        Limits { rate, ..Limits::default() },
        Limits { each_source: share, ..Limits::default() },
        Limits { each_grant: share, ..Limits::default() },
    ] {
        assert_waits(limits, 1_000_000);
    }
}

#[test]
fn shared_rate_is_fair() {
    let rate = Some(Bandwidth::from_mbps(16.0).unwrap());
    let chains: Vec<_> = (0..2).map(|_| counting_destination()).collect();
    let relay = relay_with(Limits { rate, ..Limits::default() });
    let route = route_over(std::slice::from_ref(&relay));
    let writers: Vec<_> = chains
        .iter()
        .map(|(to, _)| {
            let mut config = crate::support::gateway_config(route.clone());
            config.forward = vec![crate::support::forward(*to)];
            let gateway = Running::gateway(&config);
            let mut stream = crate::support::connect(gateway.address());
            let writer = std::thread::spawn(move || while stream.write_all(&[7; 65536]).is_ok() {});
            (gateway, writer)
        })
        .collect();
    let received = || chains.iter().map(|(_, count)| count.load(Relaxed)).collect::<Vec<_>>();
    wait_for("both to flow", || received().iter().all(|count| *count > 200_000));
    let before = received();
    // So much that it takes seconds: the count may be late by a quarter of one where other programs
    // run as well.
    wait_for("both to flow on", || received().iter().sum::<usize>() > 6_000_000);
    let moved: Vec<_> = received().iter().zip(before).map(|(now, before)| now - before).collect();
    let (less, more) = (moved[0].min(moved[1]), moved[0].max(moved[1]));
    assert!(less * 10 >= more * 7, "{moved:?}");
    drop(relay);
    for (gateway, writer) in writers {
        drop(gateway);
        writer.join().unwrap();
    }
}

/// Starts a destination that counts the bytes that it reads.
fn counting_destination() -> (SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let (to, _thread) = destination(move |mut stream| {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            counted.fetch_add(read, Relaxed);
        }
    });
    (to, count)
}

/// Sessions over `relay` by a gateway of their own, whose receivers read nothing until they are
/// released.
struct SlowReceivers {
    _gateway: Running,
    writers: Vec<JoinHandle<()>>,
    releases: Vec<Sender<()>>,
    served: Vec<JoinHandle<(usize, [u8; 32])>>,
    /// Sessions that have reached their receiver: the relay has admitted these.
    reached: Arc<AtomicUsize>,
    expected: (usize, [u8; 32]),
}

impl SlowReceivers {
    /// Opens `sessions` of `length` bytes each, on one grant.
    fn new(relay: &Running, sessions: usize, length: usize) -> Self {
        let (bytes, mut config) = (content(length), gateway_config(route_over_one(relay)));
        let (mut releases, mut served) = (Vec::new(), Vec::new());
        let reached = Arc::new(AtomicUsize::new(0));
        for _ in 0..sessions {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let arrived = Arc::clone(&reached);
            let (to, thread) = destination(move |mut stream| {
                arrived.fetch_add(1, Relaxed);
                released.recv().unwrap();
                digest(&mut stream).unwrap()
            });
            config.forward.push(forward(to));
            releases.push(release);
            served.push(thread);
        }
        let gateway = Running::gateway(&config);
        let write = |at: &SocketAddr| {
            let (mut stream, bytes) = (crate::support::connect(*at), bytes.clone());
            std::thread::spawn(move || send(&mut stream, &bytes))
        };
        let writers = gateway.handle.local_addrs().iter().map(write).collect();
        let expected = (bytes.len(), hash(&bytes));
        Self { _gateway: gateway, writers, releases, served, reached, expected }
    }

    /// Checks that every byte arrives.
    fn release(self) {
        for ((writer, release), served) in
            self.writers.into_iter().zip(self.releases).zip(self.served)
        {
            release.send(()).unwrap();
            writer.join().unwrap();
            assert_eq!(served.join().unwrap(), self.expected);
        }
    }
}

fn route_over_one(relay: &Running) -> Route {
    route_over(std::slice::from_ref(relay))
}

#[test]
fn little_memory_loses_no_bytes() {
    let relay = relay_with(Limits { memory: Some(Bytes::new(1_000_000)), ..Limits::default() });
    let runs: Vec<_> = (0..4).map(|_| SlowReceivers::new(&relay, 1, 12_000_000)).collect();
    // No receiver reads, so the relay holds as much as it may.
    wait_for("bytes in the relay", || relay.handle.snapshot().bytes_up > 4 * 200_000);
    runs.into_iter().for_each(SlowReceivers::release);
}

#[test]
fn held_memory_is_limited_per_member() {
    let share = Share { memory: Some(Bytes::new(1_000_000)), ..Share::default() };
    let all = Some(Bytes::new(64_000_000));
    for (limits, binds_others) in [
        (Limits { memory: all, each_grant: share, ..Limits::default() }, false),
        (Limits { memory: all, each_source: share, ..Limits::default() }, true),
    ] {
        let mut config = relay_config();
        config.limits = limits;
        config.metrics = Some(loopback());
        // Small socket buffers, so that the relay soon holds data.
        config.leg.dial.send_buffer = Some(Bytes::new(1 << 16));
        let relay = Running::relay(&config);
        let metrics = relay.handle.metrics_addr().unwrap();
        let held = || value(&get(metrics, "/metrics"), "tradewind_relay_held_bytes");
        // As many as have their memory set aside: half of the limit, 16 KiB each.
        let slow = SlowReceivers::new(&relay, 30, 1_000_000);
        let has_all = || {
            let bytes_up = relay.handle.snapshot().bytes_up;
            slow.reached.load(Relaxed) == 30 && bytes_up >= 30 * 100_000
        };
        wait_for("all receivers to stand still", || {
            assert!(held() <= f64::from(1_000_000 - 30 * (8 << 10)), "{} held", held());
            has_all()
        });
        // Another grant, the same source.
        let mut config = gateway_config(route_over_one(&relay));
        config.forward = vec![forward(echo())];
        let other = Running::gateway(&config);
        let mut stream = crate::support::connect(other.address());
        let _reset = stream.write_all(b"ping");
        assert_eq!(stream.read_exact(&mut [0; 4]).is_err(), binds_others);
        let refused = u64::from(binds_others);
        wait_for("the count", || relay.handle.snapshot().outcome("source_full") == refused);
        slow.release();
    }
}

/// Returns the value of a gauge in the text of all metrics.
fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find(|line| line.starts_with(&format!("{name} ")));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}
