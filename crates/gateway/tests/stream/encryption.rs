//! Encrypted legs: bytes on the wire, identities, and peers that differ in their settings.

use std::io::{Read, Write};
use std::net::{Shutdown as Half, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tradewind_config::RelayConfig;
use tradewind_desired::{Encryption, Hop, Route};

use super::refusal::connect_through;
use crate::support::{
    Running, connect, content, destination, digest, echo, forward, gateway_config, identity,
    loopback, plain_legs, relay_config, relay_loopback, send, wait_for,
};

/// A proxy between a leg's two ends that keeps a copy of the bytes.
struct Tap {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
    /// Ends all connections in order, as if each side had ended its direction.
    cut: Arc<AtomicBool>,
}

impl Tap {
    fn before(to: SocketAddr) -> Self {
        let listener = TcpListener::bind(relay_loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, cut) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<AtomicBool>::default());
        let tap = Self { address, seen: Arc::clone(&seen), cut: Arc::clone(&cut) };
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, remote) = (near.unwrap(), connect(to));
                for (from, into) in
                    [(near.try_clone().unwrap(), remote.try_clone().unwrap()), (remote, near)]
                {
                    let (seen, cut) = (Arc::clone(&seen), Arc::clone(&cut));
                    std::thread::spawn(move || pass_on(from, into, &seen, &cut));
                }
            }
        });
        tap
    }

    /// Returns `relay`, reached through this.
    fn hop(&self, relay: &Running, name: &str) -> Hop {
        Hop { address: self.address, ..relay.hop(name) }
    }

    fn has_seen(&self, what: &[u8]) -> bool {
        self.seen.lock().unwrap().windows(what.len()).any(|window| window == what)
    }
}

