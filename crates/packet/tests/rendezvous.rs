//! The rendezvous: deposited messages are delivered once and in order, whatever access legs lose,
//! and whenever sender and receiver are online.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod meeting;

use std::collections::BTreeMap;

use meeting::*;
use proptest::prelude::*;
use tradewind_packet::message::{Acknowledgement, Collect, Deposit, Deposited, Remaining};
use tradewind_packet::rendezvous::{
    Collector, Depositor, DepositorConfig, MessageStore, MessageStoreConfig, Opened, Opener,
    Refused,
};
use tradewind_units::{Bytes, Duration, Timestamp};

const TEST_TIMEOUT: Duration = Duration::from_secs(600);
const QUIET: Legs = Legs { lost: 0, doubled: 0, jitter_ms: 0 };

fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis * 1_000_000)
}

/// Returns the first request of a receiver that has nothing.
fn first_question(credit: u16) -> Collect {
    Collect { epoch: 0, ask: 1, credit, seen: Acknowledgement::NOTHING }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn lossy_legs_deliver_once_in_order(
        seed: u64, lost in 0..35_u64, doubled in 0..20_u64, jitter_ms in 0..60_u64,
            packets in 1..400_u64, is_live: bool,
    ) {
        let mut world = World::new(Legs { lost, doubled, jitter_ms }, seed);
        world.receiver_is_online = is_live;
        for number in 0..packets {
            world.write(number);
            if number % 7 == 0 {
                world.step();
            }
        }
        prop_assert!(world.until(TEST_TIMEOUT, |world| world.depositor.is_empty()));
        // The sender goes offline for good; the receiver comes online.
        (world.sender_is_online, world.receiver_is_online) = (false, true);
        prop_assert!(world.until(TEST_TIMEOUT, |world| world.got.len() as u64 == packets), "{:?}",
            world.got.len());
        let _acknowledged = world.until(Duration::from_secs(60), |_| false);
        prop_assert_eq!(&world.got, &(0..packets).collect::<Vec<_>>());
        prop_assert_eq!(world.depositor.counts().deposited, packets);
        let tally = world.message_store.take_tally();
        prop_assert_eq!((tally.deposited, tally.collected, tally.expired, tally.evicted),
            (packets, packets, 0, 0));
    }

    #[test]
    fn restarted_receiver_gets_unacknowledged(
        seed: u64, lost in 0..30_u64, packets in 50..300_u64, before in 1..40_usize,
    ) {
        let mut world = World::new(Legs { lost, doubled: 5, jitter_ms: 20 }, seed);
        world.receiver_is_online = false;
        (0..packets).for_each(|number| world.write(number));
        prop_assert!(world.until(TEST_TIMEOUT, |world| world.depositor.is_empty()));
        world.receiver_is_online = true;
        prop_assert!(world.until(TEST_TIMEOUT, |world| world.got.len() >= before));
        // The stored header was acknowledged, and is needed again.
        world.restart_receiver();
        prop_assert!(world.until(TEST_TIMEOUT, |world| world.got.last() == Some(&(packets - 1))));
        let mut got = world.got.clone();
        got.sort_unstable();
        got.dedup();
        prop_assert_eq!(got, (0..packets).collect::<Vec<_>>());
    }

    #[test]
    fn restarted_relay_gets_unacknowledged(
        seed: u64, lost in 0..30_u64, first in 1..200_u64, second in 1..200_u64,
    ) {
        let mut world = World::new(Legs { lost, doubled: 5, jitter_ms: 20 }, seed);
        world.receiver_is_online = false;
        (0..first).for_each(|number| world.write(number));
        let _some = world.until(Duration::from_millis(60), |_| false);
        let acknowledged = world.depositor.counts().deposited;
        world.message_store = MessageStore::new(roomy(), 78);
        (first..first + second).for_each(|number| world.write(number));
        prop_assert!(world.until(TEST_TIMEOUT, |world| world.depositor.is_empty()));
        (world.sender_is_online, world.receiver_is_online) = (false, true);
        prop_assert!(world.until(TEST_TIMEOUT,
            |world| world.got.last() == Some(&(first + second - 1))));
        // The messages that the old relay had acknowledged are lost with it, those acknowledged in
        // flight included, and no others.
        let missing = world.got[0];
        prop_assert!((acknowledged..=first).contains(&missing), "{} of {}", missing, acknowledged);
        prop_assert_eq!(&world.got, &(missing..first + second).collect::<Vec<_>>());
    }
}

