//! The end of a relay: drain, deadline, hard stop; and its metrics port meanwhile.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tradewind_config::Forward;
use tradewind_desired::Route;

use crate::support::{
    Chain, Running, connect, content, digest, echo, forward, gateway_config, loopback,
    relay_config, send, wait_for,
};

/// Starts a chain over one relay with an open session.
fn with_session(drain: Duration) -> (Chain, TcpStream) {
    let mut config = relay_config();
    config.timeouts.drain = drain;
    config.metrics = Some(loopback());
    let chain = Chain::of(vec![Running::relay(&config)], echo());
    let mut stream = chain.connect();
    stream.write_all(b"hello").unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
    (chain, stream)
}

pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn drain_ends_with_the_last_session() {
    let (mut chain, mut stream) = with_session(Duration::from_secs(600));
    let relay = chain.relays.remove(0);
    let metrics = relay.handle.metrics_addr().unwrap();
    assert!(get(metrics, "/readyz").starts_with("HTTP/1.1 200 "));
    relay.shutdown.drain();
    wait_for("the listener to close", || TcpStream::connect(relay.address()).is_err());
    wait_for("not ready", || get(metrics, "/readyz").starts_with("HTTP/1.1 503 "));
    assert!(get(metrics, "/healthz").starts_with("HTTP/1.1 200 "));

    let more = content(500_000);
    let reader = stream.try_clone().unwrap();
    let answer = std::thread::spawn(move || digest(&mut { reader }).unwrap().0);
    send(&mut stream, &more);
    assert_eq!(answer.join().unwrap(), more.len());
    relay.join();
}

#[test]
fn drain_deadline_resets_sessions() {
    let (mut chain, mut stream) = with_session(Duration::from_millis(50));
    let relay = chain.relays.remove(0);
    let handle = relay.handle.clone();
    relay.shutdown.drain();
    relay.join();
    assert!(digest(&mut stream).is_err(), "a session that is cut shows as a reset");
    assert_eq!((handle.snapshot().open, handle.snapshot().outcome("cut")), (0, 1));
    assert_eq!(handle.tasks(), 0);
}

#[test]
fn second_signal_stops_a_drain() {
    for has_begun_to_drain in [false, true] {
        let (mut chain, mut stream) = with_session(Duration::from_secs(600));
        let relay = chain.relays.remove(0);
        relay.shutdown.drain();
        if has_begun_to_drain {
            wait_for("the listener to close", || TcpStream::connect(relay.address()).is_err());
        }
        relay.shutdown.stop();
        relay.join();
        assert!(digest(&mut stream).is_err());
    }
}

#[test]
fn metrics_tell_sessions_and_bytes() {
    let (chain, mut stream) = with_session(Duration::ZERO);
    let relay = &chain.relays[0];
    let metrics = relay.handle.metrics_addr().unwrap();
    wait_for("the count", || relay.handle.snapshot().bytes_down == 5);
    let text = get(metrics, "/metrics");
    for line in [
        "tradewind_relay_accepted_total 1",
        "tradewind_relay_open_sessions 1",
        "tradewind_relay_moved_bytes_total{direction=\"up\"} 5",
        "tradewind_relay_moved_bytes_total{direction=\"down\"} 5",
        "tradewind_relay_sessions_total{outcome=\"ended\"} 0",
    ] {
        let found = text.lines().any(|found| found.starts_with(line));
        assert!(found, "`{line}` is not in\n{text}");
    }
    send(&mut stream, b"");
    digest(&mut stream).unwrap();
    let ended = "tradewind_relay_sessions_total{outcome=\"ended\"} 1";
    wait_for("the end", || get(metrics, "/metrics").contains(ended));
}

#[test]
fn metrics_of_a_gateway_tell_the_open_sessions_of_each_flow() {
    let mut config = gateway_config(Route::Direct);
    let named = |flow: &str| Forward { flow: flow.parse().unwrap(), ..forward(echo()) };
    config.forward = vec![named("orders"), named("again")];
    config.metrics = Some(loopback());
    let gateway = Running::gateway(&config);
    let metrics = gateway.handle.metrics_addr().unwrap();
    let open = || -> Vec<String> {
        let text = get(metrics, "/metrics");
        let lines = text.lines().filter(|line| line.starts_with("tradewind_gateway_flow_open"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(open(), [""; 0]);
    let mut streams = [connect(gateway.address()), connect(gateway.address())];
    let line =
        |sessions| format!("tradewind_gateway_flow_open_sessions{{flow=\"orders\"}} {sessions}.0");
    wait_for("both sessions", || open() == [line(2)]);
    send(&mut streams[0], b"");
    digest(&mut streams[0]).unwrap();
    wait_for("the end of one", || open() == [line(1)]);
    drop(streams);
    wait_for("the end of both", || open().is_empty());
}
