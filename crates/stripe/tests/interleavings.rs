//! Both ends of a striped leg, joined by connections that deliver in any interleaving, die with the
//! frames in flight, and stall: the stream arrives whole, in order, once, and within the window; or
//! not at all.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tradewind_stripe::frame::INITIAL_WINDOW;
use tradewind_stripe::{Config, FIRST_CONNECTION, Frame, Stripe, StripeError};
use tradewind_units::Timestamp;

const MAX: u64 = 2 * INITIAL_WINDOW;
const STALL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
enum Step {
    /// An end, given by number, writes so many bytes.
    Write(usize, usize),
    /// An end finishes its direction.
    Finish(usize),
    /// An end reads so many pieces.
    Read(usize, usize),
    /// An end puts so many frames on one of its connections.
    Send(usize, usize, usize),
    /// So many frames arrive at an end on one connection.
    Deliver(usize, usize, usize),
    /// A connection joins.
    Join,
    /// A connection dies with its frames in flight.
    Die(usize),
    /// A connection delivers nothing more until the end, without dying.
    Stall(usize),
    /// Time passes, in ms.
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let end = 0..2usize;
    prop_oneof![
        4 => (end.clone(), 1..60_000usize).prop_map(|(end, size)| Step::Write(end, size)),
        1 => end.clone().prop_map(Step::Finish),
        4 => (end.clone(), 1..8usize).prop_map(|(end, count)| Step::Read(end, count)),
        6 => (end.clone(), 0..8usize, 1..8usize).prop_map(|(end, at, n)| Step::Send(end, at, n)),
        6 => (end, 0..8usize, 1..8usize).prop_map(|(end, at, n)| Step::Deliver(end, at, n)),
        1 => Just(Step::Join),
        1 => (0..8usize).prop_map(Step::Die),
        1 => (0..8usize).prop_map(Step::Stall),
        2 => (1..2000u64).prop_map(Step::Pass),
    ]
}

struct Wire {
    /// The frames in flight, by the end that receives them.
    queues: [VecDeque<Frame>; 2],
    stalled: bool,
}

/// Two ends, of which end 0 has sent 100 bytes without frames and end 1 none.
struct World {
    ends: [Stripe; 2],
    wires: BTreeMap<u32, Wire>,
    written: [Vec<u8>; 2],
    read: [Vec<u8>; 2],
    now: Timestamp,
    next_number: u32,
    next_byte: u8,
}

impl World {
    fn new() -> Self {
        let config = Config { chunk: 5_000, largest_window: MAX, stall: STALL };
        let mut world = Self {
            ends: [Stripe::new(config, 100), Stripe::new(config, 0)],
            wires: BTreeMap::new(),
            written: Default::default(),
            read: Default::default(),
            now: Timestamp::from_nanos(1),
            next_number: FIRST_CONNECTION,
            next_byte: 0,
        };
        world.join();
        world.join();
        world
    }

    fn join(&mut self) {
        for end in &mut self.ends {
            end.add(self.next_number, true);
        }
        let wire = Wire { queues: Default::default(), stalled: false };
        self.wires.insert(self.next_number, wire);
        self.next_number += 1;
    }

    fn number(&self, at: usize) -> u32 {
        *self.wires.keys().nth(at % self.wires.len()).unwrap()
    }

    fn write(&mut self, end: usize, size: usize) {
        let size = size.min(self.ends[end].free_capacity());
        if self.ends[end].is_finished() {
            return;
        }
        let bytes: Vec<u8> = (0..size)
            .map(|index| {
                self.next_byte = self.next_byte.wrapping_mul(31).wrapping_add(index as u8 | 1);
                self.next_byte
            })
            .collect();
        self.written[end].extend_from_slice(&bytes);
        self.ends[end].write(Bytes::from(bytes));
    }

    fn send(&mut self, end: usize, number: u32, count: usize) -> usize {
        for sent in 0..count {
            let Some(frame) = self.ends[end].poll_transmit(number, self.now) else { return sent };
            self.wires.get_mut(&number).unwrap().queues[1 - end].push_back(frame);
        }
        count
    }

    fn deliver(&mut self, end: usize, number: u32, count: usize) -> Result<usize, StripeError> {
        for delivered in 0..count {
            let wire = self.wires.get_mut(&number).unwrap();
            if wire.stalled {
                return Ok(delivered);
            }
            let Some(frame) = wire.queues[end].pop_front() else { return Ok(delivered) };
            self.ends[end].handle(number, self.now, frame)?;
        }
        Ok(count)
    }