#[test]
fn receiver_follows_restarted_relay() {
    let mut world = World::new(QUIET, 3);
    (0..100).for_each(|number| world.write(number));
    assert!(world.until(TEST_TIMEOUT, |world| world.got.len() == 100));
    world.message_store = MessageStore::new(roomy(), 78);
    (100..200).for_each(|number| world.write(number));
    assert!(world.until(TEST_TIMEOUT, |world| world.got.len() == 200));
    assert_eq!(world.got, (0..200).collect::<Vec<_>>());
}

#[test]
fn idle_collector_asks_rarely() {
    let mut world = World::new(QUIET, 3);
    world.write(0);
    assert!(world.until(TEST_TIMEOUT, |world| world.got.len() == 1));
    let _answered = world.until(Duration::from_secs(2), |_| false);
    let before = world.asked;
    let _quiet = world.until(Duration::from_secs(20), |_| false);
    assert!((19..=21).contains(&(world.asked - before)), "{}", world.asked - before);
    let counts = world.depositor.counts();
    assert_eq!((counts.deposited, counts.expired, counts.resent), (1, 0, 0));
}

#[test]
fn sender_without_relay_retries() {
    let config = DepositorConfig { keep: Duration::from_secs(60), bytes: Bytes::new(5_000_000) };
    let mut world = World::new(QUIET, 3);
    world.depositor = Depositor::new(identity(4).public(), config, 1);
    let mut tries = 0;
    for second in 0..100 {
        world.at = at(second * 1000);
        world.write(second);
        while world.depositor.poll_deposit(world.at).is_some() {
            tries += 1;
        }
    }
    assert!((10..300).contains(&tries), "{tries} tries in 100 s");
    let expired = world.depositor.counts().expired;
    // A message that was sent once stays: its number is waited for.
    assert!((25..=41).contains(&expired), "{expired}");
    world.depositor.relay_is_back();
    assert!(world.until(Duration::from_secs(2), |world| world.depositor.is_empty()));
    assert!(world.until(Duration::from_secs(3), |world| world.got.last() == Some(&99)));
    // Some more expired before they were collected; no expired message is delivered.
    assert!((39..45).contains(&world.got[0]), "{:?}", world.got);
    assert_eq!(world.got, (world.got[0]..100).collect::<Vec<_>>());
}

#[test]
fn waiting_messages_are_bounded_by_bytes() {
    let config = DepositorConfig { keep: Duration::from_secs(60), bytes: Bytes::new(20_000) };
    let mut world = World::new(QUIET, 3);
    world.depositor = Depositor::new(identity(4).public(), config, 1);
    (0..1000).for_each(|number| world.write(number));
    let given_up = world.depositor.counts().expired;
    assert!((800..950).contains(&given_up), "{given_up}");
    assert!(world.until(Duration::from_secs(5), |world| world.got.last() == Some(&999)));
    assert_eq!(world.got, (given_up..1000).collect::<Vec<_>>());
}

/// A sender with any number of deposits of a kilobyte, which go to `to` in a stream of their own.
struct BulkSender {
    from: u8,
    to: u8,
    next: u64,
}

impl BulkSender {
    fn deposit_many(
        &mut self,
        now: Timestamp,
        message_store: &mut MessageStore,
        count: u64,
    ) -> Option<Deposited> {
        let mut last = None;
        for number in self.next..self.next + count {
            let to = identity(self.to).public();
            let stored_message = [&[2], &number.to_be_bytes()[..], &[self.from; 895]].concat();
            let (stream, begins, keep_s) = (1, number == 0, 100);
            let deposit =
                Deposit { stream, begins, number, keep_s, to, stored_message: &stored_message };
            last = message_store.deposit(now, identity(self.from).public(), &deposit);
        }
        self.next += count;
        last
    }
}

/// Returns the messages that wait for an endpoint: sender and number, in order. Nothing is
/// acknowledged, except that messages came before others.
fn waiting(message_store: &mut MessageStore, owner: u8) -> (Vec<(u8, u64)>, Remaining) {
    let mut stored_messages: BTreeMap<u64, (u8, u64)> = BTreeMap::new();
    loop {
        let mut question = Collect { epoch: 1, ..first_question(64) };
        question.seen = Acknowledgement::of(0, stored_messages.keys().copied());
        let before = stored_messages.len();
        let remaining =
            message_store.collect(at(0), identity(owner).public(), &question, |stored_message| {
                let number =
                    u64::from_be_bytes(stored_message.stored_message[1..9].try_into().unwrap());
                stored_messages.insert(
                    stored_message.position,
                    (*stored_message.stored_message.last().unwrap(), number),
                );
            });
        if stored_messages.len() == before {
            return (stored_messages.into_values().collect(), remaining.unwrap());
        }
    }
}

