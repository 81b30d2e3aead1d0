//! The state machines of packet services at an endpoint, and their output.
//!
//! A relay serves flows as their ingress relay, their egress relay, or both (`serving`); an
//! endpoint sends and receives them, as `ends` configures the machines here. Neither keeps a thread
//! or a queue for this: input is passed to a state machine at once, and its output leaves with the
//! batch.

use std::cell::RefCell;
use std::collections::BTreeMap;

use tradewind_packet::event::{Arrival, Event};
use tradewind_packet::group::Secret;
use tradewind_packet::id::{FlowNumber, Genuine, PacketId, Peer};
use tradewind_packet::message::Message;
use tradewind_packet::order::Order;
use tradewind_packet::receiver::{Receiver, ReceiverConfig};
use tradewind_packet::sender::{Arq, Sender, SenderConfig};
use tradewind_packet::session::{Link, Now, Opened, PeerId, Sessions};
use tradewind_units::Timestamp;

use super::context::Context;
use super::endpoints::FlowEndpoints;
use super::groups::Joined;
use crate::config::NodeConfig;

/// The link of recovered packets: no path, so nothing is ever answered over it.
const BACK: Link = Link::Overlay(u32::MAX);

/// The flows that begin or end here, and the state machines that send and receive them.
pub(super) struct Services {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) ends: FlowEndpoints,
    /// Incoming flows of groups.
    pub(super) joined: BTreeMap<FlowNumber, Joined>,
    /// Packets that wait for others before them.
    pub(super) order: Order<PeerId, FlowNumber>,
}

/// Conversations that end here, by remote endpoint and number.
type InboundIds = BTreeMap<(PeerId, u32), u32>;

/// The check whether a payload is what the flow's sender sealed as that packet; it keeps no state.
struct Seal<'a> {
    sessions: &'a Sessions,
    ends: &'a FlowEndpoints,
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

impl Services {
    /// Returns state machines without flows.
    pub(super) fn new(now: Now, config: &NodeConfig) -> Self {
        let arq = config.repeats_copies.then(Arq::default);
        let uplink = config.copying.uplink();
        Self {
            sender: Sender::new(SenderConfig { arq, uplink }),
            receiver: Receiver::new(now.steady, ReceiverConfig::default()),
            ends: FlowEndpoints::default(),
            joined: BTreeMap::new(),
            order: Order::default(),
        }
    }

    /// Returns the earliest deadline of the state machines.
    pub(super) fn due(&self) -> Option<Timestamp> {
        let all = [self.sender.poll_timeout(), self.receiver.poll_timeout()];
        let machines = all.into_iter().flatten().map(|(at, _)| at);
        machines.chain(self.order.due()).min()
    }

    /// Runs the state machines' timers; returns whether packets may wait no longer for others.
    pub(super) fn handle_timeout(&mut self, now: Now) -> bool {
        self.sender.handle_timeout(now.steady);
        self.receiver.handle_timeout(now.steady);
        let is_due = self.order.due().is_some_and(|due| due <= now.steady);
        if is_due {
            self.order.handle_timeout(now.steady);
        }
        is_due
    }

    /// Returns whether a message is for a flow that begins or ends here.
    pub(super) fn takes(&self, message: &Message<'_>) -> bool {
        match message {
            Message::Source(source) => self.receiver.has_flow(source.packet.flow),
            Message::Repair(repair) => {
                let flow = repair.members.packets().next().map(|packet| packet.flow);
                flow.is_some_and(|flow| self.receiver.has_flow(flow))
            }
            Message::Recovered { .. }
            | Message::HelpRequest(_)
            | Message::Keepalive { is_answer: true, .. }
            | Message::Acknowledgement(_)
            | Message::Feedback(_) => true,
            _ => false,
        }
    }

    /// Returns whether a message holds packets that a relay has to cache or forward.
    pub(super) fn is_for_relay(&self, message: &Message<'_>) -> bool {
        match message {
            Message::Copy { .. } => true,
            Message::Source(source) => !self.receiver.has_flow(source.packet.flow),
            Message::Repair(repair) => {
                repair.members.packets().all(|packet| !self.receiver.has_flow(packet.flow))
            }
            _ => false,
        }
    }

