//! The state machines of packet services on this worker, and their output.
//!
//! A relay serves flows as their ingress relay, their egress relay, or both (`serving`); an
//! endpoint sends and receives them (`ends`). Neither keeps a thread or a queue for this: input is
//! passed to a state machine at once, and its output leaves with the batch.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;

use tradewind_grant::PublicIdentity;
use tradewind_net::entropy;
use tradewind_packet::egress::{Egress, EgressConfig};
use tradewind_packet::event::{Arrival, Event};
use tradewind_packet::id::{FlowNumber, Genuine, PacketId, Peer};
use tradewind_packet::ingress::{Acknowledging, Beside, Ingress, IngressConfig};
use tradewind_packet::message::Message;
use tradewind_packet::receiver::{Receiver, ReceiverConfig};
use tradewind_packet::sender::{Arq, Sender, SenderConfig};
use tradewind_packet::session::{Link, Now, Opened, PeerId, Sessions};
use tradewind_units::Timestamp;

use super::Engine;
use super::ends::Ends;
use super::groups::Joined;
use super::serving::{Served, Tenancy, charge};
use crate::config::NodeConfig;
use crate::counts::{Counts, add};

/// This node itself, where one relay is both relays of a flow. No session has this number.
pub(super) const SELF: Peer = Peer(u32::MAX);
/// The link of recovered packets: no path, so nothing is ever answered over it.
const BACK: Link = Link::Overlay(u32::MAX);

/// The state machines of one worker.
pub(super) struct Services {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) ingress: Ingress,
    pub(super) egress: Egress,
    pub(super) ends: Ends,
    /// Incoming flows of groups.
    pub(super) joined: BTreeMap<FlowNumber, Joined>,
    pub(super) served: BTreeMap<FlowNumber, Served>,
    pub(super) tenants: BTreeMap<PublicIdentity, Tenancy>,
    pub(super) next_tenant: u32,
}

impl Services {
    /// Returns the state machines.
    ///
    /// # Errors
    /// When the system has no entropy.
    pub(super) fn new(now: Now, config: &NodeConfig) -> io::Result<Self> {
        let arq = config.repeats_copies.then(Arq::default);
        let uplink = config.copying.uplink();
        Ok(Self {
            sender: Sender::new(SenderConfig { arq, uplink }),
            receiver: Receiver::new(now.steady, ReceiverConfig::default()),
            ingress: Ingress::new(IngressConfig {
                coding: config.services.coding,
                acknowledging: Some(Acknowledging::default()),
                // Another process may have served under this identity before, by another clock.
                first_block: u64::from_be_bytes(entropy::bytes()?) / 2,
            }),
            egress: Egress::new(EgressConfig::default()),
            ends: Ends::default(),
            joined: BTreeMap::new(),
            served: BTreeMap::new(),
            tenants: BTreeMap::new(),
            next_tenant: 0,
        })
    }

    /// Returns the earliest deadline of the state machines.
    fn due(&self) -> Option<Timestamp> {
        let all = [
            self.sender.poll_timeout(),
            self.receiver.poll_timeout(),
            self.ingress.poll_timeout(),
            self.egress.poll_timeout(),
        ];
        all.into_iter().flatten().map(|(at, _)| at).min()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.sender
            .poll_event()
            .or_else(|| self.receiver.poll_event())
            .or_else(|| self.ingress.poll_event())
            .or_else(|| self.egress.poll_event())
    }
}

/// The check whether a payload is what the flow's sender sealed as that packet; it keeps no state.
struct Seal<'a> {
    sessions: &'a Sessions,
    ends: &'a Ends,
    joined: &'a BTreeMap<FlowNumber, Joined>,
    /// Conversations that end here.
    inbound: &'a BTreeMap<(PeerId, u32), u32>,
    copy: RefCell<Vec<u8>>,
}

impl Genuine for Seal<'_> {
    fn is_genuine(&self, packet: PacketId, payload: &[u8]) -> bool {
        let mut copy = self.copy.borrow_mut();
        if let Some(joined) = self.joined.get(&packet.flow) {
            let Some((remote, message)) = joined.open(packet, payload, &mut copy) else {
                return false;
            };
            // A conversation that is not known here has to begin in the session: this copy must not
            // count as that packet.
            return matches!(
                Message::parse(message),
                Ok(Message::Datagram { conversation, .. })
                    if self.inbound.contains_key(&(remote, conversation))
            );
        }
        let Some(Opened { peer, payload }) = self.sessions.peek(payload, &mut copy) else {
            return false;
        };
        let is_named = matches!(
            Message::parse(&copy[payload]),
            Ok(Message::Numbered { packet: named, .. }) if named == packet
        );
        is_named && self.ends.remote_of(packet.flow) == Some(peer)
    }
}

