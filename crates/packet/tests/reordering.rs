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
    in_time: u64,
    late: u64,
    lost_by_internet: u64,
    delivered: u64,
}

/// Runs a path on which each packet arrives `delay` milliseconds after it was sent.
fn deliver(delay: impl Fn(u64) -> u64) -> Outcome {
    let flow = receiver_flow(0, ms(100), ms(300));
    deliver_of(ReceiverFlow { service: Service::Caching, ..flow }, delay)
}

/// Runs the same for a flow with settings of its own.
fn deliver_of(flow: ReceiverFlow, delay: impl Fn(u64) -> u64) -> Outcome {
    let config = ReceiverConfig { keepalive_every: None, ..ReceiverConfig::default() };
    let mut receiver = Receiver::new(at(0), config);
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
                    (outcome.in_time, outcome.late) = (sums.in_time, sums.late);
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

/// Nothing can be recovered, and a packet that comes more than 20 ms after it should is late.
fn direct() -> ReceiverFlow {
    let flow = receiver_flow(0, ms(100), ms(20));
    ReceiverFlow { service: Service::Direct, egress: None, ..flow }
}

/// Packets count as lost at first; once they come they are late, and were not lost.
#[test]
fn packets_long_after_their_deadline_are_late_and_count_once() {
    for delay in [75, 100, 400] {
        let outcome = deliver_of(direct(), |sequence| if sequence % 10 == 3 { delay } else { 40 });
        let Outcome { expected, in_time, late, lost_by_internet, .. } = outcome;
        assert_eq!(in_time + late, PACKETS, "{delay} ms: {outcome:?}");
        assert!(late > PACKETS / 10 - 20, "{delay} ms: {outcome:?}");
        // Those of the last interval may be counted twice.
        assert!(expected - PACKETS <= 20, "{delay} ms: {outcome:?}");
        assert!(lost_by_internet <= 20, "{delay} ms: {outcome:?}");
    }
}

/// Nothing comes for longer than the window of sequences that are looked after.
#[test]
fn packets_of_a_long_outage_are_lost() {
    const FIRST_AFTER: u64 = 9000;
    let mut receiver = Receiver::new(at(0), ReceiverConfig::default());
    receiver.add_flow(FlowNumber(0), direct()).unwrap();
    let genuine = |_: PacketId, _: &[u8]| true;
    for sequence in [0, 1, 2, FIRST_AFTER] {
        let (packet, service, class) = (id(0, sequence), Service::Direct, Class::Normal);
        let payload = payload(packet);
        let source = Source { packet, service, class, payload: &payload };
        receiver.handle_message(at(sequence), sender_of(0), Message::Source(source), &genuine);
    }
    for millis in FIRST_AFTER..FIRST_AFTER + 3000 {
        receiver.handle_timeout(at(millis));
    }
    let mut sums = None;
    while let Some(sent) = receiver.poll_transmit() {
        if let Ok(Message::Feedback(report)) = Message::parse(sent.bytes) {
            sums = Some(report.sums);
        }
    }
    let sums = sums.unwrap();
    assert_eq!((sums.expected, sums.in_time), (FIRST_AFTER + 1, 4));
    assert_eq!(sums.lost_by_internet, FIRST_AFTER - 3);
}

#[test]
fn flow_that_ends_is_reported_at_once() {
    let mut receiver = Receiver::new(at(0), ReceiverConfig::default());
    receiver.add_flow(FlowNumber(0), direct()).unwrap();
    let genuine = |_: PacketId, _: &[u8]| true;
    let (packet, service, class) = (id(0, 0), Service::Direct, Class::Normal);
    let payload = payload(packet);
    let source = Source { packet, service, class, payload: &payload };
    receiver.handle_message(at(5), sender_of(0), Message::Source(source), &genuine);
    assert!(receiver.remove_flow(FlowNumber(0)));
    let sent = receiver.poll_transmit().unwrap();
    let Ok(Message::Feedback(report)) = Message::parse(sent.bytes) else { panic!("no report") };
    assert_eq!((report.sums.expected, report.sums.in_time), (1, 1));
}
