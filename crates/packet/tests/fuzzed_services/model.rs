//! The properties that must always hold: the model keeps the set of packets sent, who has which of
//! them, and which were requested of each.
//!
//! - Receivers deliver packets as they were sent, each once. (The cast checks that they are as they
//!   were sent.)
//! - A receiver lends packets that it has delivered, and for no longer than it says. An egress
//!   relay returns from its cache the packets that its ingress relay sent there, as they were, and
//!   no older than the cache keeps.
//! - Nobody sends more than its inputs and its budgets allow: requests, answers to them, help,
//!   acknowledgements, copies, repair packets.
//! - The amounts kept stay within their bounds.

use std::collections::BTreeMap;

use tradewind_packet::budget::Allowance;
use tradewind_packet::egress::{EgressConfig, MAX_ANSWERS};
use tradewind_packet::id::{PacketId, Peer};
use tradewind_packet::message::{Message, RecoverySource, Service};
use tradewind_packet::receiver::ReceiverConfig;
use tradewind_packet::sender::Arq;
use tradewind_units::Timestamp;

use crate::flows::*;

/// The most that a receiver keeps for one flow: missing packets, and blocks that it may solve.
const MAX_MISSING: usize = 512;
const MAX_OPEN_BLOCKS: usize = 16;
/// The most requests of others that a receiver remembers.
const MAX_WAITING: usize = 1024;

/// A kind of message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Source,
    Copy,
    Repair,
    Nack,
    HelpRequest,
    HelpAnswer,
    Recovered,
    Acknowledgement,
    Feedback,
    Presence,
    Ping,
    Pong,
    Other,
}

fn kind_of(message: &Message<'_>) -> Kind {
    match message {
        Message::Source(_) => Kind::Source,
        Message::Copy { .. } => Kind::Copy,
        Message::Repair(_) => Kind::Repair,
        Message::Nack(_) => Kind::Nack,
        Message::HelpRequest(_) => Kind::HelpRequest,
        Message::HelpAnswer { .. } => Kind::HelpAnswer,
        Message::Recovered { .. } => Kind::Recovered,
        Message::Acknowledgement(_) => Kind::Acknowledgement,
        Message::Feedback(_) => Kind::Feedback,
        Message::Presence { .. } => Kind::Presence,
        Message::Keepalive { is_answer: false, .. } => Kind::Ping,
        Message::Keepalive { is_answer: true, .. } => Kind::Pong,
        _ => Kind::Other,
    }
}

/// The number of messages by sender, receiver and kind, and of packets that requests named.
#[derive(Default)]
struct Tally {
    messages: BTreeMap<(Peer, Peer, Kind), u64>,
    items: BTreeMap<(Peer, Peer), u64>,
}

impl Tally {
    fn add(&mut self, from: Peer, to: Peer, message: &Message<'_>) {
        *self.messages.entry((from, to, kind_of(message))).or_default() += 1;
        if let Message::Nack(nack) = message {
            *self.items.entry((from, to)).or_default() += nack.ranges.sequences().count() as u64;
        }
    }

    fn of(&self, from: Peer, to: Peer, kind: Kind) -> u64 {
        self.messages.get(&(from, to, kind)).copied().unwrap_or_default()
    }

    /// Counts messages from any sender.
    fn to(&self, to: Peer, kind: impl Fn(Kind) -> bool) -> u64 {
        let theirs = self.messages.iter().filter(|((_, other, is), _)| *other == to && kind(*is));
        theirs.map(|(_, count)| count).sum()
    }

    fn items(&self, from: Peer, to: Peer) -> u64 {
        self.items.get(&(from, to)).copied().unwrap_or_default()
    }
}

pub(super) struct Model {
    egress: EgressConfig,
    receiver: ReceiverConfig,
    /// The number of starts of the egress relay: each with full budgets.
    egress_starts: u64,
    /// The parts of the cast's records that were read.
    read: (usize, usize, usize),
    transmitted: Tally,
    received: Tally,
    /// The packets that receivers have, and since when at the latest.
    delivered: BTreeMap<PacketId, Timestamp>,
    /// The packets that the ingress relay, or an impostor, had kept, and when.
    cached: BTreeMap<PacketId, Vec<(Timestamp, Vec<u8>)>>,
    recovered: BTreeMap<(PacketId, Peer), u64>,
}