#[test]
fn sender_share_evicts_own_messages() {
    let config = MessageStoreConfig {
        bytes: Bytes::new(200_000),
        per_sender: Bytes::new(100_000),
        keep: Duration::from_secs(3600),
    };
    let mut message_store = MessageStore::new(config, 1);
    let mut small = BulkSender { from: 1, to: 4, next: 0 };
    let mut great = BulkSender { from: 2, to: 4, next: 0 };
    small.deposit_many(at(0), &mut message_store, 10).unwrap();
    great.deposit_many(at(1), &mut message_store, 150).unwrap();
    let (stored_messages, _) = waiting(&mut message_store, 4);
    let of = |whose: u8| stored_messages.iter().filter(move |(from, _)| *from == whose);
    assert_eq!(of(1).count(), 10);
    assert!((90..100).contains(&of(2).count()), "{}", of(2).count());
    assert_eq!(of(2).next_back(), Some(&(2, 149)));
    assert_eq!(message_store.take_tally().evicted, 150 - of(2).count() as u64);
    // All together exceed the bound: the sender with most gives way.
    let mut another = BulkSender { from: 3, to: 5, next: 0 };
    another.deposit_many(at(2), &mut message_store, 100).unwrap();
    assert!(message_store.cost() <= 200_000);
    let (after, _) = waiting(&mut message_store, 4);
    assert_eq!(after.iter().filter(|(from, _)| *from == 1).count(), 10);
    assert!(waiting(&mut message_store, 5).0.len() > 80);
    // A message longer than a sender's bound is not accepted at all.
    let (to, stored_message) = (identity(4).public(), vec![2; 9000]);
    let deposit = Deposit {
        stream: 9,
        begins: true,
        number: 0,
        keep_s: 9,
        to,
        stored_message: &stored_message,
    };
    let tiny = MessageStoreConfig { per_sender: Bytes::new(9_000), ..config };
    assert_eq!(MessageStore::new(tiny, 1).deposit(at(0), identity(1).public(), &deposit), None);
}

proptest! {
    #[test]
    fn store_bounds_and_tally_hold(
        steps in prop::collection::vec((0..5_u8, 1..4_u8, 0..3_u64, 0..300_u64, 1..900_usize),
            1..400),
    ) {
        let (bytes, per_sender) = (Bytes::new(40_000), Bytes::new(20_000));
        let config = MessageStoreConfig { bytes, per_sender, keep: Duration::from_secs(20) };
        let (mut message_store, mut millis) = (MessageStore::new(config, 1), 0);
        let (mut next, mut seen) = (BTreeMap::new(), [0; 2]);
        let mut fetched = 0;
        for (kind, from, stream, jump, length) in steps {
            match kind {
                0..=2 => {
                    let number: &mut u64 = next.entry((from, stream)).or_default();
                    // Some are missing, come twice, or begin a known stream.
                    let first = *number;
                    *number += u64::from(kind != 0);
                    let number = if kind == 0 { first + jump } else { first };
                    let receiver = (stream % 2) as u8;
                    let (to, stored_message) = (identity(10 + receiver).public(), vec![2; length]);
                    let begins = jump % 3 > 0;
                    let deposit = Deposit { stream, begins, number, keep_s: 15, to,
                        stored_message: &stored_message };
                    let _answer = message_store.deposit(at(millis), identity(from).public(),
                        &deposit);
                }
                3 => {
                    let receiver = (stream % 2) as usize;
                    let mut question = Collect { epoch: 1, ..first_question(from.into()) };
                    question.seen.next = seen[receiver];
                    let owner = identity(10 + receiver as u8).public();
                    let remaining = message_store.collect(at(millis), owner, &question,
                        |stored_message| {
                        assert!(stored_message.since <= stored_message.position
                            && stored_message.position >= seen[receiver]);
                        seen[receiver] = stored_message.position + 1;
                        fetched += 1;
                    });
                    prop_assert!(remaining.is_none_or(|remaining| remaining.ask == 1));
                }
                _ => {
                    millis += jump * 100;
                    message_store.handle_timeout(at(millis));
                }
            }
            prop_assert!(message_store.cost() <= 40_000, "{}", message_store.cost());
        }
        millis += 1_000_000;
        message_store.handle_timeout(at(millis));
        prop_assert_eq!(message_store.cost(), 0);
        let tally = message_store.take_tally();
        prop_assert_eq!(tally.deposited, tally.collected + tally.expired + tally.evicted);
        prop_assert!(tally.collected <= fetched);
    }
}

