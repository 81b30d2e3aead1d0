//! All machines of some flows, joined by wires: each test chooses which datagrams are lost or
//! delayed.

#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::{BTreeMap, BTreeSet};

use tradewind_packet::egress::{Egress, EgressConfig, EgressFlow};
use tradewind_packet::event::{Arrival, Event};
use tradewind_packet::id::{FlowNumber, Genuine, PacketId, Peer, Tenant};
use tradewind_packet::ingress::{
    Acknowledging, Coding, InStream, Ingress, IngressConfig, IngressFlow, Sharing,
};
use tradewind_packet::message::{Class, Message, Service};
use tradewind_packet::receiver::{Receiver, ReceiverConfig, ReceiverFlow};
use tradewind_packet::sender::{Arq, Copies, Paths, Sender, SenderConfig, SenderFlow};
use tradewind_units::{Duration, Timestamp};

pub const INGRESS: Peer = Peer(1);
pub const EGRESS: Peer = Peer(2);

/// The most rounds of messages at one time. Chosen: the longest exchange, a request, help and the
/// recovered packet, is shorter.
const MAX_ROUNDS: u32 = 64;

pub fn sender_of(flow: u64) -> Peer {
    Peer(100 + u32::try_from(flow).unwrap())
}

pub fn receiver_of(flow: u64) -> Peer {
    Peer(200 + u32::try_from(flow).unwrap())
}

pub fn id(flow: u64, sequence: u64) -> PacketId {
    PacketId { flow: FlowNumber(flow), sequence }
}

pub fn egress_flow(flow: u64) -> EgressFlow {
    EgressFlow { ingress: INGRESS, receiver: receiver_of(flow), tenant: Tenant(1) }
}

pub fn receiver_flow(flow: u64, round_trip: Duration, recovery_deadline: Duration) -> ReceiverFlow {
    let (sender, egress, service) = (sender_of(flow), Some(EGRESS), Service::Coding);
    ReceiverFlow { sender, egress, service, round_trip, recovery_deadline }
}

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub fn at(millis: u64) -> Timestamp {
    Timestamp::ZERO + ms(millis)
}

/// Returns the sealed payload of a packet: different for each packet, of different lengths.
pub fn payload(packet: PacketId) -> Vec<u8> {
    let mixed = packet.sequence.wrapping_mul(17) ^ packet.flow.0.wrapping_mul(101);
    (0..20 + mixed % 50).map(|n| (n * 31).wrapping_add(mixed) as u8).collect()
}

/// The check of payloads against all that senders have sealed.
struct Seal<'a>(&'a BTreeSet<PacketId>);

impl Genuine for Seal<'_> {
    fn is_genuine(&self, packet: PacketId, bytes: &[u8]) -> bool {
        self.0.contains(&packet) && bytes == payload(packet)
    }
}

/// The fate of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    Goes,
    Lost,
    /// It is delivered as these bytes.
    Altered(Vec<u8>),
    /// It is delivered with these delays, once for each.
    Later(Vec<Duration>),
}

/// A datagram: from, to, bytes.
pub type Datagram = (Peer, Peer, Vec<u8>);

pub struct Cast {
    pub now: Timestamp,
    pub senders: Vec<Sender>,
    pub ingress: Ingress,
    pub egress: Egress,
    pub receivers: Vec<Receiver>,
    /// The packets that senders have sealed.
    pub sealed: BTreeSet<PacketId>,
    /// The packets that receivers delivered, in order.
    pub delivered: Vec<(PacketId, Arrival, bool)>,
    pub events: Vec<(Peer, Event)>,
    /// Every datagram that was sent, and every one that was handed over, and when.
    pub wire: Vec<Datagram>,
    pub arrived: Vec<(Timestamp, Datagram)>,
    /// Datagrams in flight by arrival time, place on the wire, and number among their copies.
    in_flight: BTreeMap<(Timestamp, usize, usize), Datagram>,
}

pub struct Setting {
    pub flows: u64,
    pub service: Service,
    pub paths: Paths,
    pub copies: Copies,
    pub coding: Coding,
    pub in_stream: Option<InStream>,
    pub arq: bool,
    pub egress: EgressConfig,
    pub receiver: ReceiverConfig,
}

impl Setting {
    pub fn of(service: Service, flows: u64) -> Self {
        let coding = Coding { packets: 3, repairs: 2, ..Coding::default() };
        Self {
            flows,
            service,
            paths: Paths::Overlay,
            copies: Copies::All,
            coding,
            in_stream: None,
            arq: false,
            egress: EgressConfig::default(),
            receiver: ReceiverConfig::default(),
        }
    }