fn pass_on(mut from: TcpStream, mut into: TcpStream, seen: &Mutex<Vec<u8>>, cut: &AtomicBool) {
    let mut buffer = [0; 1 << 14];
    from.set_read_timeout(Some(std::time::Duration::from_millis(5))).unwrap();
    while !cut.load(Ordering::Relaxed) {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                seen.lock().unwrap().extend_from_slice(&buffer[..read]);
                if into.write_all(&buffer[..read]).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
    let _gone = into.shutdown(Half::Write);
}

fn listening(encryption: Encryption) -> RelayConfig {
    let mut config = relay_config();
    config.leg.accept.encryption = Some(encryption);
    config
}

/// Returns which secrets two taps on a path's two legs have seen.
fn seen_on_the_wire(plain: bool) -> Vec<[bool; 5]> {
    let (sent, answer) = (content(100_000), b"an answer that nobody else may read".to_vec());
    let reply = answer.clone();
    let (to, served) = destination(move |mut stream| {
        send(&mut stream, &reply);
        digest(&mut stream).unwrap().0
    });
    let relay = |dials_plain: bool| {
        let mut config = listening(if plain { Encryption::None } else { Encryption::Tls });
        config.leg.dial.encryption = dials_plain.then_some(Encryption::None);
        Running::relay(&config)
    };
    let (first, last) = (relay(plain), relay(plain));
    let taps = [Tap::before(first.address()), Tap::before(last.address())];
    let route = vec![taps[0].hop(&first, "first"), taps[1].hop(&last, "last")];
    let identity = route[1].identity;
    let mut config = gateway_config(Route::Relays(route));
    if plain {
        config.leg = plain_legs();
    }
    config.forward = vec![forward(to)];
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    send(&mut stream, &sent);
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert_eq!((back, served.join().unwrap()), (answer.clone(), sent.len()));
    let SocketAddr::V4(v4) = to else { panic!("{to}") };
    let address = [&v4.ip().octets()[..], &v4.port().to_be_bytes()].concat();
    let seen = |tap: &Tap| {
        assert!(tap.seen.lock().unwrap().len() > 100_000, "it saw the flow pass");
        let grant = config.grant.as_ref().unwrap().as_bytes();
        [
            tap.has_seen(&sent[50_000..50_032]),
            tap.has_seen(&answer),
            tap.has_seen(&address),
            tap.has_seen(identity.as_bytes()),
            tap.has_seen(&grant[..32]),
        ]
    };
    taps.iter().map(seen).collect()
}

#[test]
fn wire_hides_content_and_identities() {
    assert_eq!(seen_on_the_wire(false), [[false; 5]; 2]);
    assert_eq!(seen_on_the_wire(true), [[true; 5]; 2], "plain legs show what a tap looks for");
}

#[test]
fn forged_fin_is_a_reset() {
    let relay = Running::relay(&relay_config());
    let tap = Tap::before(relay.address());
    let mut config = gateway_config(Route::Relays(vec![tap.hop(&relay, "relay")]));
    config.forward = vec![forward(echo())];
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    stream.write_all(b"half of it").unwrap();
    let mut back = [0; 10];
    stream.read_exact(&mut back).unwrap();
    tap.cut.store(true, Ordering::Relaxed);
    assert!(stream.read(&mut back).is_err(), "an end where the destination said none");
    wait_for("the relay's account", || relay.handle.snapshot().outcome("broken") == 1);
    wait_for("the gateway's account", || gateway.handle.snapshot().outcome("broken") == 1);
}

/// Returns the answer that a client of a gateway gets for a path over `relay`.
fn client_answer(relay: &Running, plain: bool) -> String {
    let mut config = gateway_config(Route::Relays(vec![relay.hop("relay")]));
    if plain {
        config.leg = plain_legs();
    }
    config.connect = vec![loopback()];
    connect_through(&Running::gateway(&config), "127.0.0.1:9").1
}

#[test]
fn encryption_mismatch_is_reported_by_both() {
    let encrypted = Running::relay(&listening(Encryption::Tls));
    let line = client_answer(&encrypted, true);
    let expected = format!(
        "gateway: next relay {}: wants TLS, which this side does not speak",
        encrypted.address()
    );
    assert!(line.starts_with(&expected), "{line}");
    wait_for("its account", || encrypted.handle.snapshot().outcome("no_tls") == 1);

    let plain = Running::relay(&listening(Encryption::None));
    let line = client_answer(&plain, false);
    let expected =
        format!("gateway: next relay {}: speaks no TLS, which this side wants", plain.address());
    assert!(line.starts_with(&expected), "{line}");
    wait_for("its account", || plain.handle.snapshot().outcome("tls_unwanted") == 1);
}

#[test]
fn listener_accepts_either_encryption() {
    let mut config = listening(Encryption::Either);
    config.listen = vec![loopback(), "[::1]:0".parse().unwrap()];
    config.leg.at =
        vec![tradewind_config::LegAt { address: config.listen[1], encryption: Encryption::None }];
    let relay = Running::relay(&config);
    for plain in [false, true] {
        let line = client_answer(&relay, plain);
        assert!(line.contains("dial 127.0.0.1:9: connection refused"), "{line}");
    }
    let at = Hop { address: relay.handle.local_addrs()[1], ..relay.hop("relay") };
    let mut config = gateway_config(Route::Relays(vec![at]));
    config.connect = vec![loopback()];
    let line = connect_through(&Running::gateway(&config), "127.0.0.1:9").1;
    assert!(line.contains("speaks no TLS"), "{line}");
}

#[test]
fn unexpected_relay_key_gets_no_answer() {
    let mut config = relay_config();
    config.timeouts.header = Duration::from_millis(100);
    let relay = Running::relay(&config);
    let expected = identity().public();
    let hop = Hop { identity: expected, ..relay.hop("relay") };
    let mut config = gateway_config(Route::Relays(vec![hop]));
    config.connect = vec![loopback()];
    let gateway = Running::gateway(&config);
    let line = connect_through(&gateway, "127.0.0.1:9").1;
    let words = format!("ends the connection without an answer: it is not {expected}");
    assert!(line.contains(&words), "{line}");
    wait_for("its account", || relay.handle.snapshot().outcome("forged") == 1);
}
