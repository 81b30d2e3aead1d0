//! A relay that is reached by an impostor.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tradewind_config::RelayConfig;
use tradewind_grant::{
    Destination, Grant, Hop, IdentityKey, Nonce, OperatorKey, Relays, Request, Route, Sealer,
};
use tradewind_stream::connection::Tls;
use tradewind_stream::{Handle, Shutdown};
use tradewind_units::Timestamp;

use super::*;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn key(seed: u8) -> IdentityKey {
    IdentityKey::from_entropy([seed; 32])
}

/// Starts a relay with identity 2 on a thread.
fn relay(shutdown: &Shutdown) -> (Handle, std::thread::JoinHandle<()>) {
    let text = format!(
        "listen = ['127.0.0.1:0']\nidentity = '{}'\noperators = ['{}']\nworkers = 1\n
        [policy]\ndestinations = ['127.0.0.1/32:9']\nallow_loopback = true",
        *key(2).to_secret_text(),
        OperatorKey::from_entropy([9; 32]).public(),
    );
    let relay = Relay::bind(&RelayConfig::parse(&text).unwrap()).unwrap();
    let (handle, stop) = (relay.handle(), shutdown.clone());
    (handle, std::thread::spawn(move || relay.run(&stop).unwrap()))
}

/// Returns a header that identity 1 seals, for a destination that refuses connections.
fn header(relay: SocketAddr, nonce: u8) -> Vec<u8> {
    let now = unix_now();
    let grant = Grant {
        gateway: key(1).public(),
        not_before: Timestamp::ZERO,
        expires: now + Duration::from_secs(3600),
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays: Relays::Any,
        destinations: vec!["127.0.0.1/32:9".parse().unwrap()],
    };
    let grant = grant.sign(&OperatorKey::from_entropy([9; 32])).unwrap();
    let destination: Destination = "127.0.0.1:9".parse().unwrap();
    let hop = Hop { address: relay, identity: key(2).public() };
    let (flow, route) = ("test".parse().unwrap(), Route::new(vec![hop]).unwrap());
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let mut sealer = Sealer::new(key(1), grant).unwrap();
    sealer.seal(now, Nonce::from_entropy([nonce; 16]), &request).unwrap().bytes
}

#[test]
fn header_of_another_gateway_is_not_answered() {
    let shutdown = Shutdown::new();
    let (handle, thread) = relay(&shutdown);
    let address = handle.local_addrs()[0];
    let answer = |seed: u8| {
        runtime().block_on(async {
            let tls = Tls::new(&key(seed)).unwrap();
            let stream = TcpStream::connect(address).await.unwrap();
            let mut connection = tls.seal_dialled(stream, key(2).public()).await.unwrap();
            connection.write_all(&header(address, seed)).await.unwrap();
            let mut answer = Vec::new();
            let _reset = connection.read_to_end(&mut answer).await;
            answer.len()
        })
    };
    assert_eq!(answer(7), 0, "an impostor, though the header is true");
    assert_ne!(answer(1), 0, "the gateway itself");
    // Not `stop`: it cuts a session that has answered and not ended yet, and counts it so.
    shutdown.drain();
    thread.join().unwrap();
    let counted = handle.snapshot();
    assert_eq!((counted.outcome("forged"), counted.outcome("connection_refused")), (1, 1));
}
