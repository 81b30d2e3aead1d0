//! A relay that is both of a flow's relays: packets handed from one side to the other have the same
//! effect as written and parsed ones; and copies that arrive together are acknowledged together.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod flows;

use std::iter::from_fn;

use proptest::prelude::*;
use tradewind_packet::egress::Egress;
use tradewind_packet::event::Event;
use tradewind_packet::id::{FlowNumber, Peer};
use tradewind_packet::ingress::{Beside, InStream, Ingress, IngressFlow};
use tradewind_packet::message::{Acknowledgement, Class, Message, Service, Source};

use flows::{Setting, at, egress_flow, id, payload, sender_of};

const FLOWS: u64 = 4;
/// The relay itself.
const HERE: Peer = Peer(u32::MAX);

/// Both sides of one relay.
struct Relay {
    ingress: Ingress,
    egress: Egress,
    hands_over: bool,
    sent: Vec<(Peer, Vec<u8>)>,
    events: [Vec<Event>; 2],
}

impl Relay {
    fn new(hands_over: bool) -> Self {
        let in_stream = Some(InStream { packets: 5, repairs: 1 });
        let setting = Setting { in_stream, arq: true, ..Setting::of(Service::Coding, FLOWS) };
        let (mut ingress, mut egress) = (setting.ingress(7), Egress::new(setting.egress));
        for flow in 0..FLOWS {
            let number = FlowNumber(flow);
            ingress
                .set_flow(number, IngressFlow { egress: HERE, ..setting.ingress_flow(flow) })
                .unwrap();
            let mut at_egress = egress_flow(flow);
            at_egress.ingress = HERE;
            egress.set_flow(number, at_egress).unwrap();
        }
        Self { ingress, egress, hands_over, sent: Vec::new(), events: [Vec::new(), Vec::new()] }
    }

    fn take(&mut self, millis: u64, flow: u64, message: Message<'_>) {
        let (now, from) = (at(millis), sender_of(flow));
        if self.hands_over {
            let beside = Beside { name: HERE, egress: &mut self.egress };
            self.ingress.handle_message_beside(now, from, message, beside);
        } else {
            self.ingress.handle_message(now, from, message);
        }
        self.ingress.handle_timeout(now);
        self.egress.handle_timeout(now);
        while let Some(sent) = self.ingress.poll_transmit() {
            if sent.to == HERE {
                self.egress.handle_datagram(now, HERE, sent.bytes)
            } else {
                self.sent.push((sent.to, sent.bytes.to_vec()))
            }
        }
        while let Some(sent) = self.egress.poll_transmit() {
            self.sent.push((sent.to, sent.bytes.to_vec()));
        }
        self.events[0].extend(from_fn(|| self.ingress.poll_event()));
        self.events[1].extend(from_fn(|| self.egress.poll_event()));
    }
}

fn copy(flow: u64, number: u64, service: Service, payload: &[u8]) -> Message<'_> {
    let (packet, class) = (id(flow, number), Class::Normal);
    Message::Copy { number, source: Source { packet, service, class, payload } }
}

proptest! {
    #[test]
    fn handover_equals_written_messages(
        steps in prop::collection::vec((0..20_u64, 0..FLOWS, 0..60_u64, 0..4_usize), 1..200),
    ) {
        let mut relays = [Relay::new(true), Relay::new(false)];
        let mut millis = 0;
        for (passed, flow, number, service) in steps {
            millis += passed;
            let payload = payload(id(flow, number));
            for relay in &mut relays {
                relay.take(millis, flow, copy(flow, number, Service::ALL[service], &payload));
            }
            let [one, other] = &relays;
            prop_assert_eq!(&one.sent, &other.sent);
            prop_assert_eq!(&one.events, &other.events);
            prop_assert_eq!(one.egress.held(), other.egress.held());
        }
    }
}

/// Returns the acknowledgements that are sent after these copies came at once.
fn acknowledgements(numbers: impl Iterator<Item = u64>) -> Vec<Acknowledgement> {
    let mut ingress = Relay::new(true).ingress;
    for number in numbers {
        let message = copy(0, number, Service::Caching, b"any");
        ingress.handle_message(at(1), sender_of(0), message);
    }
    let mut acknowledgements = Vec::new();
    while let Some(sent) = ingress.poll_transmit() {
        if let Message::Acknowledgement(seen) = Message::parse(sent.bytes).unwrap() {
            acknowledgements.push(seen);
        }
    }
    acknowledgements
}

#[test]
fn joint_copies_share_acknowledgement() {
    let acknowledgements = acknowledgements(0..64);
    assert_eq!(acknowledgements.iter().map(Acknowledgement::end).collect::<Vec<_>>(), [64]);
}

#[test]
fn gap_is_acknowledged_among_joint_copies() {
    let acknowledgements = acknowledgements((0..2000).filter(|number| *number != 3));
    let tells = |seen: &&Acknowledgement| !seen.has(3) && seen.end() > 4;
    assert!(acknowledgements.iter().any(|seen| tells(&seen)), "{acknowledgements:?}");
    assert!(
        acknowledgements.len() <= 17,
        "{} acknowledgements of 2000 copies",
        acknowledgements.len()
    );
}

/// The messages of each relay once a flow is served of which packets had come before.
#[test]
fn early_packets_wait_for_their_flow() {
    let setting = Setting::of(Service::Caching, 1);
    let (mut ingress, mut egress) = (setting.ingress(7), Egress::new(setting.egress));
    let bytes = payload(id(0, 0));
    let copy = copy(0, 0, Service::Caching, &bytes);
    ingress.handle_message(at(1), sender_of(0), copy);
    ingress.handle_message(at(1), sender_of(1), copy);
    assert!(ingress.poll_transmit().is_none());
    ingress.set_flow(FlowNumber(0), setting.ingress_flow(0)).unwrap();
    ingress.take_early(at(40), FlowNumber(0), None);
    let sent = ingress.poll_transmit().unwrap();
    let forwarded = sent.bytes.to_vec();
    assert!(matches!(Message::parse(&forwarded), Ok(Message::Source(_))));
    assert!(ingress.poll_transmit().is_none(), "another's copy counts for nothing");
    let from = egress_flow(0).ingress;
    egress.handle_datagram(at(1), from, &forwarded);
    assert_eq!(egress.held().packets, 0);
    egress.set_flow(FlowNumber(0), egress_flow(0)).unwrap();
    egress.take_early(at(40), FlowNumber(0));
    assert_eq!(egress.held().packets, 1);
    egress.take_early(at(40), FlowNumber(0));
    assert!(!from_fn(|| egress.poll_event()).any(|event| matches!(event, Event::Dropped(_))));
}