impl Engine {
    /// Returns the earliest deadline before the next tick.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        [self.services.due(), self.order.due()].into_iter().flatten().min()
    }

    /// Runs the state machines' timers.
    pub(crate) fn time_out(&mut self, now: Now) {
        let services = &mut self.services;
        services.sender.handle_timeout(now.steady);
        services.receiver.handle_timeout(now.steady);
        services.ingress.handle_timeout(now.steady);
        services.egress.handle_timeout(now.steady);
        if self.order.due().is_some_and(|due| due <= now.steady) {
            self.order.handle_timeout(now.steady);
            self.deliver_ready(now);
        }
    }

    /// Returns whether a message holds packets that a relay has to cache or forward.
    fn is_for_relay(&self, message: &Message<'_>) -> bool {
        let receiver = &self.services.receiver;
        match message {
            Message::Copy { .. } => true,
            Message::Source(source) => !receiver.has_flow(source.packet.flow),
            Message::Repair(repair) => {
                repair.members.packets().all(|packet| !receiver.has_flow(packet.flow))
            }
            _ => false,
        }
    }

    /// Passes a service's message to its state machine.
    pub(super) fn take_service(&mut self, now: Now, from: PeerId, message: Message<'_>) {
        if self.has_waited_long() && self.is_for_relay(&message) {
            return add(&self.counts.stale, 1);
        }
        let (now, from) = (now.steady, Peer::from(from));
        let Services { sender, receiver, ingress, egress, ends, joined, .. } = &mut self.services;
        let (sessions, inbound) = (&self.sessions, &self.inbound_ids);
        let seal = Seal { sessions, ends, joined, inbound, copy: RefCell::default() };
        match message {
            Message::Copy { .. } => {
                let beside = Beside { name: SELF, egress };
                ingress.handle_message_beside(now, from, message, beside);
            }
            Message::Presence { .. } => ingress.handle_message(now, from, message),
            Message::Source(source) if receiver.has_flow(source.packet.flow) => {
                receiver.handle_message(now, from, message, &seal);
            }
            Message::Source(_) | Message::Nack(_) | Message::HelpAnswer { .. } => {
                egress.handle_message(now, from, message);
            }
            Message::Keepalive { is_answer: false, .. } => {
                egress.handle_message(now, from, message);
            }
            Message::Repair(repair) => {
                let flow = repair.members.packets().next().map(|packet| packet.flow);
                if flow.is_some_and(|flow| receiver.has_flow(flow)) {
                    receiver.handle_message(now, from, message, &seal);
                } else {
                    egress.handle_message(now, from, message);
                }
            }
            Message::Recovered { .. }
            | Message::HelpRequest(_)
            | Message::Keepalive { is_answer: true, .. } => {
                receiver.handle_message(now, from, message, &seal);
            }
            Message::Acknowledgement(_) | Message::Feedback(_) => {
                sender.handle_message(now, from, message);
            }
            _ => add(&self.counts.dropped, 1),
        }
    }

    /// Records a packet that came by its usual path, as `self.original`, and was delivered.
    pub(super) fn note_arrival(&mut self, now: Now, packet: PacketId, way: Arrival) {
        let Services { receiver, ends, joined, .. } = &mut self.services;
        let (sessions, inbound) = (&self.sessions, &self.inbound_ids);
        let seal = Seal { sessions, ends, joined, inbound, copy: RefCell::default() };
        receiver.handle_opened(now.steady, packet, way, &self.original, &seal);
    }

    /// Handles a duplicate that came over the Internet: the first one may have been recovered,
    /// although the packet was not lost.
    pub(super) fn note_duplicate(&mut self, now: Now, peer: PeerId, message: &[u8]) {
        if let Ok(Message::Numbered { packet, message }) = Message::parse(message)
            && self.services.ends.remote_of(packet.flow) == Some(peer)
        {
            self.services.receiver.handle_duplicate(now.steady, packet);
            if let Ok(
                Message::Datagram { conversation, .. } | Message::First { conversation, .. },
            ) = Message::parse(message)
            {
                self.marks.take_back((peer, conversation), packet);
            }
        }
    }

    /// Sends the output of the state machines, delivers recovered packets, and counts.
    pub(super) fn drive(&mut self, now: Now) {
        self.send_packets(now);
        let Self { services, sockets, sessions, .. } = self;
        let Services { ingress, egress, receiver, ends, served, .. } = services;
        while let Some(sent) = ingress.poll_transmit() {
            if sent.to == SELF {
                egress.handle_datagram(now.steady, SELF, sent.bytes);
            } else {
                charge(served, 0, sent.bytes);
                Self::post(sockets, sessions, sent.to.into(), sent.bytes);
            }
        }
        while let Some(sent) = egress.poll_transmit() {
            if sent.to == SELF {
                ingress.handle_datagram(now.steady, SELF, sent.bytes);
            } else {
                charge(served, 1, sent.bytes);
                Self::post(sockets, sessions, sent.to.into(), sent.bytes);
            }
        }
        while let Some(sent) = receiver.poll_transmit() {
            if let Ok(Message::Feedback(report)) = Message::parse(sent.bytes) {
                ends.note_report(&report);
            }
            Self::post(sockets, sessions, sent.to.into(), sent.bytes);
        }
        self.hand_over_recovered(now);
        while let Some(event) = self.services.poll_event() {
            match event {
                Event::CopySent { packet, resent } => {
                    self.services.ends.note_copy(packet.flow, resent);
                    self.note_group_copy(packet.flow, resent);
                }
                Event::Feedback(report) => self.services.ends.note_report(&report),
                _ => {}
            }
            count(&self.counts, event);
        }
    }

    /// Sends the sender's packets: sealed payloads as they are over the Internet, copies to the
    /// ingress relay. Then it reports the bytes that have left besides.
    pub(super) fn send_packets(&mut self, now: Now) {
        let Self { services, sockets, sessions, .. } = self;
        while let Some(sent) = services.sender.poll_transmit() {
            let to = sent.to.into();
            match Message::parse(sent.bytes) {
                Ok(Message::Source(source)) => {
                    Self::send_internet(sockets, sessions, to, source.payload);
                }
                _ => {
                    Self::post(sockets, sessions, to, sent.bytes);
                }
            }
        }
        services.sender.note_left(now.steady, sockets.take_left());
    }

    /// Opens recovered packets, now for good, and delivers them to their applications.
    fn hand_over_recovered(&mut self, now: Now) {
        let mut sealed = std::mem::take(&mut self.original);
        while let Some(delivery) = self.services.receiver.poll_delivery() {
            let packet = delivery.packet;
            if let Some(joined) = self.services.joined.get(&delivery.packet.flow) {
                let opened = joined.open(delivery.packet, delivery.payload, &mut sealed);
                if let Some((remote, message)) = opened {
                    self.converse(now, remote, packet, message);
                }
                continue;
            }
            sealed.clear();
            sealed.extend_from_slice(delivery.payload);
            let opened = self.sessions.handle_datagram(now, BACK, &mut sealed);
            if let Some(Opened { peer, payload }) = opened
                && let Ok(Message::Numbered { message, .. }) =
                    Message::parse(&sealed[payload.clone()])
            {
                let message = &sealed[payload.end - message.len()..payload.end];
                self.owe_mark(now, peer, packet, message);
                self.converse(now, peer, packet, message);
            }
        }
        self.original = sealed;
    }
}

/// Counts an event; the metrics are based on events alone.
fn count(counts: &Counts, event: Event) {
    let one = |counter| add(counter, 1);
    match event {
        Event::Delivered { arrival, is_late, .. } => {
            if is_late {
                one(&counts.late);
            }
            match arrival {
                Arrival::Internet | Arrival::Overlay => {}
                Arrival::Cache => one(&counts.recovered_cache),
                Arrival::InStream => one(&counts.recovered_in_stream),
                Arrival::CrossStream => one(&counts.recovered_cross_stream),
            }
        }
        Event::Lost(_) => one(&counts.lost),
        Event::CopySent { .. } => one(&counts.copied),
        Event::NackSent { items, .. } => add(&counts.asked, items.into()),
        Event::Answered { .. } => one(&counts.answered),
        Event::Helped(_) => one(&counts.lent),
        Event::Cached(_) => one(&counts.cached),
        Event::BlockClosed { repairs, .. } => add(&counts.repairs, repairs.into()),
        Event::Dropped(_) => one(&counts.dropped),
        _ => {}
    }
}
