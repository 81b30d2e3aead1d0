//! Allocations for an arriving packet: none, once the machines have grown to their usual size.
//! Recovered packets need some.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod cast;
mod flows;

use allocation_counter::{AllocationInfo, measure};
use tradewind_packet::egress::Egress;
use tradewind_packet::id::{FlowNumber, Genuine, PacketId, Peer};
use tradewind_packet::ingress::{InStream, Ingress};
use tradewind_packet::message::{Class, Service};
use tradewind_packet::receiver::{Receiver, ReceiverConfig};
use tradewind_packet::sender::{Paths, Sender};
use tradewind_packet::session::{HEADER_BYTES, OVERHEAD, PASSED_BYTES};
use tradewind_units::Timestamp;

use flows::{Cast, EGRESS, INGRESS, Setting, ms, receiver_of, sender_of};

/// Packets of each flow until all machines hold a second's worth, and twice that.
const FIRST: u64 = 500;
/// Packets of each flow that are measured.
const MEASURED: u64 = 500;
const FLOWS: u64 = 6;
const PAYLOAD: [u8; 700] = [7; 700];

struct Anything;

impl Genuine for Anything {
    fn is_genuine(&self, _: PacketId, _: &[u8]) -> bool {
        true
    }
}

/// The machines of some flows, whose datagrams arrive at once; none of them is recorded.
struct Wired {
    now: Timestamp,
    senders: Vec<Sender>,
    ingress: Ingress,
    egress: Egress,
    receivers: Vec<Receiver>,
    delivered: u64,
}

fn place(peer: Peer, first: u32) -> usize {
    usize::try_from(peer.0 - first).unwrap()
}

impl Wired {
    fn of(setting: &Setting) -> Self {
        let Cast { now, senders, ingress, egress, receivers, .. } = Cast::new(setting);
        Self { now, senders, ingress, egress, receivers, delivered: 0 }
    }

    /// Sends a packet of each flow each 10 ms.
    fn run(&mut self, packets: u64) {
        for _ in 0..packets {
            for (flow, sender) in (0..).map(FlowNumber).zip(&mut self.senders) {
                sender.send(self.now, flow, Class::Normal, &PAYLOAD).unwrap();
            }
            for _ in 0..10 {
                self.settle();
                self.now = self.now + ms(1);
                self.senders.iter_mut().for_each(|sender| sender.handle_timeout(self.now));
                self.ingress.handle_timeout(self.now);
                self.egress.handle_timeout(self.now);
                self.receivers.iter_mut().for_each(|receiver| receiver.handle_timeout(self.now));
            }
        }
    }

    /// Hands over all waiting datagrams, until there are none.
    fn settle(&mut self) {
        while self.carry() {}
        for sender in &mut self.senders {
            while sender.poll_event().is_some() {}
        }
        while self.ingress.poll_event().is_some() || self.egress.poll_event().is_some() {}
        for receiver in &mut self.receivers {
            while receiver.poll_event().is_some() {}
            while receiver.poll_delivery().is_some() {
                self.delivered += 1;
            }
        }
    }

    /// Hands over waiting datagrams; returns whether there were any.
    fn carry(&mut self) -> bool {
        let Self { now, senders, ingress, egress, receivers, .. } = self;
        let (now, mut has_carried) = (*now, false);
        for (from, sender) in (0..).map(sender_of).zip(senders.iter_mut()) {
            while let Some(sent) = sender.poll_transmit() {
                has_carried = true;
                match sent.to {
                    INGRESS => ingress.handle_datagram(now, from, sent.bytes),
                    to => {
                        receivers[place(to, 200)].handle_datagram(now, from, sent.bytes, &Anything)
                    }
                }
            }
        }
        while let Some(sent) = ingress.poll_transmit() {
            has_carried = true;
            match sent.to {
                EGRESS => egress.handle_datagram(now, INGRESS, sent.bytes),
                to => senders[place(to, 100)].handle_datagram(now, INGRESS, sent.bytes),
            }
        }
        while let Some(sent) = egress.poll_transmit() {
            has_carried = true;
            match sent.to {
                INGRESS => ingress.handle_datagram(now, EGRESS, sent.bytes),
                to => {
                    receivers[place(to, 200)].handle_datagram(now, EGRESS, sent.bytes, &Anything);
                }
            }
        }
        for (from, receiver) in (0..).map(receiver_of).zip(receivers.iter_mut()) {
            while let Some(sent) = receiver.poll_transmit() {
                has_carried = true;
                match sent.to {
                    EGRESS => egress.handle_datagram(now, from, sent.bytes),
                    to => senders[place(to, 100)].handle_datagram(now, from, sent.bytes),
                }
            }
        }
        has_carried
    }
}

fn allocations(service: Service, paths: Paths) -> AllocationInfo {
    let mut setting = Setting::of(service, FLOWS);
    (setting.paths, setting.arq) = (paths, true);
    setting.in_stream = Some(InStream { packets: 5, repairs: 1 });
    // A keepalive once in some seconds belongs to no packet.
    setting.receiver = ReceiverConfig { keepalive_every: None, ..ReceiverConfig::default() };
    let mut wired = Wired::of(&setting);
    wired.run(FIRST);
    let before = wired.delivered;
    let allocations = measure(|| wired.run(MEASURED));
    assert_eq!(wired.delivered - before, FLOWS * MEASURED, "{service:?}");
    let held = wired.egress.held();
    assert_eq!(held.blocks > 0, service == Service::Coding, "{held:?}");
    assert_eq!(held.packets > 0, service == Service::Caching, "{held:?}");
    allocations
}

#[test]
fn machines_do_not_allocate_per_packet() {
    let all = [
        (Service::Direct, Paths::Overlay),
        (Service::Forwarding, Paths::Overlay),
        (Service::Forwarding, Paths::Both),
        (Service::Caching, Paths::Both),
        (Service::Coding, Paths::Both),
    ];
    for (service, paths) in all {
        let allocations = allocations(service, paths);
        assert_eq!(allocations.count_total, 0, "{service:?}, {paths:?}: {allocations:?}");
    }
}

#[test]
fn sessions_do_not_allocate_per_packet() {
    let mut pair = cast::Pair::established();
    let peer_there = pair.peer_at_relay();
    let at = cast::at(30);
    let (mut whole, mut passed) = ([0; OVERHEAD + 700], [0; PASSED_BYTES + 700]);
    let mut carry = |packets: u64| {
        for _ in 0..packets {
            pair.endpoint.seal(pair.peer, &mut whole).unwrap();
            let opened = pair.relay.handle_datagram(at, cast::link(cast::ENDPOINT), &mut whole);
            assert_eq!(opened.unwrap().payload.start, HEADER_BYTES);
            let length = passed.len();
            pair.relay.pass(peer_there, 7, &mut passed, length).unwrap();
            let run = pair.endpoint.handle_passed(at, cast::link(cast::RELAY), &passed, length);
            assert_eq!(run.unwrap().from, Some((pair.peer, 7)));
        }
    };
    carry(10);
    let allocations = measure(|| carry(1000));
    assert_eq!(allocations.count_total, 0, "{allocations:?}");
}

#[test]
fn allocations_are_counted() {
    let allocations = measure(|| drop(std::hint::black_box(Box::new([0_u8; 100]))));
    assert_eq!(allocations.count_total, 1);
}
