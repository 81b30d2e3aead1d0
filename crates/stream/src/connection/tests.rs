//! Connections between neighbours that agree on keys, that do not, and that are cut.

use std::fmt;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tradewind_grant::IdentityKey;
use tradewind_grant::first_flight::PROOF_BYTES;

use super::*;

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
    let (remote, _) = listener.accept().await.unwrap();
    let dial = async {
        let near = dialling.seal_dialled(near, expected).await?;
        // The last part of the handshake leaves with the first bytes.
        near.write_all(b"first").await?;
        Ok(near)
    };
    let accept = async {
        let hello = hello_of(&remote).await;
        accepting.seal_accepted(remote, &hello).await
    };
    tokio::join!(dial, accept)
}

/// Returns the ClientHello of a first flight; the identity of its proof is not checked.
async fn hello_of(remote: &TcpStream) -> Vec<u8> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let hello = bytes.get(PROOF_BYTES..).unwrap_or_default();
        if let [22, 3, _, high, low, rest @ ..] = hello
            && rest.len() == usize::from(u16::from_be_bytes([*high, *low]))
        {
            return hello.to_vec();
        }
        remote.readable().await.unwrap();
        if let Ok(read) = remote.try_read(&mut buffer) {
            assert_ne!(read, 0, "ended in its first flight");
            bytes.extend_from_slice(&buffer[..read]);
        }
    }
}

#[test]
fn mutual_authentication_and_fragmented_data() {
    runtime().block_on(async {
        let (near, remote) = pair(key(2).public()).await;
        let (mut near, mut remote) = (near.unwrap(), remote.unwrap());
        assert_eq!((near.peer(), remote.peer()), (Some(key(2).public()), Some(key(1).public())));
        let mut first = [0; 5];
        remote.read_exact(&mut first[..2]).await.unwrap();
        remote.read_exact(&mut first[2..]).await.unwrap();
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
                match remote.read(&mut piece).await.unwrap() {
                    0 => break,
                    read => received.extend_from_slice(&piece[..read]),
                }
                // Small pieces leave records half read, large ones take several at once.
                piece.resize(if piece.len() == 1000 { 200_000 } else { 1000 }, 0);
            }
            // The other direction goes on after the end of this one.
            remote.write_all(b"all of it").await.unwrap();
            remote.end().await.unwrap();
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
            let (near, remote) = pair_of(&dialling, accepting, expected).await;
            let (near, remote) = (near.unwrap(), remote.unwrap());
            assert_eq!((near.peer(), remote.peer()), (Some(expected), Some(key(1).public())));
            let resumed = [&near, &remote].map(|end| end.seal().unwrap().is_resumed());
            assert_eq!(resumed[0], resumed[1]);
            (near, remote, resumed[0])
        };
        let answered = async |(mut near, mut remote, resumed): (Connection, Connection, bool)| {
            remote.read_exact(&mut [0; 5]).await.unwrap();
            remote.write_all(b"reply").await.unwrap();
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
        let (near, remote) = pair(key(2).public()).await;
        let (near, mut remote) = (near.unwrap(), remote.unwrap());
        tcp::finish_sending(&near).unwrap();
        let mut received = Vec::new();
        let error = remote.read_to_end(&mut received).await.unwrap_err();
        assert_eq!((error.kind(), &received[..]), (io::ErrorKind::UnexpectedEof, &b"first"[..]));
    });
}

#[test]
fn unexpected_identity_is_refused() {
    runtime().block_on(async {
        let (near, remote) = pair(key(3).public()).await;
        let (found, expected) = (key(2).public(), key(3).public());
        assert_eq!(
            near.err().unwrap().to_string(),
            format!("is not who it should be: it proves to be {found}, not {expected}")
        );
        assert_eq!(remote.err().unwrap().to_string(), "does not take this side's identity");
    });
}
