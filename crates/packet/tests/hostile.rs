//! Invalid input: it alters no state and gets no answer, and no packet is ever delivered twice or
//! altered.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod cast;
mod flows;

use std::collections::{BTreeMap, BTreeSet};

use cast::{ENDPOINT, Pair, link};
use flows::*;
use proptest::prelude::*;
use tradewind_fec::Members;
use tradewind_packet::egress::{Egress, EgressConfig, EgressFlow, KeepBlocks, MAX_ASKED};
use tradewind_packet::event::{DropReason, Event};
use tradewind_packet::id::{FlowNumber, PacketId, Peer, Tenant};
use tradewind_packet::ingress::{InStream, Ingress, IngressConfig, IngressFlow, Sharing};
use tradewind_packet::message::{
    Class, MemberList, Message, Nack, Ranges, Repair, Scope, Service, Source, write_ranges,
};

fn coding(flows: u64) -> Setting {
    let mut setting = Setting::of(Service::Coding, flows);
    setting.in_stream = Some(InStream { packets: 5, repairs: 1 });
    setting.arq = true;
    setting
}

fn nack(flow: u64, sequences: &[u64]) -> Vec<u8> {
    let (mut ranges, mut bytes) = (Vec::new(), Vec::new());
    write_ranges(sequences, &mut ranges);
    let ranges = Ranges::of(&ranges);
    Message::Nack(Nack { flow: FlowNumber(flow), ranges }).write(&mut bytes);
    bytes
}

#[test]
fn requests_are_bounded_to_own_receiver() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 2));
    cast.run(5, &mut losing(&[]));
    cast.wire.clear();
    cast.hand_over(receiver_of(1), EGRESS, &nack(0, &[1, 2]));
    cast.hand_over(sender_of(0), EGRESS, &nack(0, &[1, 2]));
    cast.settle(&mut losing(&[]));
    assert!(cast.wire.is_empty(), "{:?}", cast.wire);
    for _ in 0..5 {
        cast.hand_over(receiver_of(0), EGRESS, &nack(0, &[1]));
    }
    cast.settle(&mut losing(&[]));
    assert_eq!(cast.sent(EGRESS, receiver_of(0)).len(), 2);
    let spent = Event::Dropped(DropReason::Answered);
    assert_eq!(cast.events_of(EGRESS).filter(|event| *event == spent).count(), 3);
}

#[test]
fn requests_beyond_the_budget_are_dropped() {
    let mut setting = Setting::of(Service::Caching, 1);
    setting.egress.asks.burst = 100;
    let mut cast = Cast::new(&setting);
    for first in 0..5 {
        let sequences: Vec<u64> = (first * 100..first * 100 + 60).collect();
        cast.hand_over(receiver_of(0), EGRESS, &nack(0, &sequences));
    }
    cast.settle(&mut losing(&[]));
    let spent = Event::Dropped(DropReason::OverBudget);
    assert_eq!(cast.events_of(EGRESS).filter(|event| *event == spent).count(), 4);
}

#[test]
fn unrequested_packets_are_refused() {
    let mut cast = Cast::new(&coding(2));
    cast.run(3, &mut losing(&[]));
    let unasked = payload(id(0, 9));
    let mut bytes = Vec::new();
    let means = tradewind_packet::message::RecoverySource::Cache;
    Message::Recovered { packet: id(0, 9), means, payload: &unasked }.write(&mut bytes);
    cast.hand_over(EGRESS, receiver_of(0), &bytes);
    cast.settle(&mut losing(&[]));
    assert_eq!(cast.arrival_of(id(0, 9)), None);
}

/// Returns every state of every machine, as text.
fn states(cast: &Cast) -> String {
    let (senders, receivers) = (&cast.senders, &cast.receivers);
    format!("{senders:?} {:?} {:?} {receivers:?}", cast.ingress, cast.egress)
}

