//! The flow of a group: one copy goes in, each member gets its own and sends its own requests
//! [JQ 3.5].

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod flows;

use flows::*;
use tradewind_packet::event::{Arrival, DropReason, Event};
use tradewind_packet::id::{FlowNumber, PacketId, Peer, Tenant};
use tradewind_packet::ingress::{IngressFlow, Sharing};
use tradewind_packet::message::{
    Class, MemberList, Message, Nack, Ranges, Repair, Scope, Service, Source, write_ranges,
};
use tradewind_packet::receiver::ReceiverFlow;
use tradewind_packet::sender::{Copies, Paths, SenderFlow};

const FLOW: FlowNumber = FlowNumber(0);
const MEMBERS: u64 = 3;

/// Returns a group of three members behind one egress relay; no packet goes over the Internet by
/// itself.
fn group(service: Service) -> Cast {
    let mut cast = Cast::new(&Setting::of(service, MEMBERS));
    let at_sender = SenderFlow {
        receiver: None,
        ingress: Some(INGRESS),
        service,
        paths: Paths::Overlay,
        copies: Copies::All,
        worth: None,
    };
    cast.senders[0].set_flow(FLOW, at_sender).unwrap();
    let members: Vec<Peer> = (0..MEMBERS).map(receiver_of).collect();
    cast.ingress.set_group(FLOW, at_ingress(), &[EGRESS]).unwrap();
    let at_egress = egress_flow(0);
    cast.egress.set_group(FLOW, at_egress, &members).unwrap();
    for receiver in &mut cast.receivers[1..] {
        receiver.add_flow(FLOW, at_receiver()).unwrap();
    }
    cast
}

fn at_ingress() -> IngressFlow {
    IngressFlow {
        sender: sender_of(0),
        egress: EGRESS,
        tenant: Tenant(1),
        sharing: Sharing::Own,
        most: Service::Forwarding,
        in_stream: None,
    }
}

fn at_receiver() -> ReceiverFlow {
    let (round_trip, recovery_deadline) = (ms(100), ms(100));
    let (sender, egress, service) = (sender_of(0), Some(EGRESS), Service::Caching);
    ReceiverFlow { sender, egress, service, round_trip, recovery_deadline }
}

/// Sends packets 10 ms apart; over the Internet each member gets those for which `comes` holds.
fn send(
    cast: &mut Cast,
    packets: u64,
    comes: impl Fn(u64, u64) -> bool,
    fate: &mut dyn FnMut(Peer, Peer, &Message<'_>) -> Fate,
) {
    for _ in 0..packets {
        let packet = cast.send(0);
        for member in (0..MEMBERS).filter(|member| comes(*member, packet.sequence)) {
            let (bytes, mut sent) = (payload(packet), Vec::new());
            let (service, class) = (Service::Caching, Class::Normal);
            Message::Source(Source { packet, service, class, payload: &bytes }).write(&mut sent);
            cast.hand_over(sender_of(0), receiver_of(member), &sent);
        }
        let until = cast.now + ms(10);
        cast.advance(until, fate);
    }
    let until = cast.now + ms(500);
    cast.advance(until, fate);
}

fn arrival_at(cast: &Cast, member: u64, packet: PacketId) -> Option<Arrival> {
    let mut arrivals = cast.events_of(receiver_of(member)).filter_map(|event| match event {
        Event::Delivered { packet: delivered, arrival, .. } if delivered == packet => Some(arrival),
        _ => None,
    });
    let arrival = arrivals.next();
    assert_eq!(arrivals.next(), None, "once at most");
    arrival
}

#[test]
fn each_member_gets_one_copy() {
    let mut cast = group(Service::Forwarding);
    send(&mut cast, 5, |_, _| false, &mut losing(&[]));
    assert_eq!(cast.sent(sender_of(0), INGRESS).len(), 5);
    assert_eq!(cast.sent(INGRESS, EGRESS).len(), 5);
    for member in 0..MEMBERS {
        for sequence in 0..5 {
            assert_eq!(arrival_at(&cast, member, id(0, sequence)), Some(Arrival::Overlay));
        }
    }
}

#[test]
fn member_requests_are_answered_to_it_alone() {
    let mut cast = group(Service::Caching);
    // The first loses packet 2, the second 2 and 3, the third nothing.
    let comes = |member: u64, sequence: u64| match member {
        0 => sequence != 2,
        1 => sequence != 2 && sequence != 3,
        _ => true,
    };
    send(&mut cast, 8, comes, &mut losing(&[]));
    assert_eq!(cast.sent(sender_of(0), INGRESS).len(), 8);
    for (member, sequence) in [(0, 2), (1, 2), (1, 3)] {
        assert_eq!(arrival_at(&cast, member, id(0, sequence)), Some(Arrival::Cache));
    }
    let came_back = |member: u64, packet: PacketId| {
        let is_it = |message: &Message<'_>| {
            matches!(message,
            Message::Recovered { packet: back, .. } if *back == packet)
        };
        cast.sent(EGRESS, receiver_of(member)).iter().any(is_it)
    };
    assert!(came_back(0, id(0, 2)) && came_back(1, id(0, 2)) && came_back(1, id(0, 3)));
    assert!(!came_back(0, id(0, 3)), "it did not ask for it");
    assert!((0..8).all(|sequence| !came_back(2, id(0, sequence))));
}

