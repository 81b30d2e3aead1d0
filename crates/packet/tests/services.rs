//! Each service, step by step: the path of each packet, and the recovery of lost ones.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod flows;

use flows::*;
use tradewind_packet::budget::Allowance;
use tradewind_packet::event::{Arrival, Closed, DropReason, Event};
use tradewind_packet::id::{FlowNumber, Peer};
use tradewind_packet::ingress::InStream;
use tradewind_packet::message::{Class, Feedback, Message, Report, Scope, Service};
use tradewind_packet::receiver::ReceiverFlow;
use tradewind_packet::sender::{Arq, Copies, Paths, Sender, SenderConfig, SenderFlow};
use tradewind_units::Duration;

#[test]
fn direct_packets_use_internet_only() {
    let mut cast = Cast::new(&Setting::of(Service::Direct, 1));
    cast.run(3, &mut losing(&[id(0, 1)]));
    assert_eq!(cast.sent(sender_of(0), INGRESS).len(), 0);
    assert_eq!(cast.arrival_of(id(0, 0)), Some(Arrival::Internet));
    assert_eq!(cast.arrival_of(id(0, 1)), None);
    assert!(cast.events_of(receiver_of(0)).any(|event| event == Event::Lost(id(0, 1))));
}

#[test]
fn forwarded_packets_use_relays_or_both() {
    let mut cast = Cast::new(&Setting::of(Service::Forwarding, 1));
    cast.run(2, &mut losing(&[]));
    assert_eq!(cast.arrival_of(id(0, 1)), Some(Arrival::Overlay));
    assert_eq!(cast.sent(sender_of(0), receiver_of(0)).len(), 0);

    let mut setting = Setting::of(Service::Forwarding, 1);
    setting.paths = Paths::Both;
    let mut cast = Cast::new(&setting);
    let mut fate = |from: Peer, to: Peer, _: &Message<'_>| {
        if (from, to) == (sender_of(0), receiver_of(0)) { Fate::Lost } else { Fate::Goes }
    };
    cast.run(2, &mut losing(&[]));
    cast.run(2, &mut fate);
    assert_eq!(cast.arrival_of(id(0, 1)), Some(Arrival::Internet));
    assert_eq!(cast.arrival_of(id(0, 3)), Some(Arrival::Overlay));
    assert_eq!(cast.delivered.len(), 4);
}

#[test]
fn forwarded_packets_are_not_cached() {
    let mut cast = Cast::new(&Setting::of(Service::Forwarding, 1));
    let mut fate = |from: Peer, _: Peer, message: &Message<'_>| match message {
        Message::Source(source) if from == EGRESS && source.packet == id(0, 2) => Fate::Lost,
        _ => Fate::Goes,
    };
    cast.run(6, &mut fate);
    assert!(cast.events_of(receiver_of(0)).any(|event| event == Event::Lost(id(0, 2))));
    assert!(!cast.sent(receiver_of(0), EGRESS).iter().any(|m| matches!(m, Message::Nack(_))));
    assert_eq!(cast.receivers[0].held().packets, 0);
}

#[test]
fn lost_copy_arrives_for_last_request() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 1));
    let flow = ReceiverFlow { service: Service::Caching, ..receiver_flow(0, ms(110), ms(400)) };
    cast.receivers[0].set_path(FlowNumber(0), flow);
    let (mut copy, lost) = (Vec::new(), id(0, 2));
    let mut fate = |from: Peer, _: Peer, message: &Message<'_>| match message {
        // One is recovered at once, so that its receiver knows how long answers take.
        Message::Source(source)
            if from == sender_of(0) && [id(0, 1), lost].contains(&source.packet) =>
        {
            Fate::Lost
        }
        Message::Copy { source, .. } if from == sender_of(0) && source.packet == lost => {
            message.write(&mut copy);
            Fate::Lost
        }
        _ => Fate::Goes,
    };
    for _ in 0..6 {
        cast.send(0);
        cast.advance(cast.now + ms(10), &mut fate);
    }
    cast.advance(at(220), &mut losing(&[]));
    assert_eq!(cast.arrival_of(lost), None);
    // Sent again by a sender so far from the relay that it knows of the loss only now.
    cast.hand_over(sender_of(0), INGRESS, &copy);
    cast.settle(&mut losing(&[]));
    assert_eq!(cast.arrival_of(lost), Some(Arrival::Cache));
}