/// Each message is opened in its session once; the same datagram again, whole, truncated or altered
/// anywhere, is opened by no session, and so reaches no machine.
#[test]
fn every_message_kind_is_accepted_once() {
    let mut cast = Cast::new(&coding(3));
    cast.run(30, &mut losing(&[id(0, 3), id(1, 14)]));
    // Until all have sent keepalives and reports.
    cast.advance(at(6_000), &mut losing(&[]));
    let wire = cast.wire.clone();
    let mut sessions: BTreeMap<(Peer, Peer), Pair> = BTreeMap::new();
    let now = cast::at(1_000);
    let sealed: Vec<Vec<u8>> = wire
        .iter()
        .map(|(from, to, bytes)| {
            let Pair { endpoint, relay, peer } =
                sessions.entry((*from, *to)).or_insert_with(Pair::established);
            let datagram = cast::sealed(endpoint, *peer, bytes);
            let opened = cast::opened(relay, now, link(ENDPOINT), &datagram);
            assert_eq!(opened.as_ref(), Some(bytes));
            datagram
        })
        .collect();
    let before = states(&cast);
    let mut seen = BTreeSet::new();
    for ((from, to, bytes), datagram) in wire.iter().zip(&sealed) {
        let relay = &mut sessions.get_mut(&(*from, *to)).unwrap().relay;
        let mut bad = vec![datagram.clone()];
        // Each place of the first of a kind, and one place of the others.
        let is_first = seen.insert(bytes[0]);
        let places =
            if is_first { 0..datagram.len() } else { bytes.len() / 2..bytes.len() / 2 + 1 };
        for place in places {
            bad.push(datagram[..place].to_vec());
            let mut altered = datagram.clone();
            altered[place] ^= 0x40;
            bad.push(altered);
        }
        for datagram in bad {
            if let Some(bytes) = cast::opened(relay, now, link(ENDPOINT), &datagram) {
                cast.hand_over(*from, *to, &bytes);
            }
        }
    }
    cast.settle(&mut losing(&[]));
    assert_eq!((states(&cast), cast.wire.len()), (before, wire.len()));
    // All of the services' messages have been tried.
    assert_eq!(seen, (0x41..=0x4b).collect());
}

/// Returns the relay of two receivers, the second of which has a flow with one packet in the cache.
fn relay_of_two(flows_of_first: u64) -> (Egress, EgressFlow) {
    let mut egress = Egress::new(EgressConfig::default());
    let of =
        |receiver| EgressFlow { ingress: Peer(1), receiver: Peer(receiver), tenant: Tenant(1) };
    for flow in 0..flows_of_first {
        egress.set_flow(FlowNumber(flow), of(2)).unwrap();
    }
    egress.set_flow(FlowNumber(VICTIM), of(3)).unwrap();
    let (service, class) = (Service::Caching, Class::Normal);
    let packet = id(VICTIM, 0);
    let source = Source { packet, service, class, payload: &[1; 1000] };
    egress.handle_message(at(1), Peer(1), Message::Source(source));
    (egress, of(2))
}

const VICTIM: u64 = 5000;

fn recipients(egress: &mut Egress) -> Vec<Peer> {
    std::iter::from_fn(|| egress.poll_transmit().map(|transmit| transmit.to)).collect()
}

#[test]
fn repeated_keepalives_hold_up_nobody() {
    let (mut egress, _) = relay_of_two(1024);
    recipients(&mut egress);
    for nonce in 0..1000 {
        let alive = Message::Keepalive { is_answer: false, nonce };
        egress.handle_message(at(2), Peer(2), alive);
    }
    let ask = nack(VICTIM, &[0]);
    egress.handle_message(at(3), Peer(3), Message::parse(&ask).unwrap());
    let recipients = recipients(&mut egress);
    let to_ingress = recipients.iter().filter(|to| **to == Peer(1)).count();
    assert!(to_ingress <= 1024, "{to_ingress} words of one receiver's presence");
    assert_eq!(
        recipients.iter().filter(|to| **to == Peer(3)).count(),
        1,
        "the other one is served"
    );
}

#[test]
fn reset_flow_keeps_budget() {
    let (mut egress, flow) = relay_of_two(1);
    let (mut first, mut accepted) = (0, 0);
    for _ in 0..2000 {
        let ask = nack(0, &(first..first + 64).collect::<Vec<u64>>());
        first += 64;
        let before = egress.held().requests;
        egress.handle_message(at(2), Peer(2), Message::parse(&ask).unwrap());
        accepted += egress.held().requests - before;
        egress.set_flow(FlowNumber(0), flow).unwrap();
    }
    assert!((64..MAX_ASKED / 8).contains(&accepted), "{accepted} remembered at one instant");
    recipients(&mut egress);
    let ask = nack(VICTIM, &[0]);
    egress.handle_message(at(2), Peer(3), Message::parse(&ask).unwrap());
    assert_eq!(recipients(&mut egress), [Peer(3)]);
}

#[test]
fn tenant_requests_are_bounded() {
    let mut egress = Egress::new(EgressConfig::default());
    let flow = |number: u64, tenant| {
        let receiver = Peer(u32::try_from(number).unwrap() + 10);
        (FlowNumber(number), EgressFlow { ingress: Peer(1), receiver, tenant: Tenant(tenant) })
    };
    let mut ask = |number: u64, tenant| {
        let (number, flow) = flow(number, tenant);
        egress.set_flow(number, flow).unwrap();
        for first in (0..960).step_by(64) {
            let ask = nack(number.0, &(first..first + 64).collect::<Vec<u64>>());
            egress.handle_message(at(2), flow.receiver, Message::parse(&ask).unwrap());
        }
        egress.held().requests
    };
    let filled = (0..100).map(|number| ask(number, 1)).last().unwrap();
    assert_eq!(filled, MAX_ASKED / 2);
    assert_eq!(ask(VICTIM, 2), filled + 960, "another tenant's are remembered");
    egress.handle_timeout(at(3000));
    assert_eq!(egress.held().requests, 0);
}

