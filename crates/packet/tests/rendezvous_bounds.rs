//! The rendezvous at its bounds: an endpoint that was offline for long catches up, and no
//! acknowledged message is lost to make room.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod meeting;

use std::ops::Range;

use meeting::*;
use tradewind_packet::message::{Acknowledgement, Collect, Deposit};
use tradewind_packet::rendezvous::{DepositCounts, Depositor, DepositorConfig, MessageStore};
use tradewind_units::{Bytes, Duration, Timestamp};

const QUIET: Legs = Legs { lost: 0, doubled: 0, jitter_ms: 0 };

/// Returns the first request of a receiver that has nothing.
fn first_question(credit: u16) -> Collect {
    Collect { epoch: 0, ask: 1, credit, seen: Acknowledgement::NOTHING }
}

/// Returns a sender that writes every 20 ms, with a round trip of 60 ms to its relay, and no
/// receiver online yet.
fn steady_sender(config: DepositorConfig) -> World {
    let mut world = World::new(QUIET, 3);
    world.depositor = Depositor::new(identity(4).public(), config, 1);
    (world.leg_ms, world.receiver_is_online) = (30, false);
    world
}

fn write_every_20_ms(world: &mut World, numbers: Range<u64>) {
    for number in numbers {
        world.write(number);
        (0..4).for_each(|_| world.step());
    }
}

#[test]
fn long_offline_sender_catches_up() {
    let config = DepositorConfig { keep: Duration::from_secs(60), bytes: Bytes::new(5_000_000) };
    let mut world = steady_sender(config);
    write_every_20_ms(&mut world, 0..100);
    // Nothing gets through for 72 s.
    world.longest = 0;
    write_every_20_ms(&mut world, 100..3700);
    let DepositCounts { deposited, expired, .. } = world.depositor.counts();
    assert!((90..=100).contains(&deposited), "{deposited}");
    assert!((560..=610).contains(&expired), "{expired}");
    // As the relay is back, and its sender goes on.
    world.longest = usize::MAX;
    write_every_20_ms(&mut world, 3700..4100);
    let DepositCounts { deposited, expired: late, resent } = world.depositor.counts();
    assert!(deposited + late > 4090, "{deposited} of 4100");
    assert!(late < expired + 300, "{late}, {expired} before");
    assert!(resent < 200, "{resent}");
    world.receiver_is_online = true;
    assert!(world.until(Duration::from_secs(5), |world| world.got.last() == Some(&4099)));
    assert_eq!(world.message_store.take_tally().evicted, 0);
    let first = world.got.iter().position(|number| *number >= 100).unwrap();
    let (_, after) = world.got.split_at(first);
    // Messages that waited for more than a minute in all were not collected.
    assert!(after[0] < 1200, "{}", after[0]);
    assert_eq!(after, (after[0]..4100).collect::<Vec<_>>());
}

#[test]
fn oversized_backlog_catches_up() {
    let config = DepositorConfig { keep: Duration::from_secs(3600), bytes: Bytes::new(100_000) };
    let mut world = steady_sender(config);
    write_every_20_ms(&mut world, 0..100);
    world.longest = 0;
    write_every_20_ms(&mut world, 100..1700);
    let DepositCounts { deposited, expired: given_up, .. } = world.depositor.counts();
    assert!((600..1200).contains(&given_up), "{given_up}");
    world.longest = usize::MAX;
    write_every_20_ms(&mut world, 1700..2000);
    let DepositCounts { deposited: after, expired: later, resent } = world.depositor.counts();
    assert!(after + later > 1990 && after > deposited + 300, "{after}, {later}");
    assert!(resent < 200, "{resent}");
    world.receiver_is_online = true;
    assert!(world.until(Duration::from_secs(5), |world| world.got.last() == Some(&1999)));
    // All messages that the relay has acknowledged, in order, each once.
    let after = world.depositor.counts().deposited;
    assert_eq!((world.got.len() as u64, world.message_store.take_tally().evicted), (after, 0));
    assert!(world.got.is_sorted_by(|before, after| before < after));
}

#[test]
fn lane_with_messages_is_not_closed() {
    let mut message_store = MessageStore::new(roomy(), 1);
    let (from, to) = (identity(1).public(), identity(4).public());
    let begin = |millis: u64, message_store: &mut MessageStore, stream: u64| {
        let stored_message = &[2, stream as u8][..];
        let deposit = Deposit { stream, begins: true, number: 0, keep_s: 900, to, stored_message };
        message_store.deposit(Timestamp::from_nanos(millis * 1_000_000), from, &deposit)
    };
    for stream in 0..64 {
        assert!(begin(stream, &mut message_store, stream).unwrap().is_known);
    }
    assert_eq!(begin(100, &mut message_store, 64), None);
    let mut streams = Vec::new();
    message_store.collect(Timestamp::ZERO, to, &first_question(64), |stored_message| {
        streams.push(u64::from(stored_message.stored_message[1]))
    });
    assert_eq!(streams, (0..64).collect::<Vec<_>>());
    // The first ten have come: there is space for as many.
    let mut question = Collect { epoch: 1, ..first_question(0) };
    question.seen.next = 10;
    message_store.collect(Timestamp::ZERO, to, &question, |_| {});
    for stream in 64..74 {
        assert!(begin(200, &mut message_store, stream).is_some());
    }
    assert_eq!(begin(300, &mut message_store, 74), None);
    assert_eq!(message_store.take_tally().evicted, 0);
}

#[test]
fn repeated_question_is_rate_limited() {
    let mut message_store = MessageStore::new(roomy(), 1);
    let (from, to) = (identity(1).public(), identity(4).public());
    for number in 0..2000 {
        let (stream, begins, stored_message) = (number % 10, number < 10, &[2; 1000]);
        let deposit =
            Deposit { stream, begins, number: number / 10, keep_s: 900, to, stored_message };
        message_store.deposit(Timestamp::ZERO, from, &deposit).unwrap();
    }
    let (mut given, mut answers) = (0, 0);
    for millis in 0..10_000 {
        let now = Timestamp::from_nanos(millis * 1_000_000);
        for _ in 0..10 {
            let remaining = message_store.collect(now, to, &first_question(64), |_| given += 1);
            answers += u32::from(remaining.is_some());
        }
    }
    // 64 are free; a burst and ten seconds' worth of requests and stored messages.
    assert!((10_000..11_100).contains(&(given + answers)), "{given} and {answers}");
    // A receiver that acknowledges is given all the others at once.
    let (mut question, mut positions) = (Collect { epoch: 1, ..first_question(64) }, Vec::new());
    let now = Timestamp::from_nanos(11_000_000_000);
    for _ in 0..32 {
        let remaining = message_store
            .collect(now, to, &question, |stored_message| positions.push(stored_message.position));
        assert!(remaining.is_some());
        question.seen.next = positions.last().unwrap() + 1;
    }
    assert_eq!(positions, (0..2000).collect::<Vec<_>>());
}
