//! A path that reorders and loses nothing: the requests and reports of its receiver.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod flows;

use std::collections::BTreeMap;

use tradewind_packet::id::{FlowNumber, PacketId};
use tradewind_packet::message::{Class, Message, RecoverySource, Report, Service, Source};
use tradewind_packet::receiver::{Receiver, ReceiverConfig, ReceiverFlow};

use flows::{EGRESS, at, id, ms, payload, receiver_flow, sender_of};

/// The number of packets, one each 5 ms.
const PACKETS: u64 = 2000;
const GAP: u64 = 5;
/// The time until the relay near by answers, in milliseconds.
const ANSWER: u64 = 3;

/// The fate of packets.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    asked: u64,
    expected: u64,
    lost_by_internet: u64,
    delivered: u64,
}

/// Runs a path on which each packet arrives `delay` milliseconds after it was sent.
fn deliver(delay: impl Fn(u64) -> u64) -> Outcome {
    let config = ReceiverConfig { keepalive_every: None, ..ReceiverConfig::default() };
    let mut receiver = Receiver::new(at(0), config);
    let flow = receiver_flow(0, ms(100), ms(300));
    let flow = ReceiverFlow { service: Service::Caching, ..flow };
    receiver.add_flow(FlowNumber(0), flow).unwrap();
    let mut arrivals: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for sequence in 0..PACKETS {
        arrivals.entry(sequence * GAP + delay(sequence)).or_default().push(sequence);
    }
    let mut answers: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let (mut outcome, genuine) = (Outcome::default(), |_: PacketId, _: &[u8]| true);
    for millis in 0..PACKETS * GAP + 1500 {
        let now = at(millis);
        receiver.handle_timeout(now);
        for sequence in answers.remove(&millis).unwrap_or_default() {
            let (packet, means) = (id(0, sequence), RecoverySource::Cache);
            let payload = payload(packet);
            let message = Message::Recovered { packet, means, payload: &payload };
            receiver.handle_message(now, EGRESS, message, &genuine);
        }
        for sequence in arrivals.remove(&millis).unwrap_or_default() {
            let (packet, service, class) = (id(0, sequence), Service::Caching, Class::Normal);
            let payload = payload(packet);
            let source = Source { packet, service, class, payload: &payload };
            receiver.handle_message(now, sender_of(0), Message::Source(source), &genuine);
        }
        while let Some(sent) = receiver.poll_transmit() {
            match Message::parse(sent.bytes) {
                Ok(Message::Nack(nack)) => {
                    let asked: Vec<u64> = nack.ranges.sequences().collect();
                    let existing = asked.iter().filter(|sequence| **sequence < PACKETS);
                    outcome.asked += existing.count() as u64;
                    // The relay keeps the packets that have been sent.
                    let is_cached = |asked: &u64| *asked < PACKETS && asked * GAP <= millis;
                    let cached = asked.into_iter().filter(is_cached);
                    answers.entry(millis + ANSWER).or_default().extend(cached);
                }
                Ok(Message::Feedback(Report { sums, .. })) => {
                    outcome.expected = sums.expected;
                    outcome.lost_by_internet = sums.lost_by_internet;
                }
                _ => {}
            }
        }
        while receiver.poll_delivery().is_some() {
            outcome.delivered += 1;
        }
    }
    outcome
}

#[test]
fn tenth_of_packets_25_ms_late_is_no_loss() {
    let outcome = deliver(|sequence| if sequence % 10 == 3 { 65 } else { 40 });
    assert_eq!((outcome.delivered, outcome.expected), (PACKETS, PACKETS));
    // The model learns from the first ones.
    assert!(outcome.asked <= PACKETS / 50, "{outcome:?}");
    assert!(outcome.lost_by_internet <= PACKETS / 100, "{outcome:?}");
}

#[test]
fn tenth_of_packets_25_ms_early_is_no_loss() {
    let outcome = deliver(|sequence| if sequence % 10 == 3 { 40 } else { 65 });
    assert_eq!((outcome.delivered, outcome.expected), (PACKETS, PACKETS));
    assert!(outcome.asked <= PACKETS / 50, "{outcome:?}");
    assert!(outcome.lost_by_internet <= PACKETS / 100, "{outcome:?}");
}