/// Returns whether a relay's side answers a keepalive, for each of some peers.
fn answered(peers: &[u32], mut ask: impl FnMut(Peer) -> Option<Peer>) -> Vec<bool> {
    peers.iter().map(|peer| ask(Peer(*peer)) == Some(Peer(*peer))).collect()
}

const ALIVE: Message<'static> = Message::Keepalive { is_answer: false, nonce: 1 };

#[test]
fn only_flow_peers_are_answered() {
    let config = IngressConfig::default();
    let flow = |sender, egress| IngressFlow {
        sender: Peer(sender),
        egress: Peer(egress),
        tenant: Tenant(1),
        sharing: Sharing::Own,
        most: Service::Coding,
        in_stream: None,
    };
    let mut ingress = Ingress::new(config);
    let known = |ingress: &mut Ingress| {
        answered(&[1, 2, 3, 4, 5], |peer| {
            ingress.handle_message(at(1), peer, ALIVE);
            ingress.poll_transmit().map(|sent| sent.to)
        })
    };
    for number in 0..2 {
        ingress.set_flow(FlowNumber(number), flow(1, 2)).unwrap();
    }
    assert_eq!(known(&mut ingress), [true, true, false, false, false]);
    ingress.set_flow(FlowNumber(1), flow(3, 4)).unwrap();
    assert_eq!(known(&mut ingress), [true, true, true, true, false]);
    ingress.set_group(FlowNumber(0), flow(1, 2), &[Peer(2), Peer(5)]).unwrap();
    ingress.set_flow(FlowNumber(1), flow(3, 2)).unwrap();
    assert_eq!(known(&mut ingress), [true, true, true, false, true]);
    assert!(ingress.remove_flow(FlowNumber(0)));
    assert_eq!(known(&mut ingress), [false, true, true, false, false]);
    assert!(ingress.remove_flow(FlowNumber(1)));
    assert_eq!(known(&mut ingress), [false; 5]);

    let mut egress = Egress::new(EgressConfig::default());
    let flow = |ingress, receiver| EgressFlow {
        ingress: Peer(ingress),
        receiver: Peer(receiver),
        tenant: Tenant(1),
    };
    let known = |egress: &mut Egress| {
        answered(&[1, 2, 3], |peer| {
            egress.handle_message(at(1), peer, ALIVE);
            recipients(egress).into_iter().find(|to| *to == peer)
        })
    };
    egress.set_flow(FlowNumber(0), flow(1, 2)).unwrap();
    egress.set_flow(FlowNumber(1), flow(1, 2)).unwrap();
    assert_eq!(known(&mut egress), [true, true, false]);
    egress.set_flow(FlowNumber(0), flow(3, 2)).unwrap();
    egress.set_flow(FlowNumber(1), flow(3, 2)).unwrap();
    assert_eq!(known(&mut egress), [false, true, true]);
    assert!(egress.remove_flow(FlowNumber(0)) && egress.remove_flow(FlowNumber(1)));
    assert_eq!(known(&mut egress), [false; 3]);
}

/// Hands the egress relay the only repair packet of a block of one packet.
fn keep_block(egress: &mut Egress, packet: PacketId, symbol: &[u8]) {
    let mut entries = Vec::new();
    MemberList::write([packet].into_iter(), &mut entries);
    let members = MemberList::of(Members::first(1), &entries).unwrap();
    let (scope, block) = (Scope::InStream, packet.flow.0 << 32 | packet.sequence);
    let repair = Repair { scope, row: 0, rows: 1, block, members, symbol };
    egress.handle_message(at(1), Peer(1), Message::Repair(repair));
}

