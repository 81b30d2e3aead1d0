//! Properties of any bytes on a striped leg: shared by the fuzz target and by the replay of its
//! corpus.

#![allow(dead_code, reason = "the fuzz target takes one of these")]
#![allow(clippy::unwrap_used, reason = "a panic is what a fuzzer looks for")]

use bytes::{Bytes, BytesMut};
use tradewind_stripe::frame::{Frame, FrameError, INITIAL_WINDOW, MAX_PAYLOAD};
use tradewind_stripe::{Config, Stripe};
use tradewind_units::{Duration, Timestamp};

const MAX: u64 = 2 * INITIAL_WINDOW;
const CONNECTIONS: u32 = 3;

/// Checks that no bytes make the parser panic, that a frame has one encoding, and that no peer
/// makes an end hold more than its window.
pub(crate) fn stripe_frames(data: &[u8]) {
    let (frames, left, error) = parse(data, data.len().max(1));
    let mut again = Vec::new();
    for frame in &frames {
        frame.put_head(&mut again);
        again.extend_from_slice(&frame.clone().into_payload());
    }
    assert_eq!(again, data[..data.len() - left], "a frame has one form");
    let step = usize::from(data.first().copied().unwrap_or(1)).max(1);
    assert_eq!(parse(data, step), (frames.clone(), left, error), "however the bytes come");
    attack(frames);
}

/// Parses `data`, fed in pieces of `step` bytes; returns the frames, the number of bytes left, and
/// the error that ended it.
fn parse(data: &[u8], step: usize) -> (Vec<Frame>, usize, Option<FrameError>) {
    let (mut buffer, mut frames) = (BytesMut::new(), Vec::new());
    let mut came = 0;
    for piece in data.chunks(step) {
        came += piece.len();
        buffer.extend_from_slice(piece);
        loop {
            match Frame::take(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, buffer.len() + data.len() - came, Some(error)),
            }
        }
    }
    assert!(buffer.len() < MAX_PAYLOAD + 13, "what waits is one frame at most");
    (frames, buffer.len(), None)
}

/// Feeds an end these frames, on one connection after the other, while it sends, reads and times
/// out.
fn attack(frames: Vec<Frame>) {
    let stall = Duration::from_secs(1);
    let config = Config { chunk: 1000, largest_window: MAX, stall };
    let mut end = Stripe::new(config, 7);
    (0..CONNECTIONS).for_each(|number| end.add(number, true));
    let mut now = Timestamp::from_nanos(1);
    for (index, frame) in frames.into_iter().enumerate() {
        let number = index as u32 % CONNECTIONS;
        let room = end.free_capacity();
        if room > 0 && !end.is_finished() {
            end.write(Bytes::from(vec![7; room.min(1500)]));
        }
        if end.handle(number, now, frame).is_err() {
            return;
        }
        for number in 0..CONNECTIONS {
            let _sent = end.poll_transmit(number, now);
        }
        if index % 3 == 2 {
            let _read = end.read();
        }
        if index % 7 == 6 {
            now = now + stall;
            end.handle_timeout(now);
        }
        let counts = end.counts();
        assert!(counts.unread <= MAX, "{counts:?}");
        assert!(counts.reordering <= counts.unread, "{counts:?}");
    }
    end.finish();
    (0..CONNECTIONS).for_each(|number| end.remove(number));
    assert!(end.is_cut());
}