    fn read(&mut self, end: usize, count: usize) {
        for _ in 0..count {
            let Some(bytes) = self.ends[end].read() else { return };
            self.read[end].extend_from_slice(&bytes);
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
        for end in &mut self.ends {
            end.handle_timeout(self.now);
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Write(end, size) => self.write(end, size),
            Step::Finish(end) => self.ends[end].finish(),
            Step::Read(end, count) => self.read(end, count),
            Step::Send(end, at, count) => {
                self.send(end, self.number(at), count);
            }
            Step::Deliver(end, at, count) => {
                self.deliver(end, self.number(at), count).unwrap();
            }
            Step::Join if self.wires.len() < 8 => self.join(),
            Step::Join => {}
            Step::Die(at) if self.wires.len() > 1 => {
                let number = self.number(at);
                self.wires.remove(&number);
                self.ends.iter_mut().for_each(|end| end.remove(number));
            }
            Step::Die(_) => {}
            // A connection that neither dies nor delivers stays stalled, so another one that
            // delivers must remain.
            Step::Stall(at) => {
                let number = self.number(at);
                if number != FIRST_CONNECTION || self.wires.len() > 2 {
                    self.wires.get_mut(&number).unwrap().stalled = true;
                }
            }
            Step::Pass(ms) => self.pass(ms),
        }
        self.check();
    }

    fn check(&self) {
        for (end, other) in [(0, 1), (1, 0)] {
            let counts = self.ends[end].counts();
            assert!(counts.unread <= MAX, "{counts:?}");
            let chunks = 5_000 * (self.wires.len() as u64 + 8);
            assert!(counts.unacknowledged <= MAX + chunks, "{counts:?}");
            let whole = &self.written[other];
            assert!(whole.starts_with(&self.read[end]), "in order and once");
            let ended = self.ends[end].is_read_to_end();
            assert!(!ended || self.read[end].len() == whole.len(), "no early end");
        }
    }

    /// Delivers and sends everything, with a fresh connection at hand.
    fn settle(&mut self) {
        self.join();
        self.ends.iter_mut().for_each(Stripe::finish);
        for _ in 0..10_000 {
            let mut moved = 0;
            for number in self.wires.keys().copied().collect::<Vec<_>>() {
                for end in 0..2 {
                    moved += self.send(end, number, 3);
                    moved += self.deliver(end, number, 3).unwrap();
                    self.read(end, 2);
                }
            }
            if self.ends.iter().all(Stripe::is_over) {
                return;
            }
            if moved == 0 {
                let due = self.ends.iter().filter_map(Stripe::poll_timeout).min();
                let due = due.expect("something is still to happen");
                self.now = self.now.max(due);
                self.pass(0);
            }
        }
        panic!("never over");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn stream_arrives_whole_while_one_connection_is_left(
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.settle();
        world.check();
        prop_assert_eq!(&world.read[1], &world.written[0]);
        prop_assert_eq!(&world.read[0], &world.written[1]);
    }

    #[test]
    fn hostile_frames_hold_at_most_the_window(
        frames in prop::collection::vec((0u32..3, any_frame()), 0..200),
    ) {
        let config = Config { chunk: 1000, largest_window: MAX, stall: STALL };
        let mut stripe = Stripe::new(config, 5);
        stripe.add(FIRST_CONNECTION, true);
        stripe.add(1, true);
        stripe.write(Bytes::from_static(&[1; 3000]));
        for (connection, frame) in frames {
            while stripe.poll_transmit(1, Timestamp::ZERO).is_some() {}
            let refused = stripe.handle(connection, Timestamp::ZERO, frame);
            prop_assert!(stripe.counts().unread <= MAX);
            if refused.is_err() {
                break;
            }
            while stripe.read().is_some() {}
        }
    }
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let small = 0..3000u64;
    prop_oneof![
        Just(Frame::Start(7)),
        Just(Frame::Known),
        (small.clone(), 1..300usize)
            .prop_map(|(offset, size)| Frame::Data { offset, payload: vec![9; size].into() }),
        small.clone().prop_map(Frame::End),
        small.clone().prop_map(Frame::Full),
        (0..3u32, 0..5u64, small.clone(), small).prop_map(
            |(connection, frames, cumulative, limit)| {
                Frame::Ack(tradewind_stripe::Ack { connection, frames, cumulative, limit })
            }
        ),
    ]
}

#[test]
fn stream_survives_a_stalled_connection() {
    let mut world = World::new();
    world.join();
    for _ in 0..3 {
        for (number, end) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
            world.send(end, number, 10);
            world.deliver(1 - end, number, 10).unwrap();
        }
    }
    world.write(0, 10_000);
    assert_eq!(world.send(0, 1, 1), 1);
    world.wires.get_mut(&1).unwrap().stalled = true;
    world.send(0, 2, 10);
    world.deliver(1, 2, 10).unwrap();
    world.read(1, 10);
    assert!(world.read[1].is_empty(), "the first chunk is missing");
    world.send(1, 2, 10);
    world.deliver(0, 2, 10).unwrap();
    assert_eq!(world.ends[1].counts().reordering, 5_000);
    world.pass(1000);
    assert_eq!(world.ends[0].healthy(), 2);
    world.send(0, 2, 10);
    world.deliver(1, 2, 10).unwrap();
    world.read(1, 10);
    assert_eq!(world.read[1].len(), 10_000);
    assert_eq!(world.ends[0].counts().resent, 5_000);
    assert_eq!(world.send(0, 1, 10), 0, "it gets nothing more");
}
