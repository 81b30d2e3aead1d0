//! Whole sessions of which a leg becomes striped, between a neighbour and a server that the test
//! plays.

use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tradewind_grant::JoinKey;
use tradewind_stripe::Frame;
use tradewind_stripe::frame::Ack;

use super::offer::tests::{member, peer, reply_key};
use super::{Offers, Sessions};
use crate::connection::Connection;
use crate::connection::tests::{key, pair, runtime};
use crate::counts::Outcome;
use crate::session::Session;
use crate::session::tests::{carry, plain_pair, session};

/// The number of the connection that joins.
const JOINED: u32 = 1;
/// The bytes that the neighbour has sent when it joins.
const SENT: u64 = 15;

/// A session whose stream to the neighbour has ended: the end waits, enciphered, for space at the
/// first connection.
struct Stage {
    session: Session,
    sessions: Arc<Sessions>,
    neighbour: Connection,
    server: TcpStream,
    /// Bytes that the neighbour's connection held before the session began.
    filled: usize,
}

impl Stage {
    async fn new() -> Self {
        let (neighbour, upstream) = pair(key(2).public()).await;
        let (neighbour, upstream) = (neighbour.unwrap(), upstream.unwrap());
        upstream.writable().await.unwrap();
        let mut filled = 0;
        while let Ok(written) = upstream.try_write(&[7; 1 << 16]) {
            filled += written;
        }
        let (mut server, downstream) = plain_pair().await;
        server.shutdown().await.unwrap();
        let sessions = Arc::new(Sessions::default());
        let mut session = session(upstream, downstream);
        session.offers = Offers::new(Some(sessions.offer(&reply_key(3), peer(), member())), None);
        Self { session, sessions, neighbour, server, filled }
    }
}

/// Waits until the session has seen the server's end: later data is moved after that.
async fn wait_for_end(neighbour: &Connection, server: &mut TcpStream) {
    let mut came = [0; 5];
    for _ in 0..2 {
        server.read_exact(&mut came).await.unwrap();
        neighbour.write_all(b"other").await.unwrap();
    }
    server.read_exact(&mut came).await.unwrap();
}

/// Joins the session by a connection, which `play` gets.
async fn join<P: Future<Output = ()>>(sessions: &Sessions, play: impl FnOnce(TcpStream) -> P) {
    let (joined, joining) = plain_pair().await;
    let admitted = sessions.admit(&JoinKey::of(&reply_key(3)).join(JOINED), None).ok().unwrap();
    let (handed, ()) = tokio::join!(admitted.hand_over(joining, Vec::new()), play(joined));
    handed.unwrap();
}

async fn tell(joined: &mut TcpStream, frames: &[Frame]) {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.put_head(&mut bytes));
    joined.write_all(&bytes).await.unwrap();
}

/// Reads frames until `wanted`.
async fn read_until(joined: &mut TcpStream, wanted: impl Fn(&Frame) -> bool) {
    let mut input = BytesMut::new();
    loop {
        while let Some(frame) = Frame::take(&mut input).unwrap() {
            if wanted(&frame) {
                return;
            }
        }
        assert!(joined.read_buf(&mut input).await.unwrap() > 0, "it broke off");
    }
}

const fn is_end(frame: &Frame) -> bool {
    matches!(frame, Frame::End(_))
}

/// The frame of the session's end, the only one that was sent.
const END_HAS_COME: Frame =
    Frame::Ack(Ack { connection: JOINED, frames: 1, cumulative: 1, limit: 1 << 20 });

/// A stream in both directions: data of the other one, without frames, is still to be read at the
/// first connection.
#[test]
fn blocked_end_before_join_is_the_last() {
    runtime().block_on(async {
        let Stage { session, sessions, mut neighbour, mut server, .. } = Stage::new().await;
        let play = async {
            wait_for_end(&neighbour, &mut server).await;
            let rest = async |mut joined: TcpStream| {
                let raw = vec![9; 1 << 20];
                let start = SENT + raw.len() as u64;
                tell(&mut joined, &[Frame::Start(start), Frame::Known]).await;
                read_until(&mut joined, is_end).await;
                // The first connection drains, and is writable again.
                neighbour.read_to_end(&mut Vec::new()).await.unwrap();
                neighbour.write_all(&raw).await.unwrap();
                tell(&mut joined, &[Frame::End(start), END_HAS_COME]).await;
                let mut received = Vec::new();
                server.read_to_end(&mut received).await.unwrap();
                assert_eq!(received, raw);
                drop(neighbour);
            };
            join(&sessions, rest).await;
        };
        let (outcome, ()) = tokio::join!(carry(session), play);
        assert_eq!(outcome, Outcome::Ended);
    });
}

/// A stream whose other direction had ended before: nothing else keeps the session open.
#[test]
fn blocked_end_is_sent_before_the_session_ends() {
    runtime().block_on(async {
        let Stage { session, sessions, mut neighbour, mut server, filled } = Stage::new().await;
        let play = async {
            wait_for_end(&neighbour, &mut server).await;
            neighbour.shutdown().await.unwrap();
            assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0, "its end");
            let rest = async |mut joined: TcpStream| {
                tell(&mut joined, &[Frame::Start(SENT), Frame::Known]).await;
                read_until(&mut joined, is_end).await;
                tell(&mut joined, &[END_HAS_COME, Frame::End(SENT)]).await;
                let has_all =
                    |frame: &Frame| matches!(frame, Frame::Ack(ack) if ack.cumulative > SENT);
                read_until(&mut joined, has_all).await;
                let mut received = Vec::new();
                neighbour.read_to_end(&mut received).await.unwrap();
                assert_eq!(received.len(), filled);
                drop(neighbour);
            };
            join(&sessions, rest).await;
        };
        let (outcome, ()) = tokio::join!(carry(session), play);
        assert_eq!(outcome, Outcome::Ended);
    });
}