#[test]
fn last_leg_loss_is_recovered() {
    let mut cast = group(Service::Forwarding);
    let mut fate = |from: Peer, to: Peer, message: &Message<'_>| match message {
        Message::Source(source)
            if (from, to) == (EGRESS, receiver_of(1)) && source.packet == id(0, 2) =>
        {
            Fate::Lost
        }
        _ => Fate::Goes,
    };
    send(&mut cast, 6, |_, _| false, &mut fate);
    assert_eq!(arrival_at(&cast, 1, id(0, 2)), Some(Arrival::Cache));
    assert_eq!(arrival_at(&cast, 2, id(0, 2)), Some(Arrival::Overlay));
}

#[test]
fn removed_member_gets_nothing() {
    let mut cast = group(Service::Forwarding);
    send(&mut cast, 2, |_, _| false, &mut losing(&[]));
    let at_egress = egress_flow(0);
    let left: Vec<Peer> = [0, 2].map(receiver_of).to_vec();
    cast.egress.set_group(FLOW, at_egress, &left).unwrap();
    send(&mut cast, 2, |_, _| false, &mut losing(&[]));
    assert_eq!(arrival_at(&cast, 1, id(0, 3)), None);
    assert_eq!(arrival_at(&cast, 2, id(0, 3)), Some(Arrival::Overlay));
    cast.wire.clear();
    let (mut ranges, mut asked) = (Vec::new(), Vec::new());
    write_ranges(&[3], &mut ranges);
    Message::Nack(Nack { flow: FLOW, ranges: Ranges::of(&ranges) }).write(&mut asked);
    cast.hand_over(receiver_of(1), EGRESS, &asked);
    cast.settle(&mut losing(&[]));
    assert!(cast.wire.is_empty(), "{:?}", cast.wire);
    assert!(cast.egress.remove_flow(FLOW));
    cast.hand_over(receiver_of(2), EGRESS, &asked);
    cast.settle(&mut losing(&[]));
    assert!(cast.wire.is_empty(), "{:?}", cast.wire);
}

#[test]
fn ingress_relay_forks_tree() {
    let mut cast = group(Service::Caching);
    let other = Peer(4711);
    cast.ingress.set_group(FLOW, at_ingress(), &[EGRESS, other]).unwrap();
    let packet = cast.send(0);
    while let Some(sent) = cast.senders[0].poll_transmit() {
        cast.ingress.handle_datagram(cast.now, sender_of(0), sent.bytes);
    }
    let mut branches = Vec::new();
    while let Some(sent) = cast.ingress.poll_transmit() {
        let is_it = matches!(Message::parse(sent.bytes), Ok(Message::Source(source))
            if source.packet == packet);
        assert!(is_it);
        branches.push(sent.to);
    }
    assert_eq!(branches, [EGRESS, other]);
}

#[test]
fn group_packets_are_not_coded() {
    let mut cast = group(Service::Coding);
    send(&mut cast, 4, |_, _| true, &mut losing(&[]));
    assert!(cast.sent(INGRESS, EGRESS).is_empty());
    let refused = Event::Dropped(DropReason::NotServed);
    assert_eq!(cast.events_of(INGRESS).filter(|event| *event == refused).count(), 4);
    let (mut entries, mut bytes) = (Vec::new(), Vec::new());
    MemberList::write([id(0, 1)].into_iter(), &mut entries);
    let members = MemberList::of(tradewind_fec::Members::from_bits(1), &entries).unwrap();
    let scope = Scope::InStream;
    let repair = Repair { scope, row: 0, rows: 1, block: 1, members, symbol: &[0; 8] };
    Message::Repair(repair).write(&mut bytes);
    cast.hand_over(INGRESS, EGRESS, &bytes);
    cast.settle(&mut losing(&[]));
    assert_eq!(cast.events_of(EGRESS).filter(|event| *event == refused).count(), 1);
}

#[test]
fn skipped_packet_uses_a_number() {
    let mut cast = group(Service::Forwarding);
    send(&mut cast, 1, |_, _| false, &mut losing(&[]));
    assert_eq!(cast.senders[0].skip(FLOW), Some(id(0, 1)));
    assert_eq!(cast.senders[0].skip(FlowNumber(99)), None);
    assert_eq!(cast.send(0), id(0, 2));
}