#[test]
fn missing_packets_are_requested_once_relay_is_known() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 1));
    let known = ReceiverFlow { service: Service::Caching, ..receiver_flow(0, ms(100), ms(100)) };
    cast.receivers[0].set_path(FlowNumber(0), ReceiverFlow { egress: None, ..known });
    cast.send(0);
    cast.settle(&mut losing(&[]));
    for _ in 0..2 {
        let lost = cast.send(0);
        cast.settle(&mut losing(&[lost]));
        cast.send(0);
        cast.settle(&mut losing(&[]));
        cast.advance(cast.now + ms(10), &mut losing(&[]));
    }
    assert_eq!(cast.arrival_of(id(0, 1)), None);
    cast.receivers[0].set_path(FlowNumber(0), known);
    cast.advance(cast.now + ms(10), &mut losing(&[]));
    assert_eq!(cast.arrival_of(id(0, 1)), Some(Arrival::Cache));
    assert_eq!(cast.arrival_of(id(0, 3)), Some(Arrival::Cache));
}

#[test]
fn gap_requests_cached_packet() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 1));
    cast.run(6, &mut losing(&[id(0, 2), id(0, 3)]));
    assert_eq!(cast.arrival_of(id(0, 2)), Some(Arrival::Cache));
    assert_eq!(cast.arrival_of(id(0, 3)), Some(Arrival::Cache));
    assert_eq!(cast.delivered.len(), 6);
}

#[test]
fn timer_detects_lost_last_packet() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 1));
    cast.run(20, &mut losing(&[id(0, 19)]));
    assert_eq!(cast.arrival_of(id(0, 19)), Some(Arrival::Cache));
}

#[test]
fn lost_packet_is_decoded_with_helpers() {
    let mut cast = Cast::new(&Setting::of(Service::Coding, 3));
    cast.run(5, &mut losing(&[id(0, 2)]));
    assert_eq!(cast.arrival_of(id(0, 2)), Some(Arrival::CrossStream));
    let full = |event: &Event| {
        matches!(event, Event::BlockClosed { closed: Closed::Full, members: 3, repairs: 2, .. })
    };
    assert_eq!(cast.events_of(INGRESS).filter(full).count(), 5);
    // Source packets never travel between the relays.
    assert!(cast.sent(INGRESS, EGRESS).iter().all(|m| matches!(m, Message::Repair(_))));
    // Of two repair packets and two helpers one is enough: the rest stays unused, without harm.
    assert_eq!(cast.delivered.len(), 15);
}

#[test]
fn two_losses_in_block_are_recovered() {
    let mut cast = Cast::new(&Setting::of(Service::Coding, 3));
    cast.run(5, &mut losing(&[id(0, 2), id(1, 2)]));
    assert_eq!(cast.arrival_of(id(0, 2)), Some(Arrival::CrossStream));
    assert_eq!(cast.arrival_of(id(1, 2)), Some(Arrival::CrossStream));
}

#[test]
fn three_losses_exceed_two_repairs() {
    let mut cast = Cast::new(&Setting::of(Service::Coding, 3));
    cast.run(5, &mut losing(&[id(0, 2), id(1, 2), id(2, 2)]));
    assert_eq!(cast.delivered.len(), 12);
    let lost = cast.events.iter().filter(|(_, event)| matches!(event, Event::Lost(_))).count();
    assert_eq!(lost, 3);
}

#[test]
fn in_stream_loss_needs_no_helper() {
    let mut setting = Setting::of(Service::Coding, 1);
    setting.in_stream = Some(InStream { packets: 5, repairs: 1 });
    let mut cast = Cast::new(&setting);
    cast.run(10, &mut losing(&[id(0, 4)]));
    assert_eq!(cast.arrival_of(id(0, 4)), Some(Arrival::InStream));
    let asked = |(_, event): &&(Peer, Event)| matches!(event, Event::HelpAsked { .. });
    assert_eq!(cast.events.iter().filter(asked).count(), 0);
}

#[test]
fn outage_is_followed() {
    let mut setting = Setting::of(Service::Coding, 3);
    setting.in_stream = Some(InStream { packets: 5, repairs: 1 });
    let mut cast = Cast::new(&setting);
    let lost: Vec<_> = (20..120).map(|sequence| id(0, sequence)).collect();
    cast.run(200, &mut losing(&lost));
    assert!(lost.iter().all(|packet| cast.arrival_of(*packet).is_some()));
    assert!(cast.delivered.iter().all(|(_, _, is_late)| !is_late));
}