    /// Passes a message that it takes to its state machine.
    pub(super) fn handle_message(
        &mut self,
        context: &Context,
        inbound: &InboundIds,
        now: Now,
        (from, message): (PeerId, Message<'_>),
    ) {
        let (now, from) = (now.steady, Peer::from(from));
        if let Message::Acknowledgement(_) | Message::Feedback(_) = message {
            return self.sender.handle_message(now, from, message);
        }
        let Self { receiver, ends, joined, .. } = self;
        let sessions = &context.sessions;
        let seal = Seal { sessions, ends, joined, inbound, copy: RefCell::default() };
        receiver.handle_message(now, from, message, &seal);
    }

    /// Records a packet that came by its usual path, sealed as `original`, and was delivered.
    pub(super) fn note_arrival(
        &mut self,
        (context, inbound): (&Context, &InboundIds),
        now: Now,
        (packet, arrival): (PacketId, Arrival),
        original: &[u8],
    ) {
        let Self { receiver, ends, joined, .. } = self;
        let sessions = &context.sessions;
        let seal = Seal { sessions, ends, joined, inbound, copy: RefCell::default() };
        receiver.handle_opened(now.steady, packet, arrival, original, &seal);
    }

    /// Records a duplicate that came over the Internet: the first one may have been recovered,
    /// although the packet was not lost. Returns its conversation.
    pub(super) fn note_duplicate(
        &mut self,
        now: Now,
        peer: PeerId,
        (packet, message): (PacketId, &[u8]),
    ) -> Option<u32> {
        if self.ends.remote_of(packet.flow) != Some(peer) {
            return None;
        }
        self.receiver.handle_duplicate(now.steady, packet);
        match Message::parse(message) {
            Ok(Message::Datagram { conversation, .. } | Message::First { conversation, .. }) => {
                Some(conversation)
            }
            _ => None,
        }
    }

    /// Learns a key of a group that its sender announces; returns whether a relay serves the flow.
    pub(super) fn learn_key(
        &mut self,
        sender: PeerId,
        (flow, epoch, key): (FlowNumber, u8, Secret<'_>),
    ) -> bool {
        let joined = self.joined.entry(flow).or_insert_with(|| Joined::new(sender));
        joined.learn(flow, epoch, key);
        self.ends.is_served(flow)
    }

    /// Sends the receiver's messages.
    pub(super) fn send_reports(&mut self, context: &mut Context) {
        while let Some(sent) = self.receiver.poll_transmit() {
            context.post(sent.to.into(), sent.bytes);
        }
    }

    /// Counts the next event; copies that were sent are returned for their groups.
    pub(super) fn poll_event(&mut self, context: &Context) -> Option<Event> {
        let event = self.sender.poll_event().or_else(|| self.receiver.poll_event())?;
        match event {
            Event::CopySent { packet, resent } => self.ends.note_copy(packet.flow, resent),
            Event::Feedback(report) => self.ends.note_report(&report),
            _ => {}
        }
        context.counts.count(event);
        Some(event)
    }

    /// Sends the sender's packets: sealed payloads as they are over the Internet, copies to the
    /// ingress relay. Then it reports the bytes that have left besides.
    pub(super) fn send_packets(&mut self, context: &mut Context, now: Now) {
        while let Some(sent) = self.sender.poll_transmit() {
            let to = sent.to.into();
            match Message::parse(sent.bytes) {
                Ok(Message::Source(source)) => context.send_internet(to, source.payload),
                _ => {
                    context.post(to, sent.bytes);
                }
            }
        }
        self.sender.note_left(now.steady, context.sockets.take_left());
    }

    /// Opens the next recovered packet, now for good, in `opened`; returns its sender and content.
    pub(super) fn poll_recovered<'a>(
        &mut self,
        context: &mut Context,
        now: Now,
        opened: &'a mut Vec<u8>,
    ) -> Option<Reopened<'a>> {
        let delivery = self.receiver.poll_delivery()?;
        let packet = delivery.packet;
        if let Some(joined) = self.joined.get(&packet.flow) {
            let found = joined.open(packet, delivery.payload, opened);
            let Some((remote, message)) = found else { return Some(Reopened::Useless) };
            return Some(Reopened::OfGroup { remote, packet, message });
        }
        opened.clear();
        opened.extend_from_slice(delivery.payload);
        let Some(Opened { peer, payload }) = context.sessions.handle_datagram(now, BACK, opened)
        else {
            return Some(Reopened::Useless);
        };
        let Ok(Message::Numbered { message, .. }) = Message::parse(&opened[payload.clone()]) else {
            return Some(Reopened::Useless);
        };
        let message = &opened[payload.end - message.len()..payload.end];
        Some(Reopened::OfPeer { remote: peer, packet, message })
    }
}

/// A recovered packet once it was opened: its sender, and the message of a conversation in it.
pub(super) enum Reopened<'a> {
    /// It was sealed in the session with its sender.
    OfPeer { remote: PeerId, packet: PacketId, message: &'a [u8] },
    /// It was sealed for all members of a group.
    OfGroup { remote: PeerId, packet: PacketId, message: &'a [u8] },
    /// It cannot be opened.
    Useless,
}