#[test]
fn expired_messages_are_counted() {
    let mut message_store =
        MessageStore::new(MessageStoreConfig { keep: Duration::from_secs(50), ..roomy() }, 1);
    BulkSender { from: 1, to: 4, next: 0 }.deposit_many(at(0), &mut message_store, 5).unwrap();
    message_store.handle_timeout(at(49_000));
    assert_eq!(waiting(&mut message_store, 4).0.len(), 5);
    message_store.handle_timeout(at(50_000));
    assert_eq!(waiting(&mut message_store, 4).0.len(), 0);
    assert_eq!(message_store.take_tally().expired, 5);
    // Nothing is left of a sender that is silent.
    message_store.handle_timeout(at(300_000));
    assert_eq!(message_store.cost(), 0);
}

#[test]
fn mailbox_belongs_to_owner_until_acknowledged() {
    let mut message_store = MessageStore::new(roomy(), 1);
    BulkSender { from: 1, to: 4, next: 0 }.deposit_many(at(0), &mut message_store, 5).unwrap();
    let outsider = waiting(&mut message_store, 5);
    assert_eq!((outsider.0.len(), outsider.1.left), (0, 0));
    assert_eq!(waiting(&mut message_store, 4).0.len(), 5);
    assert_eq!(waiting(&mut message_store, 4).0.len(), 5);
    let mut collect = Collect { epoch: 1, ..first_question(2) };
    collect.seen.next = 2;
    let mut positions = Vec::new();
    let remaining =
        message_store.collect(at(0), identity(4).public(), &collect, |stored_message| {
            positions.push(stored_message.position)
        });
    assert_eq!((positions, remaining.unwrap().left), (vec![2, 3], 1));
    // A receiver with positions of another epoch is given everything.
    let mut foreign = Collect { epoch: 2, ..collect };
    foreign.seen.next = 4;
    let mut count = 0;
    message_store.collect(at(0), identity(4).public(), &foreign, |_| count += 1);
    assert_eq!((count, message_store.take_tally().collected), (2, 2));
}

#[test]
fn unknown_stream_restarts() {
    let mut message_store = MessageStore::new(roomy(), 1);
    let mut late = BulkSender { from: 1, to: 4, next: 7 };
    let deposited = late.deposit_many(at(0), &mut message_store, 1).unwrap();
    assert!(!deposited.is_known);
    assert_eq!((waiting(&mut message_store, 4).0.len(), message_store.cost()), (0, 0));
}

#[test]
fn held_packets_follow_expired_one() {
    let (mut message_store, mut collector) = (MessageStore::new(roomy(), 1), Collector::default());
    let owner = identity(4).public();
    for (number, keep_s) in (0..4).zip([5, 50, 50, 50]) {
        let (stream, begins, to, stored_message) = (1, true, owner, &[2, number as u8][..]);
        let deposit = Deposit { stream, begins, number, keep_s, to, stored_message };
        message_store.deposit(at(0), identity(1).public(), &deposit).unwrap();
    }
    let mut round = |now: Timestamp, lost: Option<u64>, message_store: &mut MessageStore| {
        let question = collector.poll_collect(now).unwrap();
        let remaining = message_store.collect(now, owner, &question, |stored_message| {
            if Some(stored_message.position) != lost {
                collector.handle_stored_message(now, &stored_message);
            }
        });
        collector.handle_remaining(now, &remaining.unwrap());
        std::iter::from_fn(|| collector.poll_stored_message())
            .map(|stored_message| stored_message[1])
            .collect::<Vec<_>>()
    };
    assert_eq!(round(at(0), Some(0), &mut message_store), Vec::<u8>::new());
    message_store.handle_timeout(at(6000));
    assert_eq!(round(at(6000), None, &mut message_store), [1, 2, 3]);
}