fn all_goes(_: Peer, _: Peer, _: &Message<'_>) -> Fate {
    Fate::Goes
}

/// Loses all source packets on the Internet path.
fn outage(_: Peer, to: Peer, message: &Message<'_>) -> Fate {
    let by_internet = matches!(message, Message::Source(_)) && to.0 >= 200;
    if by_internet { Fate::Lost } else { Fate::Goes }
}

#[test]
fn video_outage_is_followed() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 1));
    let mut sent = 0;
    // 25 frames a second, of three to eight packets each, 3.5 ms apart; after four seconds, half a
    // minute of outage.
    for frame in 0..850 {
        let next = cast.now + ms(40);
        for _ in 0..3 + frame * 7 % 6 {
            cast.send(0);
            sent += 1;
            let until = cast.now + Duration::from_micros(3500);
            let fate: fn(Peer, Peer, &Message<'_>) -> Fate =
                if frame < 100 { all_goes } else { outage };
            cast.advance(until, &mut { fate });
        }
        cast.advance(next, &mut outage);
    }
    assert_eq!(cast.delivered.len(), sent);
    assert!(cast.delivered.iter().all(|(_, _, is_late)| !is_late));
}

#[test]
fn paused_call_is_recovered() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 1));
    let lost: Vec<_> = (90..100).map(|sequence| id(0, sequence)).collect();
    cast.run(100, &mut losing(&lost));
    for _ in 0..3 {
        // `run` pauses for half a second.
        cast.run(100, &mut outage);
        let until = cast.now + ms(500);
        cast.advance(until, &mut outage);
    }
    let gone: Vec<u64> = (90..400).filter(|s| cast.arrival_of(id(0, *s)).is_none()).collect();
    assert!(gone.is_empty(), "{gone:?}");
}

#[test]
fn lost_copy_is_resent() {
    let mut setting = Setting::of(Service::Coding, 3);
    setting.arq = true;
    let mut cast = Cast::new(&setting);
    let mut first = true;
    // One packet is lost on the Internet and, the first time, on its way to the relay.
    let mut fate = |_: Peer, to: Peer, message: &Message<'_>| match message {
        Message::Source(source) if to.0 >= 200 && source.packet == id(0, 3) => Fate::Lost,
        Message::Copy { source, .. } if source.packet == id(0, 3) && std::mem::take(&mut first) => {
            Fate::Lost
        }
        _ => Fate::Goes,
    };
    cast.run(10, &mut fate);
    // It came too late for its block: the egress relay got the packet itself.
    assert_eq!(cast.arrival_of(id(0, 3)), Some(Arrival::Cache));
    let again = |event: &Event| matches!(event, Event::CopySent { resent: 1, .. });
    assert_eq!(cast.events_of(sender_of(0)).filter(again).count(), 1);
}

#[test]
fn unacknowledged_last_copy_is_resent() {
    let mut setting = Setting::of(Service::Caching, 1);
    setting.arq = true;
    let mut cast = Cast::new(&setting);
    let mut losses = 2;
    let mut fate = |_: Peer, to: Peer, message: &Message<'_>| match message {
        Message::Copy { number: 39, .. } if losses > 0 => {
            losses -= 1;
            Fate::Lost
        }
        Message::Source(source) if to.0 >= 200 && source.packet == id(0, 39) => Fate::Lost,
        _ => Fate::Goes,
    };
    cast.run(40, &mut fate);
    let copies = cast.sent(sender_of(0), INGRESS);
    assert_eq!(copies.iter().filter(|m| matches!(m, Message::Copy { number: 39, .. })).count(), 3);
    assert_eq!(cast.arrival_of(id(0, 39)), Some(Arrival::Cache));
}

