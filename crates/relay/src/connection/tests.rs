//! Connections between neighbours that agree on keys, that do not, and that are cut.

use std::fmt;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tradewind_config::RelayConfig;
use tradewind_grant::first_flight::PROOF_BYTES;
use tradewind_grant::{
    Destination, Grant, Hop, IdentityKey, Nonce, OperatorKey, Relays, Request, Route, Sealer,
};
use tradewind_units::Timestamp;

use super::*;
use crate::{Handle, Relay, Shutdown};

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub(crate) fn key(seed: u8) -> IdentityKey {
    IdentityKey::from_entropy([seed; 32])
}

/// Returns both ends of a connection between identities 1 and 2, or why there is none.
pub(crate) async fn pair(
    expected: PublicIdentity,
) -> (
    Result<Connection, impl fmt::Debug + fmt::Display>,
    Result<Connection, impl fmt::Debug + fmt::Display>,
) {
    pair_of(&Tls::new(&key(1)).unwrap(), &Tls::new(&key(2)).unwrap(), expected).await
}

/// Opens a connection from one process to another.
async fn pair_of(
    dialling: &Tls,
    accepting: &Tls,
    expected: PublicIdentity,
) -> (Result<Connection, NotSealed>, Result<Connection, NotSealed>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    let dial = async {
        let near = dialling.seal_dialled(near, expected).await?;
        // The last part of the handshake leaves with the first bytes.
        near.write_all(b"first").await?;
        Ok(near)
    };
    let accept = async {
        let hello = hello_of(&far).await;
        accepting.seal_accepted(far, &hello).await
    };
    tokio::join!(dial, accept)
}

/// Returns the ClientHello of a first flight; the identity of its proof is not checked.
async fn hello_of(far: &TcpStream) -> Vec<u8> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let hello = bytes.get(PROOF_BYTES..).unwrap_or_default();
        if let [22, 3, _, high, low, rest @ ..] = hello
            && rest.len() == usize::from(u16::from_be_bytes([*high, *low]))
        {
            return hello.to_vec();
        }
        far.readable().await.unwrap();
        if let Ok(read) = far.try_read(&mut buffer) {
            assert_ne!(read, 0, "ended in its first flight");
            bytes.extend_from_slice(&buffer[..read]);
        }
    }
}

#[test]
fn mutual_authentication_and_fragmented_data() {
    runtime().block_on(async {
        let (near, far) = pair(key(2).public()).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        assert_eq!((near.peer(), far.peer()), (Some(key(2).public()), Some(key(1).public())));
        let mut first = [0; 5];
        far.read_exact(&mut first[..2]).await.unwrap();
        far.read_exact(&mut first[2..]).await.unwrap();
        assert_eq!(&first, b"first");

        let sent: Vec<u8> = (0..3_000_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
        let send = async {
            for piece in sent.chunks(70_001) {
                AsyncWriteExt::write_all(&mut near, piece).await.unwrap();
            }
            near.shutdown().await.unwrap();
            let mut answer = Vec::new();
            near.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let receive = async {
            let (mut received, mut piece) = (Vec::new(), vec![0; 1000]);
            loop {
                match far.read(&mut piece).await.unwrap() {
                    0 => break,
                    read => received.extend_from_slice(&piece[..read]),
                }
                // Small pieces leave records half read, large ones take several at once.
                piece.resize(if piece.len() == 1000 { 200_000 } else { 1000 }, 0);
            }
            // The other direction goes on after the end of this one.
            far.write_all(b"all of it").await.unwrap();
            far.end().await.unwrap();
            received
        };
        let (answer, received) = tokio::join!(send, receive);
        assert!(received == sent);
        assert_eq!(answer, b"all of it");
    });
}

#[test]
fn resumption_until_an_identity_changes() {
    runtime().block_on(async {
        let (dialling, accepting) = (Tls::new(&key(1)).unwrap(), Tls::new(&key(2)).unwrap());
        let expected = key(2).public();
        let opened = async |accepting: &Tls| {
            let (near, far) = pair_of(&dialling, accepting, expected).await;
            let (near, far) = (near.unwrap(), far.unwrap());
            assert_eq!((near.peer(), far.peer()), (Some(expected), Some(key(1).public())));
            let resumed = [&near, &far].map(|end| end.seal().unwrap().is_resumed());
            assert_eq!(resumed[0], resumed[1]);
            (near, far, resumed[0])
        };
        let answered = async |(mut near, mut far, resumed): (Connection, Connection, bool)| {
            far.read_exact(&mut [0; 5]).await.unwrap();
            far.write_all(b"reply").await.unwrap();
            near.read_exact(&mut [0; 5]).await.unwrap();
            resumed
        };
        let resumed = async |accepting: &Tls| answered(opened(accepting).await).await;
        assert!(!resumed(&accepting).await);
        for _ in 0..20 {
            assert!(resumed(&accepting).await);
        }
        for knows in [false, true] {
            // The first of them takes the ticket that is there.
            let mut all = Vec::new();
            for _ in 0..30 {
                all.push(opened(&accepting).await);
            }
            for (at, one) in all.into_iter().enumerate() {
                assert_eq!(answered(one).await, knows || at == 0);
            }
        }
        let started_again = Tls::new(&key(2)).unwrap();
        assert!(!resumed(&started_again).await);
        assert!(resumed(&started_again).await);

        let (near, _) = pair_of(&dialling, &Tls::new(&key(3)).unwrap(), expected).await;
        assert!(matches!(near, Err(NotSealed::Other(_))), "a ticket of another opens nothing");
    });
}

#[test]
fn truncation_is_an_error() {
    runtime().block_on(async {
        let (near, far) = pair(key(2).public()).await;
        let (near, mut far) = (near.unwrap(), far.unwrap());
        tcp::finish_sending(&near).unwrap();
        let mut received = Vec::new();
        let error = far.read_to_end(&mut received).await.unwrap_err();
        assert_eq!((error.kind(), &received[..]), (io::ErrorKind::UnexpectedEof, &b"first"[..]));
    });
}

#[test]
fn unexpected_identity_is_refused() {
    runtime().block_on(async {
        let (near, far) = pair(key(3).public()).await;
        let (found, expected) = (key(2).public(), key(3).public());
        assert_eq!(
            near.err().unwrap().to_string(),
            format!("is not who it should be: it proves to be {found}, not {expected}")
        );
        assert_eq!(far.err().unwrap().to_string(), "does not take this side's identity");
    });
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
fn header(relay: net::SocketAddr, nonce: u8) -> Vec<u8> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let now = Timestamp::ZERO + now;
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