    pub fn ingress(&self, first_block: u64) -> Ingress {
        let acknowledging = self.arq.then(Acknowledging::default);
        Ingress::new(IngressConfig { coding: self.coding, acknowledging, first_block })
    }

    pub fn ingress_flow(&self, flow: u64) -> IngressFlow {
        IngressFlow {
            sender: sender_of(flow),
            egress: EGRESS,
            tenant: Tenant(1),
            sharing: Sharing::Own,
            most: Service::Forwarding,
            in_stream: self.in_stream,
        }
    }
}

impl Cast {
    pub fn new(setting: &Setting) -> Self {
        let mut ingress = setting.ingress(7);
        let mut egress = Egress::new(setting.egress);
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for flow in 0..setting.flows {
            let number = FlowNumber(flow);
            let arq = setting.arq.then(Arq::default);
            let mut sender = Sender::new(SenderConfig { arq, uplink: None });
            let at_sender = SenderFlow {
                receiver: Some(receiver_of(flow)),
                ingress: Some(INGRESS),
                service: setting.service,
                paths: setting.paths,
                copies: setting.copies,
                worth: None,
            };
            sender.set_flow(number, at_sender).unwrap();
            ingress.set_flow(number, setting.ingress_flow(flow)).unwrap();
            egress.set_flow(number, egress_flow(flow)).unwrap();
            let mut receiver = Receiver::new(Timestamp::ZERO, setting.receiver);
            let at_receiver = receiver_flow(flow, ms(100), ms(100));
            let at_receiver = ReceiverFlow { service: setting.service, ..at_receiver };
            receiver.add_flow(number, at_receiver).unwrap();
            senders.push(sender);
            receivers.push(receiver);
        }
        Self {
            now: Timestamp::ZERO,
            senders,
            ingress,
            egress,
            receivers,
            sealed: BTreeSet::new(),
            delivered: Vec::new(),
            events: Vec::new(),
            wire: Vec::new(),
            arrived: Vec::new(),
            in_flight: BTreeMap::new(),
        }
    }

    /// Sends the next packet of a flow.
    pub fn send(&mut self, flow: u64) -> PacketId {
        self.send_as(flow, Class::Normal)
    }

    pub fn send_as(&mut self, flow: u64, class: Class) -> PacketId {
        let sender = &mut self.senders[usize::try_from(flow).unwrap()];
        let packet = sender.next_packet(FlowNumber(flow)).unwrap();
        self.sealed.insert(packet);
        sender.send(self.now, FlowNumber(flow), class, &payload(packet)).unwrap()
    }

    /// Carries all datagrams of the current time.
    pub fn settle(&mut self, fate: &mut dyn FnMut(Peer, Peer, &Message<'_>) -> Fate) {
        for round in 0.. {
            assert!(round < MAX_ROUNDS, "messages without end");
            let mut sent = Vec::new();
            for (flow, sender) in (0..).zip(&mut self.senders) {
                while let Some(transmit) = sender.poll_transmit() {
                    sent.push((sender_of(flow), transmit.to, transmit.bytes.to_vec()));
                }
            }
            while let Some(transmit) = self.ingress.poll_transmit() {
                sent.push((INGRESS, transmit.to, transmit.bytes.to_vec()));
            }
            while let Some(transmit) = self.egress.poll_transmit() {
                sent.push((EGRESS, transmit.to, transmit.bytes.to_vec()));
            }
            for (flow, receiver) in (0..).zip(&mut self.receivers) {
                while let Some(transmit) = receiver.poll_transmit() {
                    sent.push((receiver_of(flow), transmit.to, transmit.bytes.to_vec()));
                }
            }
            if sent.is_empty() {
                break;
            }
            for (from, to, bytes) in sent {
                let message = Message::parse(&bytes).expect("machines speak well");
                match fate(from, to, &message) {
                    Fate::Goes => self.hand_over(from, to, &bytes),
                    Fate::Altered(altered) => self.hand_over(from, to, &altered),
                    Fate::Later(spans) => {
                        for (copy, span) in spans.into_iter().enumerate() {
                            let place = (self.now + span, self.wire.len(), copy);
                            self.in_flight.insert(place, (from, to, bytes.clone()));
                        }
                    }
                    Fate::Lost => {}
                }
                self.wire.push((from, to, bytes));
            }
        }
        self.collect();
    }

    pub fn hand_over(&mut self, from: Peer, to: Peer, bytes: &[u8]) {
        let place = |first: u32| usize::try_from(to.0 - first).unwrap();
        match to {
            INGRESS => self.ingress.handle_datagram(self.now, from, bytes),
            EGRESS => self.egress.handle_datagram(self.now, from, bytes),
            Peer(100..200) => self.senders[place(100)].handle_datagram(self.now, from, bytes),
            _ => {
                let seal = Seal(&self.sealed);
                self.receivers[place(200)].handle_datagram(self.now, from, bytes, &seal);
            }
        }
        self.arrived.push((self.now, (from, to, bytes.to_vec())));
    }

    fn collect(&mut self) {
        for (flow, sender) in (0..).zip(&mut self.senders) {
            let events = std::iter::from_fn(|| sender.poll_event());
            self.events.extend(events.map(|event| (sender_of(flow), event)));
        }
        let events = std::iter::from_fn(|| self.ingress.poll_event());
        self.events.extend(events.map(|event| (INGRESS, event)));
        let events = std::iter::from_fn(|| self.egress.poll_event());
        self.events.extend(events.map(|event| (EGRESS, event)));
        for (flow, receiver) in (0..).zip(&mut self.receivers) {
            let events = std::iter::from_fn(|| receiver.poll_event());
            self.events.extend(events.map(|event| (receiver_of(flow), event)));
            while let Some(delivery) = receiver.poll_delivery() {
                assert_eq!(delivery.payload, payload(delivery.packet), "altered");
                self.delivered.push((delivery.packet, delivery.arrival, delivery.is_late));
            }
        }
    }

    /// Returns the next deadline of any machine.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let senders = self.senders.iter().filter_map(Sender::poll_timeout);
        let receivers = self.receivers.iter().filter_map(Receiver::poll_timeout);
        let relays = self.ingress.poll_timeout().into_iter().chain(self.egress.poll_timeout());
        senders.chain(receivers).chain(relays).map(|(at, _)| at).min()
    }