#[test]
fn tenant_blocks_evict_own_only() {
    let age = tradewind_units::Duration::from_millis(1000);
    let bytes = tradewind_units::Bytes::new(50_000);
    for (blocks, symbol) in [(100, [1; 8].as_slice()), (100_000, &[1; 500])] {
        let keep = KeepBlocks { age, bytes, blocks };
        let mut egress = Egress::new(EgressConfig { blocks: keep, ..EgressConfig::default() });
        for (flow, receiver, tenant) in [(0, 2, 1), (VICTIM, 3, 2)] {
            let (receiver, tenant) = (Peer(receiver), Tenant(tenant));
            let flow_there = EgressFlow { ingress: Peer(1), receiver, tenant };
            egress.set_flow(FlowNumber(flow), flow_there).unwrap();
        }
        for sequence in 0..5 {
            keep_block(&mut egress, id(VICTIM, sequence), symbol);
        }
        for sequence in 0..1000 {
            keep_block(&mut egress, id(0, sequence), symbol);
        }
        assert_eq!(egress.held().blocks, 100);
        recipients(&mut egress);
        let ask = nack(VICTIM, &[0, 1, 2, 3, 4]);
        egress.handle_message(at(2), Peer(3), Message::parse(&ask).unwrap());
        assert_eq!(
            recipients(&mut egress),
            [Peer(3); 5],
            "the victim's oldest blocks are still there"
        );
        let ask = nack(0, &[0, 999]);
        egress.handle_message(at(2), Peer(2), Message::parse(&ask).unwrap());
        assert_eq!(recipients(&mut egress), [Peer(2)], "of its own the oldest is gone");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_messages_alter_no_state(
        lost in 0..30_u64, place in any::<prop::sample::Index>(),
            cut in any::<prop::sample::Index>(), kind in 0..3_u8,
    ) {
        let mut cast = Cast::new(&coding(3));
        cast.run(30, &mut losing(&[id(0, lost)]));
        let (from, to, bytes) = place.get(&cast.wire).clone();
        let before = states(&cast);
        match kind {
            // An outsider repeats another peer's message.
            0 => cast.hand_over(Peer(9999), to, &bytes),
            // The end is truncated, so that it is no message any more.
            1 => {
                let mut lengths = (0..=cut.index(bytes.len())).rev();
                let length = lengths.find(|length| Message::parse(&bytes[..*length]).is_err());
                cast.hand_over(from, to, &bytes[..length.unwrap()]);
            }
            // Messages that carry a packet come once more, which a machine can recognize by itself.
            // Other kinds are kept away by its session.
            _ => {
                let again: Vec<Datagram> = cast.wire.iter().filter(|(_, _, bytes)| matches!(
                    Message::parse(bytes).unwrap(),
                    Message::Source(_) | Message::Repair(_) | Message::Recovered { .. }
                        | Message::HelpAnswer { .. }
                )).cloned().collect();
                let (from, to, bytes) = place.get(&again);
                cast.hand_over(*from, *to, bytes);
            }
        }
        let dropped = |event: &Event| matches!(event, Event::Dropped(_));
        let events: Vec<Event> = [&mut cast.senders[..]].into_iter().flatten()
            .flat_map(|sender| std::iter::from_fn(|| sender.poll_event()).collect::<Vec<_>>())
            .chain(std::iter::from_fn(|| cast.ingress.poll_event()).collect::<Vec<_>>())
            .chain(std::iter::from_fn(|| cast.egress.poll_event()).collect::<Vec<_>>())
            .chain(cast.receivers.iter_mut()
                .flat_map(|receiver| std::iter::from_fn(|| receiver.poll_event())
                    .collect::<Vec<_>>()))
            .collect();
        prop_assert!(events.iter().all(dropped), "{events:?}");
        prop_assert_eq!(states(&cast), before);
    }

    #[test]
    fn delivery_is_unaltered_and_unique(
        fates in prop::collection::vec((0..10_u8, any::<u8>(), any::<prop::sample::Index>()),
            200..400),
    ) {
        let mut cast = Cast::new(&coding(3));
        let mut fates = fates.into_iter().cycle();
        let mut held: Vec<(Peer, Peer, Vec<u8>)> = Vec::new();
        for _ in 0..40 {
            for flow in 0..3 {
                cast.send(flow);
            }
            let until = cast.now + ms(10);
            cast.advance(until, &mut |from, to, message| {
                let (fate, bit, at) = fates.next().unwrap();
                let mut bytes = Vec::new();
                message.write(&mut bytes);
                match fate {
                    0 => Fate::Lost,
                    1 => {
                        let at = at.index(bytes.len());
                        bytes[at] ^= 1 << (bit % 8);
                        Fate::Altered(bytes)
                    }
                    2 | 3 => {
                        held.push((from, to, bytes));
                        if fate == 2 { Fate::Lost } else { Fate::Goes }
                    }
                    _ => Fate::Goes,
                }
            });
            // Held ones are delivered later, some of them for the second time.
            if held.len() > 20 {
                for (from, to, bytes) in held.drain(..10) {
                    cast.hand_over(from, to, &bytes);
                }
            }
        }
        cast.advance(at(2000), &mut losing(&[]));
        // `Cast` checks for each delivery that nothing is altered.
        let mut packets: Vec<_> = cast.delivered.iter().map(|(packet, ..)| *packet).collect();
        packets.sort_unstable();
        let count = packets.len();
        packets.dedup();
        prop_assert_eq!(packets.len(), count, "delivered twice");
    }
}