impl Model {
    pub(super) fn new(setting: &Setting) -> Self {
        Self {
            egress: setting.egress,
            receiver: setting.receiver,
            egress_starts: 1,
            read: (0, 0, 0),
            transmitted: Tally::default(),
            received: Tally::default(),
            delivered: BTreeMap::new(),
            cached: BTreeMap::new(),
            recovered: BTreeMap::new(),
        }
    }

    pub(super) fn egress_starts_again(&mut self) {
        self.egress_starts += 1;
    }

    /// Reads the records since `began`, and checks them.
    pub(super) fn check(&mut self, cast: &Cast, began: Timestamp) {
        let (arrived, wire, delivered) = self.read;
        for (at, (from, to, bytes)) in &cast.arrived[arrived..] {
            if let Ok(message) = Message::parse(bytes) {
                self.note_arrival(*at, *from, *to, &message);
            }
        }
        for (packet, ..) in &cast.delivered[delivered..] {
            assert!(cast.sealed.contains(packet), "{packet:?} was never sent");
            let before = self.delivered.insert(*packet, cast.now);
            assert_eq!(before, None, "{packet:?} was delivered twice");
        }
        for (from, to, bytes) in &cast.wire[wire..] {
            let message = Message::parse(bytes).expect("machines speak well");
            self.judge(began, *from, *to, &message);
            self.transmitted.add(*from, *to, &message);
        }
        self.read = (cast.arrived.len(), cast.wire.len(), cast.delivered.len());
        for flow in 0..cast.senders.len() as u64 {
            self.check_flow(cast, flow);
        }
        self.check_relays(cast);
        self.check_bounds(cast);
    }

    fn note_arrival(&mut self, at: Timestamp, from: Peer, to: Peer, message: &Message<'_>) {
        self.received.add(from, to, message);
        if let (INGRESS, EGRESS, Message::Source(source)) = (from, to, message)
            && source.service == Service::Caching
        {
            let cached = self.cached.entry(source.packet).or_default();
            cached.push((at, source.payload.to_vec()));
        }
    }

    /// Checks a message that a machine has sent after `began`.
    fn judge(&mut self, began: Timestamp, from: Peer, to: Peer, message: &Message<'_>) {
        match message {
            Message::HelpAnswer { request, payload: lent } => {
                let packet = request.packet;
                assert_eq!((to, from), (EGRESS, receiver_of(packet.flow.0)), "{message:?}");
                let since = self.delivered.get(&packet);
                let is_there = since.is_some_and(|since| *since + self.receiver.lend.age >= began);
                assert!(is_there, "{packet:?} is not there to be lent");
                assert_eq!(*lent, payload(packet), "{packet:?} is lent altered");
            }
            Message::Recovered { packet, means, payload: brought } => {
                assert_eq!((from, to), (EGRESS, receiver_of(packet.flow.0)), "{message:?}");
                let cached = self.cached.get(packet).map_or(&[][..], |cached| &cached[..]);
                let is_that = |(at, bytes): &(Timestamp, Vec<u8>)| {
                    bytes == brought && *at + self.egress.cache.age >= began
                };
                let may_be = *means != RecoverySource::Cache || cached.iter().any(is_that);
                assert!(may_be, "{packet:?} is not what was kept");
                *self.recovered.entry((*packet, to)).or_default() += 1;
            }
            Message::HelpRequest(request) => {
                assert_eq!((from, to), (EGRESS, receiver_of(request.packet.flow.0)));
            }
            Message::Nack(nack) => {
                assert_eq!((from, to), (receiver_of(nack.flow.0), EGRESS));
            }
            _ => {}
        }
    }