#[test]
fn relay_that_lost_messages_gets_new_stream() {
    let [mut first, mut second] = [1, 2].map(|epoch| MessageStore::new(roomy(), epoch));
    let (sender, owner) = (identity(1).public(), identity(4).public());
    let mut depositor = Depositor::new(owner, patient(), 1);
    (0..10).for_each(|number| depositor.push(at(0), vec![2, number]));
    let mut answers = Vec::new();
    while let Some(deposit) = depositor.poll_deposit(at(0)) {
        if deposit.number < 5 {
            answers.extend(first.deposit(at(0), sender, &deposit));
        }
    }
    // No answer of the first relay has arrived when the second one is asked.
    while let Some(deposit) = depositor.poll_deposit(at(1000)) {
        if deposit.number >= 5 {
            second.deposit(at(1000), sender, &deposit).unwrap();
        }
    }
    depositor.handle_deposited(at(1010), &answers[4]);
    for step in 1..4000 {
        let now = at(1010 + 5 * step);
        let mut answers = Vec::new();
        while let Some(deposit) = depositor.poll_deposit(now) {
            answers.extend(second.deposit(now, sender, &deposit));
        }
        answers.iter().for_each(|deposited| depositor.handle_deposited(now, deposited));
    }
    assert!(depositor.is_empty());
    let numbers: Vec<u8> = (5..10).collect();
    let mut got = Vec::new();
    second.collect(at(0), owner, &first_question(64), |stored_message| {
        got.push(stored_message.stored_message[1])
    });
    assert_eq!(got, numbers);
}

#[test]
fn oversized_packet_does_not_block_others() {
    // In flight to the relay, while others come now and then.
    let mut world = World::new(QUIET, 3);
    world.longest = 500;
    world.write_long();
    for number in 1..60 {
        world.write(number);
        world.until(Duration::from_millis(200), |_| false);
    }
    assert!(world.until(Duration::from_secs(10), |world| world.got.last() == Some(&59)));
    assert_eq!(world.got, (1..60).collect::<Vec<_>>());
    assert_eq!(world.depositor.counts().expired, 1);
    // In flight from it.
    let mut world = World::new(QUIET, 3);
    world.receiver_is_online = false;
    world.write(1);
    world.write_long();
    (2..60).for_each(|number| world.write(number));
    assert!(world.until(TEST_TIMEOUT, |world| world.depositor.is_empty()));
    (world.receiver_is_online, world.longest) = (true, 500);
    assert!(world.until(Duration::from_secs(60), |world| world.got.last() == Some(&59)));
    assert_eq!(world.got, (1..60).collect::<Vec<_>>());
}

/// Returns the stored messages of `count` packets, with the stored header before them.
fn stored_messages(from: u8, seed: u8, count: u64) -> Vec<Vec<u8>> {
    let (mut sealer, mut stored_messages) = (sealer(from, 4, seed), Vec::new());
    for number in 0..count {
        let put = |stored_message| stored_messages.push(stored_message);
        sealer.seal(now(at(1000)), &number.to_be_bytes(), put).unwrap();
    }
    assert_eq!(stored_messages.len() as u64, count + 1);
    stored_messages
}

fn open(opener: &mut Opener, at: Timestamp, stored_message: &[u8]) -> Result<Option<u64>, Refused> {
    let unix = now(at).unix;
    let mut stored_message = stored_message.to_vec();
    let opened = opener.open(unix, &mut stored_message, |head| {
        (head.grant == b"grant").then(|| unix + Duration::from_secs(100_000))
    })?;
    Ok(match opened {
        Opened::StoredHeader => None,
        Opened::Packet { payload, .. } => Some(u64::from_be_bytes(payload.try_into().unwrap())),
    })
}

