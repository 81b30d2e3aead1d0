//! The rate of a striped leg over connections of a given rate and latency, in virtual time: the sum
//! of theirs, once its window has grown.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tradewind_stripe::{Config, FIRST_CONNECTION, Frame, Stripe};
use tradewind_units::Timestamp;

/// A connection's rate, in bytes a millisecond: 48 Mbit/s.
const RATE: u64 = 6_000;
/// Bytes that a connection takes ahead of those being sent, as a socket with a low-water mark does.
const AHEAD: u64 = 256 << 10;
const MAX_WINDOW: u64 = 16 << 20;
const SENDER: usize = 0;
const READER: usize = 1;

/// One direction of a connection: frames in order, with their arrival times in ms.
#[derive(Default)]
struct Wire {
    frames: VecDeque<(Frame, u64)>,
    /// Time until which it sends what it has taken, in bytes at its rate.
    busy: u64,
}

impl Wire {
    fn has_room(&self, now_ms: u64) -> bool {
        self.busy < now_ms * RATE + AHEAD
    }

    fn put(&mut self, frame: Frame, now_ms: u64, one_way_ms: u64) {
        let bytes = match &frame {
            Frame::Data { payload, .. } => payload.len() as u64,
            _ => 20,
        };
        self.busy = self.busy.max(now_ms * RATE) + bytes;
        self.frames.push_back((frame, self.busy / RATE + one_way_ms));
    }
}

/// Two ends and the connections between them; a wire of index `i` leads to end `i`.
struct Leg {
    ends: [Stripe; 2],
    wires: Vec<[Wire; 2]>,
    one_way_ms: u64,
}

impl Leg {
    fn new(connections: u32, one_way_ms: u64) -> Self {
        let config =
            Config { chunk: 128 << 10, largest_window: MAX_WINDOW, stall: Duration::from_secs(1) };
        let mut ends = [Stripe::new(config, 0), Stripe::new(config, 0)];
        for end in &mut ends {
            (0..connections).for_each(|number| end.add(FIRST_CONNECTION + number, true));
        }
        Self { ends, wires: (0..connections).map(|_| Default::default()).collect(), one_way_ms }
    }

    /// Runs one millisecond and returns the number of bytes read in it.
    fn pass(&mut self, now_ms: u64) -> u64 {
        let now = Timestamp::ZERO + tradewind_units::Duration::from_millis(now_ms);
        for (number, wires) in (FIRST_CONNECTION..).zip(&mut self.wires) {
            for (end, wire) in self.ends.iter_mut().zip(wires) {
                while wire.frames.front().is_some_and(|(_, at)| *at <= now_ms) {
                    let (frame, _) = wire.frames.pop_front().unwrap();
                    end.handle(number, now, frame).unwrap();
                }
            }
        }
        let read = std::iter::from_fn(|| self.ends[READER].read()).map(|bytes| bytes.len() as u64);
        let read = read.sum();
        let room = self.ends[SENDER].free_capacity();
        if room > 0 {
            self.ends[SENDER].write(Bytes::from(vec![7; room]));
        }
        for (place, end) in self.ends.iter_mut().enumerate() {
            end.handle_timeout(now);
            for (number, wires) in (FIRST_CONNECTION..).zip(&mut self.wires) {
                let wire = &mut wires[1 - place];
                while wire.has_room(now_ms) {
                    let Some(frame) = end.poll_transmit(number, now) else { break };
                    wire.put(frame, now_ms, self.one_way_ms);
                }
            }
        }
        read
    }
}

#[test]
fn leg_rate_is_the_sum_of_its_connections() {
    for connections in [2, 3, 4, 8] {
        for one_way_ms in [1, 36, 115, 165] {
            let mut leg = Leg::new(connections, one_way_ms);
            let read: Vec<u64> = (1..=10_000).map(|now_ms| leg.pass(now_ms)).collect();
            let last_second: u64 = read[9_000..].iter().sum();
            let all = u64::from(connections) * RATE * 1000;
            // The window moves in quarters.
            let by_window = MAX_WINDOW * 3 / 4 * 1000 / (2 * one_way_ms);
            let expected = all.min(by_window);
            assert!(
                last_second >= expected * 9 / 10,
                "{connections} connections, {one_way_ms} ms: \
                 {last_second} of {expected} bytes a second"
            );
        }
    }
}