    /// Goes on to `until`, and runs the timers that are due on the way.
    pub fn advance(
        &mut self,
        until: Timestamp,
        fate: &mut dyn FnMut(Peer, Peer, &Message<'_>) -> Fate,
    ) {
        self.settle(fate);
        loop {
            let arrival = self.in_flight.keys().next().map(|(at, ..)| *at);
            let due = self.next_deadline().into_iter().chain(arrival).min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.now = self.now.max(due);
            while let Some(first) = self.in_flight.first_entry() {
                if first.key().0 > self.now {
                    break;
                }
                let (from, to, bytes) = first.remove();
                self.hand_over(from, to, &bytes);
            }
            for sender in &mut self.senders {
                sender.handle_timeout(self.now);
            }
            self.ingress.handle_timeout(self.now);
            self.egress.handle_timeout(self.now);
            for receiver in &mut self.receivers {
                receiver.handle_timeout(self.now);
            }
            let next = self.next_deadline();
            assert!(next.is_none_or(|next| next > self.now), "what was due is due again: {next:?}");
            self.settle(fate);
        }
        self.now = until;
    }

    /// Sends `packets` of each flow, 10 ms apart, and waits half a second.
    pub fn run(&mut self, packets: u64, fate: &mut dyn FnMut(Peer, Peer, &Message<'_>) -> Fate) {
        for _ in 0..packets {
            for flow in 0..self.senders.len() as u64 {
                self.send(flow);
            }
            let until = self.now + ms(10);
            self.advance(until, fate);
        }
        let until = self.now + ms(500);
        self.advance(until, fate);
    }

    /// Returns the path on which a packet was delivered.
    pub fn arrival_of(&self, packet: PacketId) -> Option<Arrival> {
        self.delivered
            .iter()
            .find(|(delivered, ..)| *delivered == packet)
            .map(|(_, arrival, _)| *arrival)
    }

    pub fn events_of(&self, peer: Peer) -> impl Iterator<Item = Event> + '_ {
        self.events.iter().filter(move |(who, _)| *who == peer).map(|(_, event)| *event)
    }

    /// Returns the messages that `from` sent to `to`.
    pub fn sent(&self, from: Peer, to: Peer) -> Vec<Message<'_>> {
        let between = self.wire.iter().filter(|(f, t, _)| (*f, *t) == (from, to));
        between.map(|(.., bytes)| Message::parse(bytes).unwrap()).collect()
    }
}

/// Loses these source packets on the Internet path, and nothing else.
pub fn losing(lost: &[PacketId]) -> impl FnMut(Peer, Peer, &Message<'_>) -> Fate + '_ {
    move |_, to, message| match message {
        Message::Source(source) if to.0 >= 200 && lost.contains(&source.packet) => Fate::Lost,
        _ => Fate::Goes,
    }
}
