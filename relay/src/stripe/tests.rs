//! Whole sessions of which a leg becomes striped, between a neighbour and a server that the test plays.

use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tradewind_grant::{Destination, JoinKey};
use tradewind_stripe::Frame;
use tradewind_stripe::frame::Ack;
use tradewind_units::FlowId;

use super::offer::tests::{peer, reply_key};
use super::{Offers, Sessions};
use crate::config::{LegProfiles, Limits, Timeouts};
use crate::connection::Connection;
use crate::connection::tests::{key, pair, runtime};
use crate::counts::Outcome;
use crate::profile::Legs;
use crate::pump::Direction;
use crate::session::{Keeping, Session};
use crate::worker::{Room, Worker};

/// The number of the connection that joins.
const JOINED: u32 = 1;

async fn plain_pair() -> (TcpStream, Connection) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (near, _) = listener.accept().await.unwrap();
    (far, Connection::plain(near))
}

fn heads(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.put_head(&mut bytes));
    bytes
}

/// Reads frames until the end of the stream has come.
async fn read_to_end_frame(joined: &mut TcpStream) {
    let mut input = BytesMut::new();
    loop {
        while let Some(frame) = Frame::take(&mut input).unwrap() {
            if matches!(frame, Frame::End(_)) {
                return;
            }
        }
        assert!(joined.read_buf(&mut input).await.unwrap() > 0, "it broke off");
    }
}

/// Writes until the socket takes no more, and something waits enciphered.
async fn fill(connection: &Connection) {
    connection.writable().await.unwrap();
    while connection.try_write(&[7; 1 << 16]).is_ok() {}
}

/// Of a stream both ways at once: the end of one waits, enciphered, for room at the first connection when another
/// joins, and what came the other way without frames is still to be read there.
#[test]
fn an_end_that_waits_for_room_when_a_connection_joins_is_followed_by_nothing() {
    runtime().block_on(async {
        let (neighbour, upstream) = pair(key(2).public()).await;
        let (mut neighbour, upstream) = (neighbour.unwrap(), upstream.unwrap());
        fill(&upstream).await;
        let (mut server, downstream) = plain_pair().await;
        server.shutdown().await.unwrap();

        let (sessions, reply) = (Arc::new(Sessions::default()), reply_key(3));
        let up = (upstream, Direction::new(Vec::new()));
        let down = (downstream, Direction::new(Vec::new()));
        let to = Destination::Address("192.0.2.1:1".parse().unwrap());
        let mut session = Session::between((FlowId::new("test").unwrap(), to), up, down);
        session.offers = Offers::new(Some(sessions.offer(&reply, peer())), None);
        let limits = Limits::default();
        let worker = Worker::new(Arc::new(Room::new(&limits, limits.sessions)));
        let timeouts = Timeouts::default();
        let legs = Legs::new(&LegProfiles::default(), &timeouts, None);
        let keeping = Keeping::new(Arc::new(legs), &timeouts);

        let (mut joined, joining) = plain_pair().await;
        let play = async {
            let mut came = [0; 5];
            // What comes after the end of file is moved after that was seen.
            for _ in 0..2 {
                server.read_exact(&mut came).await.unwrap();
                neighbour.write_all(b"other").await.unwrap();
            }
            server.read_exact(&mut came).await.unwrap();
            let admitted = sessions.admit(&JoinKey::of(&reply).join(JOINED), None).ok().unwrap();
            let handing = admitted.hand_over(joining, Vec::new());
            let rest = async {
                let raw = vec![9; 1 << 20];
                let start = 15 + raw.len() as u64;
                joined.write_all(&heads(&[Frame::Start(start), Frame::Known])).await.unwrap();
                read_to_end_frame(&mut joined).await;
                // The first connection drains, and could be written to again.
                let mut all = Vec::new();
                neighbour.read_to_end(&mut all).await.unwrap();
                neighbour.write_all(&raw).await.unwrap();
                let ack = Ack { connection: JOINED, frames: 1, cumulative: 1, limit: 1 << 20 };
                joined.write_all(&heads(&[Frame::End(start), Frame::Ack(ack)])).await.unwrap();
                let mut received = Vec::new();
                server.read_to_end(&mut received).await.unwrap();
                assert_eq!(received, raw);
                drop((neighbour, joined));
            };
            let (handed, ()) = tokio::join!(handing, rest);
            handed.unwrap();
        };
        let (outcome, ()) = tokio::join!(session.carry(&worker, &keeping), play);
        assert_eq!(outcome, Outcome::Ended);
    });
}