#[test]
fn chosen_packets_and_window_end_are_copied() {
    let mut setting = Setting::of(Service::Caching, 1);
    setting.copies = Copies::Chosen { last_after: Some(ms(20)) };
    let mut cast = Cast::new(&setting);
    for class in [Class::Normal, Class::High, Class::Normal, Class::Normal, Class::Normal] {
        cast.send_as(0, class);
        let until = cast.now + ms(5);
        cast.advance(until, &mut losing(&[]));
    }
    cast.advance(at(100), &mut losing(&[]));
    let copies = cast.sent(sender_of(0), INGRESS);
    let copied: Vec<u64> = copies
        .iter()
        .map(|message| match message {
            Message::Copy { source, .. } => source.packet.sequence,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(copied, [1, 4]);
}

#[test]
fn only_chosen_packets_are_copied() {
    let mut setting = Setting::of(Service::Forwarding, 1);
    (setting.paths, setting.copies) = (Paths::Both, Copies::Chosen { last_after: None });
    let mut cast = Cast::new(&setting);
    for class in [Class::Normal, Class::High, Class::Normal] {
        cast.send_as(0, class);
    }
    // The Internet loses the first two.
    cast.settle(&mut |from, _, message| match message {
        Message::Source(source) if from == sender_of(0) && source.packet.sequence < 2 => Fate::Lost,
        _ => Fate::Goes,
    });
    assert_eq!(cast.sent(sender_of(0), INGRESS).len(), 1);
    assert_eq!(cast.arrival_of(id(0, 0)), None);
    assert_eq!(cast.arrival_of(id(0, 1)), Some(Arrival::Overlay));
    // With the overlay path alone all packets go there.
    setting.paths = Paths::Overlay;
    let mut cast = Cast::new(&setting);
    cast.send_as(0, Class::Normal);
    cast.settle(&mut losing(&[]));
    assert_eq!(cast.arrival_of(id(0, 0)), Some(Arrival::Overlay));
}

#[test]
fn lone_packet_in_block_is_displaced() {
    let mut setting = Setting::of(Service::Coding, 1);
    setting.coding.blocks = 2;
    let mut cast = Cast::new(&setting);
    for _ in 0..4 {
        cast.send(0);
    }
    cast.settle(&mut losing(&[]));
    let uncoded: Vec<Event> =
        cast.events_of(INGRESS).filter(|event| matches!(event, Event::Uncoded(_))).collect();
    assert_eq!(uncoded, [Event::Uncoded(id(0, 0)), Event::Uncoded(id(0, 1))]);
    // The others are closed when their timer fires, each with one repair packet: more would be
    // useless.
    cast.advance(at(100), &mut losing(&[]));
    let closed: Vec<Event> =
        cast.events_of(INGRESS).filter(|e| matches!(e, Event::BlockClosed { .. })).collect();
    assert_eq!(closed.len(), 2);
    assert!(closed.iter().all(|event| matches!(
        event,
        Event::BlockClosed {
            scope: Scope::CrossStream,
            closed: Closed::Timer,
            members: 1,
            repairs: 1,
            ..
        }
    )));
}

#[test]
fn block_holds_each_flow_once() {
    let mut cast = Cast::new(&Setting::of(Service::Coding, 5));
    cast.run(20, &mut losing(&[]));
    let mut coded = std::collections::BTreeSet::new();
    for message in cast.sent(INGRESS, EGRESS) {
        // The parser has checked that a block holds no flow twice.
        if let Message::Repair(repair) = message
            && repair.row == 0
        {
            for packet in repair.members.packets() {
                assert!(coded.insert(packet), "{packet:?} is in two blocks");
            }
        }
    }
    assert_eq!(coded.len(), 100, "every packet is in a block");
}

#[test]
fn an_offline_receiver_is_replaced() {
    let mut cast = Cast::new(&Setting::of(Service::Coding, 4));
    // Flow 3's receiver is gone; flow 0 loses every third packet, so that helpers are asked. The
    // first report of that is lost.
    let mut lost = false;
    let mut fate = |from: Peer, to: Peer, message: &Message<'_>| match message {
        Message::Presence { is_online: false, .. } if !std::mem::replace(&mut lost, true) => {
            Fate::Lost
        }
        _ if from == receiver_of(3) || to == receiver_of(3) => Fate::Lost,
        Message::Source(source) if to == receiver_of(0) && source.packet.sequence % 3 == 1 => {
            Fate::Lost
        }
        _ => Fate::Goes,
    };
    cast.run(300, &mut fate);
    let offline = Event::Presence { flow: FlowNumber(3), is_online: false };
    assert!(cast.events_of(INGRESS).any(|event| event == offline));
    let last = cast.sent(INGRESS, EGRESS).into_iter().rev().find_map(|message| match message {
        Message::Repair(repair) => Some(repair.members.packets().collect::<Vec<_>>()),
        _ => None,
    });
    assert!(last.unwrap().iter().all(|packet| packet.flow != FlowNumber(3)));
    // It is online again with its first message, or, where the report of that is lost, with a later
    // one.
    cast.wire.clear();
    let mut lost = false;
    let mut fate = |_: Peer, _: Peer, message: &Message<'_>| match message {
        Message::Presence { is_online: true, .. } if !std::mem::replace(&mut lost, true) => {
            Fate::Lost
        }
        _ => Fate::Goes,
    };
    cast.run(600, &mut fate);
    let online = Event::Presence { flow: FlowNumber(3), is_online: true };
    assert!(cast.events_of(INGRESS).any(|event| event == online));
}