    /// Checks the messages from and to the two ends of a flow.
    fn check_flow(&self, cast: &Cast, flow: u64) {
        let (sender, receiver) = (sender_of(flow), receiver_of(flow));
        let sent = cast.sealed.iter().filter(|packet| packet.flow.0 == flow).count() as u64;
        let most = |allowance: Allowance, starts: u64| {
            let filled = cast.now.as_nanos() * u64::from(allowance.per_second) / 1_000_000_000;
            starts * u64::from(allowance.burst) + filled
        };
        let (transmitted, received, starts) =
            (&self.transmitted, &self.received, self.egress_starts);

        assert!(transmitted.of(sender, receiver, Kind::Source) <= sent);
        let tries = 1 + u64::from(Arq::default().most_resends);
        assert!(transmitted.of(sender, INGRESS, Kind::Copy) <= tries * sent);
        let copies = received.of(sender, INGRESS, Kind::Copy);
        // One at once, and one when its timer fires.
        assert!(transmitted.of(INGRESS, sender, Kind::Acknowledgement) <= 2 * copies);

        assert!(transmitted.items(receiver, EGRESS) <= most(self.receiver.asks, 1), "requests");
        let granted = received.items(receiver, EGRESS).min(most(self.egress.asks, starts));
        let answers = transmitted.of(EGRESS, receiver, Kind::Recovered)
            + transmitted.of(EGRESS, receiver, Kind::Repair);
        assert!(answers <= u64::from(MAX_ANSWERS) * granted, "{answers} answers for {granted}");
        let for_help = transmitted.of(EGRESS, receiver, Kind::HelpRequest);
        assert!(for_help <= most(self.egress.helps, starts), "{for_help} requests for help");
        let asked = received.of(EGRESS, receiver, Kind::HelpRequest);
        let helped = transmitted.of(receiver, EGRESS, Kind::HelpAnswer);
        assert!(helped <= asked.min(most(self.receiver.lends, 1)), "{helped} lent for {asked}");
        let forwarded = received.of(INGRESS, EGRESS, Kind::Source);
        assert!(transmitted.of(EGRESS, receiver, Kind::Source) <= forwarded);
        assert!(
            transmitted.of(receiver, sender, Kind::Feedback) <= cast.now.as_nanos() / 1_000_000_000
        );
    }

    /// Checks the messages between the relays, and their answers to any peer.
    fn check_relays(&self, cast: &Cast) {
        let (transmitted, received) = (&self.transmitted, &self.received);
        let copies = received.to(INGRESS, |kind| kind == Kind::Copy);
        let onward = transmitted.of(INGRESS, EGRESS, Kind::Source)
            + transmitted.of(INGRESS, EGRESS, Kind::Repair);
        // At most one repair packet for each packet, of its own flow's block and of the other.
        assert!(onward <= 2 * copies, "{onward} packets for {copies}");
        // One for a keepalive or a return, one when a helper has gone.
        let words = received.to(EGRESS, |_| true);
        assert!(transmitted.of(EGRESS, INGRESS, Kind::Presence) <= 2 * words);
        for ((from, to, kind), count) in &transmitted.messages {
            if *kind == Kind::Pong {
                assert!(*count <= received.of(*to, *from, Kind::Ping), "{from:?} to {to:?}");
            }
            assert_ne!(*kind, Kind::Other);
        }
        // A request is forgotten when all that could answer it has expired.
        let age = self.egress.cache.age.max(self.egress.blocks.age);
        let lives = self.egress_starts + 1 + (cast.now.as_nanos() / age.as_nanos() as u64);
        for (request, answers) in &self.recovered {
            assert!(*answers <= u64::from(MAX_ANSWERS) * lives, "{request:?}: {answers} answers");
        }
    }

    fn check_bounds(&self, cast: &Cast) {
        let (held, config) = (cast.egress.held(), &self.egress);
        assert!(held.packets <= config.cache.packets && held.blocks <= config.blocks.blocks);
        let most = config.cache.bytes.as_u64() + config.blocks.bytes.as_u64();
        assert!(held.bytes <= most, "{held:?}");
        let granted: u64 = self.received.items.values().sum();
        assert!(held.requests as u64 <= granted, "{held:?}");
        for receiver in &cast.receivers {
            let (held, lend) = (receiver.held(), self.receiver.lend);
            assert!(held.packets <= lend.packets && held.bytes <= lend.bytes.as_u64(), "{held:?}");
            assert!(held.requests <= MAX_MISSING + MAX_WAITING, "{held:?}");
            assert!(held.blocks <= MAX_OPEN_BLOCKS, "{held:?}");
        }
    }
}