#[test]
fn packet_opens_once_and_unaltered() {
    let stored_messages = stored_messages(1, 9, 3);
    let mut opener = Opener::new(identity(4));
    assert_eq!(open(&mut opener, at(1000), &stored_messages[1]), Err(Refused::NoStoredHeader));
    for at_byte in 0..stored_messages[0].len() {
        let mut altered = stored_messages[0].clone();
        altered[at_byte] ^= 1;
        assert!(open(&mut opener, at(1000), &altered).is_err(), "byte {at_byte}");
        assert!(open(&mut opener, at(1000), &stored_messages[0][..at_byte]).is_err());
    }
    assert_eq!(open(&mut opener, at(1000), &stored_messages[0]), Ok(None));
    for at_byte in 0..stored_messages[1].len() {
        let mut altered = stored_messages[1].clone();
        altered[at_byte] ^= 1;
        assert!(open(&mut opener, at(1000), &altered).is_err(), "byte {at_byte}");
        assert!(open(&mut opener, at(1000), &stored_messages[1][..at_byte]).is_err());
    }
    // In any order, each once; the stored header as often as it comes.
    assert_eq!(open(&mut opener, at(1000), &stored_messages[3]), Ok(Some(2)));
    assert_eq!(open(&mut opener, at(1000), &stored_messages[1]), Ok(Some(0)));
    assert_eq!(open(&mut opener, at(1000), &stored_messages[0]), Ok(None));
    assert_eq!(open(&mut opener, at(1000), &stored_messages[1]), Err(Refused::Replayed));
    assert_eq!(open(&mut opener, at(1000), &stored_messages[2]), Ok(Some(1)));
    // Another receiver can open nothing.
    let mut other = Opener::new(identity(5));
    assert_eq!(open(&mut other, at(1000), &stored_messages[0]), Err(Refused::NotGenuine));
}

#[test]
fn stored_header_is_valid_for_a_day() {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    let stored_messages = stored_messages(1, 9, 1);
    let fresh = || Opener::new(identity(4));
    assert_eq!(open(&mut fresh(), at(1000 + DAY_MS), &stored_messages[0]), Ok(None));
    assert_eq!(open(&mut fresh(), at(1002 + DAY_MS), &stored_messages[0]), Err(Refused::Stale));
    let mut early = sealer(1, 4, 9);
    let mut ahead = Vec::new();
    early.seal(now(at(40_000)), b"ahead", |stored_message| ahead.push(stored_message)).unwrap();
    assert_eq!(open(&mut fresh(), at(1000), &ahead[0]), Err(Refused::Stale));
    let mut opener = fresh();
    let mut stored_message = stored_messages[0].clone();
    let refused = opener.open(now(at(1000)).unix, &mut stored_message, |head| {
        assert_eq!((head.sender, head.to.port()), (identity(1).public(), 5004));
        None
    });
    assert_eq!(refused, Err(Refused::NotGranted));
    assert_eq!(open(&mut opener, at(1000), &stored_messages[1]), Err(Refused::NoStoredHeader));
    // A grant that ends while packets wait ends them.
    let mut stored_message = stored_messages[0].clone();
    let unix = now(at(1000)).unix;
    opener.open(unix, &mut stored_message, |_| Some(unix + Duration::from_secs(5))).unwrap();
    assert_eq!(open(&mut opener, at(6000), &stored_messages[1]), Err(Refused::NotGranted));
    assert_eq!(open(&mut opener, at(5999), &stored_messages[1]), Ok(Some(0)));
}

#[test]
fn forgotten_flow_is_not_reopened() {
    let mut opener = Opener::new(identity(4));
    let [mine, theirs] = [1, 2].map(|from| stored_messages(from, 9, 1));
    assert_eq!(open(&mut opener, at(1000), &mine[0]), Ok(None));
    // The same seed gives the same flow.
    assert_eq!(open(&mut opener, at(1000), &theirs[0]), Err(Refused::NotGenuine));
    assert_eq!(open(&mut opener, at(1000), &mine[1]), Ok(Some(0)));
    for seed in 10..40 {
        let mut sealer = sealer(1, 4, seed);
        let mut later = Vec::new();
        let made = now(at(1000 + 10 * u64::from(seed)));
        sealer
            .seal(made, &7_u64.to_be_bytes(), |stored_message| later.push(stored_message))
            .unwrap();
        assert_eq!(open(&mut opener, at(2000), &later[0]), Ok(None));
        assert_eq!(open(&mut opener, at(2000), &later[1]), Ok(Some(7)));
    }
    assert_eq!(open(&mut opener, at(2000), &mine[0]), Err(Refused::Stale));
    assert_eq!(open(&mut opener, at(2000), &mine[1]), Err(Refused::NoStoredHeader));
}

#[test]
fn key_is_valid_for_ten_minutes() {
    let (mut sealer, mut headers) = (sealer(1, 4, 9), 0);
    for minute in 0..30 {
        let put = |stored_message: Vec<u8>| headers += u64::from(stored_message[0] == 1);
        sealer.seal(now(at(minute * 60_000)), b"tick", put).unwrap();
    }
    assert_eq!(headers, 3);
}