#[test]
fn poisoned_recovery_is_refused() {
    let mut cast = Cast::new(&Setting::of(Service::Coding, 3));
    let mut fate = |_: Peer, to: Peer, message: &Message<'_>| match message {
        Message::Source(source) if to.0 >= 200 && source.packet == id(0, 2) => Fate::Lost,
        Message::HelpAnswer { request, payload } => {
            let mut poisoned = payload.to_vec();
            poisoned[5 + usize::try_from(request.packet.flow.0).unwrap()] ^= 1;
            let mut bytes = Vec::new();
            Message::HelpAnswer { request: *request, payload: &poisoned }.write(&mut bytes);
            Fate::Altered(bytes)
        }
        _ => Fate::Goes,
    };
    cast.run(5, &mut fate);
    assert_eq!(cast.arrival_of(id(0, 2)), None);
    let refused = Event::Dropped(DropReason::NotGenuine);
    assert!(cast.events_of(receiver_of(0)).any(|event| event == refused));
}

#[test]
fn sender_gets_feedback() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 1));
    cast.run(90, &mut losing(&[id(0, 4), id(0, 50)]));
    let feedback = cast.events_of(sender_of(0)).find_map(|event| match event {
        Event::Feedback(feedback) => Some(feedback),
        _ => None,
    });
    let feedback = feedback.unwrap();
    assert_eq!((feedback.expected, feedback.in_time, feedback.lost_by_internet), (90, 90, 2));
}

/// A receiver that tells of more packets than there were is not believed.
#[test]
fn report_of_more_than_was_sent_is_refused() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 1));
    cast.run(10, &mut losing(&[]));
    let flow = FlowNumber(0);
    let mut report = |expected: u64| {
        let (in_time, late, lost_by_internet, recovered) = (expected, 0, 0, [0; 3]);
        let sums = Feedback { flow, expected, in_time, late, lost_by_internet, recovered };
        let sender = &mut cast.senders[0];
        let message = Message::Feedback(Report { begun: 1, sums });
        sender.handle_message(cast.now, receiver_of(0), message);
        std::iter::from_fn(|| sender.poll_event()).last()
    };
    assert_eq!(report(1 << 60), Some(Event::Dropped(DropReason::Contradiction)));
    assert!(matches!(report(10), Some(Event::Feedback(_))));
}

/// Every second report is lost, and none of its counts.
#[test]
fn lost_reports_lose_no_counts() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 1));
    let mut is_report_lost = false;
    let mut fate = |_: Peer, _: Peer, message: &Message<'_>| match message {
        Message::Source(source) if source.packet == id(0, 4) => Fate::Lost,
        Message::Feedback(_) => {
            is_report_lost = !is_report_lost;
            if is_report_lost { Fate::Lost } else { Fate::Goes }
        }
        _ => Fate::Goes,
    };
    cast.run(250, &mut fate);
    cast.advance(cast.now + ms(10_000), &mut fate);
    let known_at = |peer: Peer| {
        cast.events_of(peer).filter_map(|event| match event {
            Event::Feedback(since) => Some([since.expected, since.in_time, since.lost_by_internet]),
            _ => None,
        })
    };
    let sums = |peer| known_at(peer).fold([0; 3], |sums, it| [0, 1, 2].map(|i| sums[i] + it[i]));
    assert_eq!(sums(receiver_of(0)), [250, 249, 1]);
    assert_eq!(sums(sender_of(0)), sums(receiver_of(0)));
    assert!(known_at(sender_of(0)).count() < known_at(receiver_of(0)).count());
}

