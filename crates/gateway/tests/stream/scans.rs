//! Scans: a peer that does not know the relay gets no answer, whatever it sends, until the header's
//! time is over.

use std::io::{Read, Write};
use std::net::{Shutdown as Half, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use tradewind_config::RelayConfig;
use tradewind_desired::Encryption;
use tradewind_grant::FirstFlightKey;

use crate::support::{Running, connect, relay_config, skipped, wait_for};

/// Returns a ClientHello of OpenSSL 3.0: without extensions that matter here.
fn hello() -> Vec<u8> {
    let ciphers: [u8; 4] = [0x13, 0x01, 0x13, 0x02];
    let groups: &[u8] = &[0, 10, 0, 4, 0, 2, 0, 29];
    let versions: &[u8] = &[0, 43, 0, 3, 2, 3, 4];
    let signatures: &[u8] = &[0, 13, 0, 4, 0, 2, 8, 7];
    let share = [&[0, 51, 0, 38, 0, 36, 0, 29, 0, 32][..], &[9; 32]].concat();
    let extensions = [groups, versions, signatures, &share].concat();
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap().to_be_bytes();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &length(&ciphers),
        &ciphers,
        &[1, 0],
        &length(&extensions),
        &extensions,
    ]
    .concat();
    let handshake = [&[1, 0][..], &length(&body), &body].concat();
    [&[22, 3, 1][..], &length(&handshake), &handshake].concat()
}

fn config(encryption: Encryption) -> RelayConfig {
    let mut config = relay_config();
    config.leg.accept.encryption = Some(encryption);
    config.timeouts.header = Duration::from_millis(300);
    config
}

/// Returns a relay's answer to `bytes`, and true if it closes in order.
fn answer(address: SocketAddr, bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let closed = stream.read_to_end(&mut answer);
    (answer, closed.is_ok())
}

#[test]
fn scanner_gets_no_answer() {
    let long = vec![0x5a; 20_000];
    let record = [&[0; 32][..], &[22, 3, 1, 1, 0], &[0; 256]].concat();
    let join = [b"TWJ\x01".as_slice(), &[3; 36]].concat();
    let warm = [b"TWW\x01".as_slice(), &[3; 72]].concat();
    let header = [b"TWH\x01\x01\x00".as_slice(), &[3; 250]].concat();
    let probes: [&[u8]; 10] = [
        &hello(),
        &record,
        &join,
        &warm,
        &header,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x05\x01\x00",
        &long,
    ];
    for encryption in [Encryption::Tls, Encryption::None, Encryption::Either] {
        let relay = Running::relay(&config(encryption));
        for bytes in probes {
            let (answer, in_order) = answer(relay.address(), bytes);
            let begin = String::from_utf8_lossy(&bytes[..bytes.len().min(8)]);
            assert!(answer.is_empty(), "{encryption:?}: {begin:?} is answered by {answer:?}");
            assert!(in_order, "{encryption:?}: {begin:?} is met by a reset");
        }
    }
}

#[test]
fn first_flight_is_bound_to_its_relay() {
    let relay = Running::relay(&config(Encryption::Tls));
    let other = Running::relay(&config(Encryption::Tls));
    let key = FirstFlightKey::of(&relay.hop("relay").identity);
    let flight = [&key.prove([5; 16], &hello())[..], &hello()].concat();
    // A ServerHello.
    let mut stream = connect(relay.address());
    stream.write_all(&flight).unwrap();
    let mut kind = [0; 1];
    stream.read_exact(&mut kind).unwrap();
    assert!(matches!(kind, [21 | 22]), "a record of TLS: {kind:?}");
    assert_eq!(answer(other.address(), &flight), (Vec::new(), true));
    let mut altered = flight.clone();
    *altered.last_mut().unwrap() ^= 1;
    assert_eq!(answer(relay.address(), &altered), (Vec::new(), true));
}

#[test]
fn silent_connection_is_closed_in_order() {
    let relay = Running::relay(&config(Encryption::Tls));
    assert_eq!(answer(relay.address(), b""), (Vec::new(), true));
    let half = connect(relay.address());
    half.shutdown(Half::Write).unwrap();
    let mut half: TcpStream = half;
    assert_eq!(half.read(&mut [0]).unwrap(), 0);
    wait_for("the accounts", || relay.handle.snapshot().outcome("no_header") == 2);
}

#[test]
fn openssl_sees_no_certificate_or_alert() {
    let relay = Running::relay(&config(Encryption::Tls));
    let mut command = Command::new("openssl");
    let to = relay.address().to_string();
    command.args(["s_client", "-connect", &to, "-tls1_3", "-enable_server_rpk", "-msg"]);
    let output = |command: &mut Command| command.stdin(Stdio::null()).output();
    let printed = match output(&mut command) {
        Ok(printed) => printed,
        Err(error) => return skipped(&format!("openssl: {error}")),
    };
    // Versions before 3.2 have no raw public keys.
    let printed = if String::from_utf8_lossy(&printed.stderr).contains("nknown option") {
        let mut command = Command::new("openssl");
        output(command.args(["s_client", "-connect", &to, "-tls1_3", "-msg"])).unwrap()
    } else {
        printed
    };
    let text = [printed.stdout, printed.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("ClientHello"), "it has asked: {text}");
    assert!(!text.contains("<<<"), "it was answered: {text}");
    wait_for("its account", || relay.handle.snapshot().outcome("forged") == 1);
}
