//! Whole sessions between a source and a destination that the test plays.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tradewind_net::tcp::SocketOptions;

use super::*;
use crate::connection::tests::runtime;
use crate::process::worker::SharedLimits;
use tradewind_config::{LegProfiles, Limits, Timeouts};

/// Returns the remote end of a connection that is not encrypted, and the session's end.
pub(crate) async fn plain_pair() -> (TcpStream, Connection) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let remote = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (near, _) = listener.accept().await.unwrap();
    (remote, Connection::plain(near))
}

/// Returns a session between two connections.
pub(crate) fn session(upstream: Connection, downstream: Connection) -> Session {
    let to = Destination::Address("192.0.2.1:1".parse().unwrap());
    let ends = (FlowId::new("test").unwrap(), to);
    let direction = || Direction::new(Vec::new());
    Session::between(ends, (upstream, direction()), (downstream, direction()))
}

/// Carries a session as a relay with default settings does.
pub(crate) async fn carry(session: Session) -> Outcome {
    let (limits, timeouts) = (Limits::default(), Timeouts::default());
    let limits = SharedLimits::new(&limits, limits.sessions, None);
    let worker = Worker::new(Arc::new(limits));
    let legs = Legs::new(&LegProfiles::default(), &timeouts, None);
    let session_settings =
        SessionSettings { timeouts: LiveTimeouts::new(&timeouts), legs: Arc::new(legs) };
    Box::new(session).carry(&worker, &session_settings).await
}

/// Both directions are blocked, and the download then drains; that registers the upload's socket
/// anew, which must still report when there is space.
#[test]
fn blocked_direction_resumes_after_the_other_drains() {
    const BYTES: usize = 8 << 20;
    runtime().block_on(async {
        let (source, upstream) = plain_pair().await;
        let (destination, downstream) = plain_pair().await;
        let small = Some(tradewind_units::Bytes::new(1 << 16));
        let small =
            SocketOptions { send_buffer: small, receive_buffer: small, ..SocketOptions::default() };
        for remote in [&source, &destination] {
            small.apply(remote).unwrap();
        }
        for near in [&upstream, &downstream] {
            small.apply(near).unwrap();
        }
        let (mut answers, mut asks) = source.into_split();
        let (mut comes, mut goes) = destination.into_split();
        let (download, upload) = (vec![1; BYTES], vec![2; BYTES]);
        let play = async {
            let write = async {
                let (asked, went) =
                    tokio::join!(asks.write_all(&upload), goes.write_all(&download));
                asked.and(went).unwrap();
            };
            let read = async {
                // Long enough for both to fill the buffers; if it is not, the test only shows less.
                sleep(Duration::from_millis(200)).await;
                let mut all = vec![0; BYTES];
                answers.read_exact(&mut all).await.unwrap();
                sleep(Duration::from_millis(50)).await;
                // Before the session settles, which polls its sockets as well.
                let came = timeout(Duration::from_secs(3), comes.read_exact(&mut all)).await;
                came.expect("it stands still").unwrap();
            };
            tokio::join!(write, read);
            drop((asks, goes));
        };
        // A task of its own, which only its own sockets wake.
        let carrying = tokio::spawn(carry(session(upstream, downstream)));
        play.await;
        assert_eq!(carrying.await.unwrap(), Outcome::Ended);
    });
}

/// There may be thousands of idle sessions.
#[test]
fn idle_session_is_small() {
    runtime().block_on(async {
        let (_source, upstream) = plain_pair().await;
        let (_destination, downstream) = plain_pair().await;
        let (limits, timeouts) = (Limits::default(), Timeouts::default());
        let limits = SharedLimits::new(&limits, limits.sessions, None);
        let worker = Worker::new(Arc::new(limits));
        let legs = Legs::new(&LegProfiles::default(), &timeouts, None);
        let session_settings =
            SessionSettings { timeouts: LiveTimeouts::new(&timeouts), legs: Arc::new(legs) };
        let carry = Box::new(session(upstream, downstream)).carry(&worker, &session_settings);
        assert!(size_of::<Session>() + size_of_val(&carry) <= 816);
    });
}