/// One packet in ten comes 25 ms late, and none is lost.
#[test]
fn reordered_packets_count_as_late() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 1));
    let mut fate = |from: Peer, _: Peer, message: &Message<'_>| match message {
        Message::Source(source) if from == sender_of(0) && source.packet.sequence % 10 == 4 => {
            Fate::Later(vec![ms(25)])
        }
        _ => Fate::Goes,
    };
    cast.run(400, &mut fate);
    cast.advance(cast.now + ms(2000), &mut fate);
    let mut sums = [0; 2];
    for event in cast.events_of(sender_of(0)) {
        if let Event::Feedback(feedback) = event {
            sums = [sums[0] + feedback.expected, sums[1] + feedback.lost_by_internet];
        }
    }
    assert_eq!(sums, [400, 0]);
}

/// The first packets of a flow are lost: it is numbered from zero, so that the first packet that
/// comes shows the loss.
#[test]
fn first_packets_are_recovered() {
    let mut cast = Cast::new(&Setting::of(Service::Caching, 1));
    cast.run(6, &mut losing(&[id(0, 0), id(0, 1)]));
    assert_eq!(cast.arrival_of(id(0, 0)), Some(Arrival::Cache));
    assert_eq!(cast.arrival_of(id(0, 1)), Some(Arrival::Cache));
}

/// A relay acknowledges nothing, and repeated copies stay within the uplink's rate.
#[test]
fn resent_copies_count_for_uplink() {
    let copies_of = |uplink| {
        let config = SenderConfig { arq: Some(Arq::default()), uplink };
        let (mut sender, mut copies) = (Sender::new(config), 0);
        let flow = SenderFlow {
            receiver: Some(receiver_of(0)),
            ingress: Some(INGRESS),
            service: Service::Caching,
            paths: Paths::Both,
            copies: Copies::All,
            worth: Some(ms(2000)),
        };
        sender.set_flow(FlowNumber(0), flow).unwrap();
        // All of them before the first is sent again.
        for _ in 0..40 {
            sender.send(at(0), FlowNumber(0), Class::High, &[7; 916]).unwrap();
        }
        for step in 0..400 {
            sender.handle_timeout(at(10 * step));
            while let Some(transmit) = sender.poll_transmit() {
                let message = Message::parse(transmit.bytes).unwrap();
                copies += usize::from(matches!(message, Message::Copy { .. }));
            }
        }
        copies
    };
    // A thousand bytes each, and 944 bytes of each packet over the Internet.
    assert!(copies_of(None) > 80, "{} of 40", copies_of(None));
    let half = Allowance { per_second: 1, burst: 60_000 + 40 * 944 };
    assert_eq!(copies_of(Some(half)), 60);
}

/// Copies cannot use the part of the uplink that the Internet path takes.
#[test]
fn copies_use_remaining_uplink() {
    // 50 packets a second, of a thousand bytes with all headers, and copies of a little more.
    let copies_of = |service, per_second| {
        let uplink = Some(Allowance { per_second, burst: 16_000 });
        let (mut sender, mut copies) = (Sender::new(SenderConfig { arq: None, uplink }), 0);
        let flow = SenderFlow {
            receiver: Some(receiver_of(0)),
            ingress: Some(INGRESS),
            service,
            paths: Paths::Both,
            copies: Copies::All,
            worth: Some(ms(200)),
        };
        sender.set_flow(FlowNumber(0), flow).unwrap();
        for step in 0..500 {
            sender.send(at(20 * step), FlowNumber(0), Class::Normal, &[7; 972]).unwrap();
            while let Some(transmit) = sender.poll_transmit() {
                let message = Message::parse(transmit.bytes).unwrap();
                copies += u64::from(matches!(message, Message::Copy { .. }));
            }
        }
        copies
    };
    for service in [Service::Caching, Service::Coding, Service::Forwarding] {
        assert_eq!(copies_of(service, 120_000), 500, "{service:?}: there is room for all");
        // A fifth of the traffic may be copies, after the first burst.
        let some = copies_of(service, 60_000);
        assert!((90..125).contains(&some), "{service:?}: {some}");
        let none = copies_of(service, 50_000);
        assert!(none < 20, "{service:?}: {none} copies, and no room for any");
    }
}
