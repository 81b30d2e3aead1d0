//! The client's address in the PROXY protocol: sent to the destination, and received from trusted
//! sources. And clients for which a path is reported open before it is.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};

use tradewind_config::ProxyVersion;

use crate::support::{
    Running, closed_port, connect, destination, forward, gateway_config, loopback, relay_config,
    route_over, send,
};

const CLIENT: [u8; 4] = [192, 0, 2, 77];

/// Returns a header of version 2 for TCP over IPv4.
fn header(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { panic!("IPv4") };
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    bytes.extend([from.ip().octets(), to.ip().octets()].concat());
    bytes.extend([from.port().to_be_bytes(), to.port().to_be_bytes()].concat());
    bytes
}

/// Starts a gateway over two relays whose forward accepts PROXY headers, or not, and sends them, or
/// not.
fn gateway(to: SocketAddr, accepts: bool, sends: bool) -> (Running, Vec<Running>) {
    let relays: Vec<_> = (0..2).map(|_| Running::relay(&relay_config())).collect();
    let mut config = gateway_config(route_over(&relays));
    let mut forward = forward(to);
    forward.send_proxy = sends.then_some(ProxyVersion::V2);
    if accepts {
        forward.accept_proxy = vec!["127.0.0.0/8:*".parse().unwrap()];
    }
    config.forward = vec![forward];
    (Running::gateway(&config), relays)
}

/// Returns the bytes that a destination receives from a client that sends `bytes`, and the client's
/// own ends.
fn received(accepts: bool, sends: bool, bytes: &[u8]) -> (Vec<u8>, SocketAddr, SocketAddr) {
    let (to, server) = destination(|mut stream| {
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        received
    });
    let (gateway, _relays) = gateway(to, accepts, sends);
    let mut stream = connect(gateway.address());
    let ends = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    send(&mut stream, bytes);
    (server.join().unwrap(), ends.0, ends.1)
}

#[test]
fn destination_gets_the_proxy_header_first() {
    let (received, client, listener) = received(false, true, b"hello");
    assert_eq!(received, [header(client, listener), b"hello".to_vec()].concat());
}

#[test]
fn trusted_source_sends_the_client_address() {
    let (client, server) = (SocketAddr::from((CLIENT, 5555)), "198.51.100.1:443".parse().unwrap());
    let sent_header = header(client, server);
    let sent = [sent_header.clone(), b"hello".to_vec()].concat();
    let (passed_on, ..) = received(true, true, &sent);
    assert_eq!(passed_on, sent, "passed on as it was told");
    let (without_header, ..) = received(true, false, &sent);
    assert_eq!(without_header, b"hello");
    let (untrusted, ..) = received(false, false, &sent);
    assert_eq!(untrusted, sent, "from others it is data");
}

#[test]
fn trusted_version_1_and_tlvs_are_forwarded() {
    let (client, server) = (SocketAddr::from((CLIENT, 5555)), "198.51.100.1:443".parse().unwrap());
    let line = b"PROXY TCP4 192.0.2.77 198.51.100.1 5555 443\r\nhello";
    let (passed_on, ..) = received(true, true, line);
    assert_eq!(passed_on, [header(client, server), b"hello".to_vec()].concat());
    let (without_header, ..) = received(true, false, line);
    assert_eq!(without_header, b"hello");
    // Authority (TLV 2), in which balancers send the SNI of a client.
    let mut sent_header = header(client, server);
    sent_header[15] += 12;
    sent_header.extend(b"\x02\0\x09a.example");
    let sent = [sent_header, b"hello".to_vec()].concat();
    let (passed_on, ..) = received(true, true, &sent);
    assert_eq!(passed_on, sent);
}

#[test]
fn missing_proxy_header_closes() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let (gateway, _relays) = gateway(listener.local_addr().unwrap(), true, false);
    let mut stream = connect(gateway.address());
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let ended = stream.read(&mut [0]);
    assert!(ended.as_ref().map_or_else(|e| e.kind() == ErrorKind::ConnectionReset, |n| *n == 0));
    crate::support::wait_for("the outcome", || gateway.handle.snapshot().outcome("malformed") == 1);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "never dialled");
}

#[test]
fn optimistic_failure_is_a_reset() {
    let closed = closed_port();
    let relays = vec![Running::relay(&relay_config())];
    let mut config = gateway_config(route_over(&relays));
    config.connect = vec![loopback()];
    config.optimistic = true;
    let gateway = Running::gateway(&config);
    let open = |to: SocketAddr| {
        let mut stream = connect(gateway.address());
        write!(stream, "CONNECT {to} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        stream
    };
    let mut refused = open(closed.address);
    let error = std::io::copy(&mut refused, &mut std::io::sink()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    let (to, server) = destination(|mut stream| {
        let mut question = [0; 4];
        stream.read_exact(&mut question).unwrap();
        stream.write_all(b"pong").unwrap();
        question
    });
    let mut stream = open(to);
    stream.write_all(b"ping").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\npong"), "{answer}");
    assert_eq!(&server.join().unwrap(), b"ping");
}
