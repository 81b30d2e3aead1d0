//! SOCKS5 and HTTP CONNECT, by hand and by curl.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use crate::support::{
    Running, closed_port, connect, content, destination, digest, echo, gateway_config, hash,
    loopback, relay_config, route_over, send,
};

/// A gateway over two relays that speaks SOCKS5 and CONNECT.
struct Proxy {
    gateway: Running,
    relays: Vec<Running>,
}

impl Proxy {
    fn new() -> Self {
        let relays: Vec<_> = (0..2).map(|_| Running::relay(&relay_config())).collect();
        let mut config = gateway_config(route_over(&relays));
        config.socks5 = vec![loopback()];
        config.connect = vec![loopback()];
        Self { gateway: Running::gateway(&config), relays }
    }

    fn socks5(&self) -> SocketAddr {
        self.gateway.handle.local_addrs()[0]
    }

    fn connect(&self) -> SocketAddr {
        self.gateway.handle.local_addrs()[1]
    }
}

fn socks_request(to: SocketAddr) -> Vec<u8> {
    let mut request = vec![5, 1, 0];
    match to {
        SocketAddr::V4(v4) => {
            request.push(1);
            request.extend(v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            request.push(4);
            request.extend(v6.ip().octets());
        }
    }
    request.extend(to.port().to_be_bytes());
    request
}

/// Speaks SOCKS5 up to the reply, and returns its code.
fn socks_open(stream: &mut TcpStream, to: SocketAddr) -> u8 {
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut method = [0; 2];
    stream.read_exact(&mut method).unwrap();
    assert_eq!(method, [5, 0]);
    stream.write_all(&socks_request(to)).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    reply[1]
}

#[test]
fn socks5_connect_carries_data() {
    let bytes = content(700_000);
    let expected = (bytes.len(), hash(&bytes));
    let (to, served) = destination(|mut stream| digest(&mut stream).unwrap());
    let proxy = Proxy::new();
    let mut stream = connect(proxy.socks5());
    assert_eq!(socks_open(&mut stream, to), 0);
    send(&mut stream, &bytes);
    assert_eq!(served.join().unwrap(), expected);
}

#[test]
fn socks5_client_reaches_an_ipv6_destination() {
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let proxy = Proxy::new();
    let mut stream = connect(proxy.socks5());
    assert_eq!(socks_open(&mut stream, listener.local_addr().unwrap()), 0);
}

#[test]
fn socks5_reports_a_refused_destination() {
    let nobody = closed_port();
    let proxy = Proxy::new();
    assert_eq!(socks_open(&mut connect(proxy.socks5()), nobody.address), 5);
}

#[test]
fn socks5_reports_an_overlay_refusal() {
    let nobody = closed_port();
    let mut relay = Running::relay(&relay_config()).hop("gone");
    relay.address = nobody.address;
    let mut config = gateway_config(tradewind_desired::Route::Relays(vec![relay]));
    config.socks5 = vec![loopback()];
    let gateway = Running::gateway(&config);
    assert_eq!(socks_open(&mut connect(gateway.address()), echo()), 3);
}

#[test]
fn socks5_reports_a_destination_timeout() {
    let full = crate::support::FullBacklog::new();
    let mut relay = relay_config();
    relay.timeouts.dial = std::time::Duration::from_millis(300);
    let relays = vec![Running::relay(&relay)];
    let mut config = gateway_config(route_over(&relays));
    config.socks5 = vec![loopback()];
    let gateway = Running::gateway(&config);
    assert_eq!(socks_open(&mut connect(gateway.address()), full.address), 6);
}

#[test]
fn pipelined_socks5_client_loses_nothing() {
    let (to, served) = destination(|mut stream| digest(&mut stream).unwrap());
    let proxy = Proxy::new();
    let mut stream = connect(proxy.socks5());
    let mut all = vec![5, 1, 0];
    all.extend(socks_request(to));
    all.extend(b"earlydata");
    send(&mut stream, &all);
    assert_eq!(served.join().unwrap(), (9, hash(b"earlydata")));
}

/// A relay's reply that a path is open travels with the destination's first data; here there is
/// none.
#[test]
fn early_client_gets_the_reply() {
    let (to, served) = destination(|mut stream| digest(&mut stream).unwrap());
    let proxy = Proxy::new();
    let mut stream = connect(proxy.socks5());
    let all = [&[5, 1, 0], socks_request(to).as_slice(), b"earlydata"].concat();
    stream.write_all(&all).unwrap();
    let mut answers = [0; 12];
    stream.read_exact(&mut answers).unwrap();
    assert_eq!((answers[1], answers[3]), (0, 0));
    drop(stream);
    assert_eq!(served.join().unwrap(), (9, hash(b"earlydata")));
}

#[test]
fn foreign_protocol_is_rejected() {
    let proxy = Proxy::new();
    let mut stream = connect(proxy.socks5());
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(digest(&mut stream).unwrap().0, 0);
    let mut stream = connect(proxy.connect());
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[test]
fn early_connect_client_loses_nothing() {
    let (to, served) = destination(|mut stream| digest(&mut stream).unwrap());
    let proxy = Proxy::new();
    let mut stream = connect(proxy.connect());
    let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\nearlydata");
    send(&mut stream, request.as_bytes());
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(served.join().unwrap(), (9, hash(b"earlydata")));
}

/// Starts a destination that answers any number of HTTP requests with `body`.
fn web_server(body: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).unwrap_or(0) == 0 {
                    break;
                }
                request.push(byte[0]);
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _gone = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    address
}

#[test]
fn curl_works_unchanged() {
    let version = Command::new("curl").arg("--version").output();
    assert!(version.is_ok(), "curl is not there: `make setup` installs it");
    let body = content(1_500_000);
    let url = format!("http://{}/file", web_server(body.clone()));
    let proxy = Proxy::new();
    let socks = format!("socks5h://{}", proxy.socks5());
    let connect = format!("http://{}", proxy.connect());
    for arguments in [vec!["-x", &socks], vec!["--proxytunnel", "--proxy", &connect]] {
        let output = Command::new("curl")
            .env_clear()
            .args(["--silent", "--show-error", "--fail", "--noproxy", "", "--max-time", "60"])
            .args(&arguments)
            .arg(&url)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(hash(&output.stdout), hash(&body), "{arguments:?}");
    }
    assert_eq!(proxy.relays[1].handle.snapshot().bytes_down as usize / body.len(), 2);
}

#[test]
fn direct_route_hides_local_networks() {
    let mut config = gateway_config(tradewind_desired::Route::Direct);
    config.socks5 = vec![loopback()];
    config.allow_loopback = false;
    let gateway = Running::gateway(&config);
    let refused = 2;
    for address in
        ["127.0.0.1:80", "169.254.169.254:80", "10.1.2.3:80", "192.168.0.1:80", "[::1]:80"]
    {
        let mut stream = connect(gateway.address());
        assert_eq!(socks_open(&mut stream, address.parse().unwrap()), refused, "{address}");
    }
}

#[test]
fn direct_route_needs_no_relay() {
    let mut config = gateway_config(tradewind_desired::Route::Direct);
    config.socks5 = vec![loopback()];
    (config.identity, config.grant) = (None, None);
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    assert_eq!(socks_open(&mut stream, echo()), 0);
    stream.write_all(b"there and back").unwrap();
    let mut answer = [0; 14];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"there and back");
}
