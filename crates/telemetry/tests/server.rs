//! The telemetry server as its clients see it: plain HTTP over loopback.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tradewind_telemetry::client::metrics::counter::Counter;
use tradewind_telemetry::{Health, Registry, Server, TelemetryError, serve};

const ANY_PORT: &str = "127.0.0.1:0";

fn start(health: Health) -> (Server, Registry) {
    let registry = Registry::new("test", "0.0.1");
    let server = serve(ANY_PORT.parse().unwrap(), &[], registry.clone(), health).unwrap();
    (server, registry)
}

fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // A server that has refused a request may close before it has read all of it.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn get(address: SocketAddr, path: &str) -> String {
    exchange(address, format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
}

#[test]
fn metrics_come_as_open_metrics() {
    let (server, registry) = start(Health::new());
    let bytes = Counter::<u64>::default();
    registry.register(|r| r.register("bytes", "Bytes moved", bytes.clone()));
    bytes.inc_by(42);
    let answer = get(server.local_addr(), "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("application/openmetrics-text; version=1.0.0"));
    assert!(answer.contains("tradewind_bytes_total 42\n"));
    assert!(answer.ends_with("# EOF\n"));
}

#[test]
fn health_and_readiness_give_their_reason() {
    let health = Health::new();
    let (server, _) = start(health.clone());
    let address = server.local_addr();
    assert!(get(address, "/healthz").ends_with("alive\n"));
    let answer = get(address, "/readyz");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.ends_with("not ready: starting\n"));
    health.set_ready();
    assert!(get(address, "/readyz").starts_with("HTTP/1.1 200"));
    health.set_fault("listener lost");
    assert!(get(address, "/healthz").ends_with("not alive: listener lost\n"));
}

#[test]
fn other_paths_methods_and_garbage_are_refused() {
    let (server, _) = start(Health::new());
    let address = server.local_addr();
    assert!(get(address, "/").starts_with("HTTP/1.1 404"));
    let post = b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    assert!(exchange(address, post).starts_with("HTTP/1.1 405"));
    assert!(exchange(address, b"\x16\x03\x01\x02\x00\r\n\r\n").starts_with("HTTP/1.1 400"));
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn pages_of_other_sites_get_nothing() {
    let (server, _) = start(Health::new());
    let address = server.local_addr();
    let ask = |headers: &str| {
        let request = format!("GET /metrics HTTP/1.1\r\n{headers}\r\n");
        exchange(address, request.as_bytes())
    };
    let own = format!("Host: {address}\r\n");
    assert!(ask(&format!("{own}Origin: http://{address}\r\n")).starts_with("HTTP/1.1 200"));
    for origin in ["http://evil.example", "https://127.0.0.1", "http://127.0.0.1:1", "null", ""] {
        let answer = ask(&format!("{own}Origin: {origin}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 403"), "{origin}: {answer}");
        assert!(!answer.contains("tradewind_"), "{answer}");
    }
    let twice = format!("{own}Origin: http://{address}\r\nOrigin: http://{address}\r\n");
    assert!(ask(&twice).starts_with("HTTP/1.1 403"));
    // A name before `@` would be no host, and none who asks in order sends one.
    for host in ["evil.example@127.0.0.1", "evil.example:1@127.0.0.1:9464", "@localhost"] {
        let answer = ask(&format!("Host: {host}\r\n"));
        let status = &answer[..answer.len().min(12)];
        assert!(["HTTP/1.1 421", "HTTP/1.1 400"].contains(&status), "{host}: {answer}");
    }
}

#[test]
fn endless_head_is_cut_off() {
    let (server, _) = start(Health::new());
    let mut request = b"GET /metrics HTTP/1.1\r\n".to_vec();
    request.extend_from_slice(format!("X: {}\r\n", "y".repeat(64 * 1024)).as_bytes());
    let answer = exchange(server.local_addr(), &request);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[test]
fn head_request_has_no_body() {
    let (server, _) = start(Health::new());
    let answer =
        exchange(server.local_addr(), b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn silent_callers_delay_nobody() {
    let (server, _) = start(Health::new());
    // So many that their timeouts, one after the other, would exceed the client's.
    let silent: Vec<_> =
        (0..500).map(|_| TcpStream::connect(server.local_addr()).unwrap()).collect();
    let answer = get(server.local_addr(), "/healthz");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(silent);
}

#[test]
fn port_in_use_is_named() {
    let (server, registry) = start(Health::new());
    let error = serve(server.local_addr(), &[], registry, Health::new()).unwrap_err();
    assert!(matches!(error, TelemetryError::Listen { .. }));
    assert!(error.to_string().contains(&server.local_addr().to_string()));
}

#[test]
fn port_is_free_after_shutdown() {
    let (server, registry) = start(Health::new());
    let address = server.local_addr();
    assert!(get(address, "/healthz").starts_with("HTTP/1.1 200"));
    server.shutdown();
    serve(address, &[], registry, Health::new()).unwrap();
}

#[test]
fn foreign_host_is_misdirected() {
    let (server, _) = start(Health::new());
    let request = b"GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n";
    let answer = exchange(server.local_addr(), request);
    assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
    assert!(answer.contains("metrics_hosts") && !answer.contains("tradewind_"), "{answer}");
}
