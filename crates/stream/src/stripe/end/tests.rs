//! Sides of which one direction ends while they become striped legs.

use std::task::Waker;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tradewind_stripe::Frame;

use super::*;
use crate::session::tests::plain_pair;

const JOINED: u32 = 1;

fn written(frame: Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.put_head(&mut bytes);
    bytes
}

/// Returns a side that has read all of `sent` without frames, and not the end of it yet, when a
/// connection joins; and the remote ends of both.
async fn striped(sent: &[u8]) -> (End, TcpStream, TcpStream) {
    let (mut far_first, first) = plain_pair().await;
    let (far_joined, joined) = plain_pair().await;
    far_first.write_all(sent).await.unwrap();
    let nothing = Left {
        received: 0,
        given: 0,
        raw: Bytes::new(),
        finished: false,
        ended: false,
        ramp: None,
    };
    let mut end = End::new(first, None, nothing);
    while (end.received as usize) < sent.len() {
        let read = poll_fn(|cx| end.poll_read(cx, usize::MAX)).await.unwrap();
        assert!(read.is_some(), "the end comes later");
    }
    end.be_striped();
    let striping = end.striping.as_mut().unwrap();
    striping.stripe.add(JOINED, true);
    striping.joined.insert(JOINED, FramedConnection::joined(joined, &[], None));
    (end, far_first, far_joined)
}

/// Drives a side until `holds` is true.
async fn drive_until(end: &mut End, holds: impl Fn(&End) -> bool) {
    let mut cx = Context::from_waker(Waker::noop());
    while !holds(end) {
        end.drive_in(&mut cx, Timestamp::ZERO).unwrap();
        end.drive_out(&mut cx, Timestamp::ZERO).unwrap();
        tokio::task::yield_now().await;
    }
}

/// The dialling side ends its direction before a connection has joined there: this side sees the
/// join first.
#[tokio::test]
async fn end_after_join_leaves_the_other_direction() {
    let (mut end, mut far_first, mut far_joined) = striped(b"all of it").await;
    for frame in [Frame::Start(9), Frame::End(9)] {
        far_joined.write_all(&written(frame)).await.unwrap();
    }
    far_first.shutdown().await.unwrap();
    drive_until(&mut end, |end| end.ended || end.first.is_none()).await;
    assert!(end.first.is_some(), "the other direction goes on over it");
    assert_eq!(poll_fn(|cx| end.poll_read(cx, 9)).await.unwrap(), None, "the stream's end");
}

#[tokio::test]
async fn end_within_a_frame_is_a_failure() {
    let (mut end, mut far_first, mut far_joined) = striped(b"").await;
    far_joined.write_all(&written(Frame::Start(0))).await.unwrap();
    far_first.write_all(&written(Frame::Known)).await.unwrap();
    far_first.write_all(&[3, 0, 0]).await.unwrap();
    far_first.shutdown().await.unwrap();
    drive_until(&mut end, |end| end.first.is_none()).await;
}
