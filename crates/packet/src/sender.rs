//! The sender's side of its flows: packets to the Internet path, copies to the ingress relay.
//!
//! | service | on the Internet path | to the ingress relay |
//! |---|---|---|
//! | direct | every packet | nothing |
//! | forwarding | none, or every packet too ([`Paths::Both`] [JQ 3.5]) | every packet, or, where all go over the Internet, chosen ones |
//! | caching, coding | every packet | every packet, or chosen ones ([`Copies`]) |
//!
//! A flow without a receiver of its own, whatever its service, goes over the relays alone. Such is
//! the flow of a group, whose members the machine's caller reaches over the Internet.
//!
//! The Internet path does not depend on the relays: each packet is sent on it first, whatever
//! happens to its copies. Copies may be sent again when the relay does not acknowledge them
//! (`access`).

mod access;
mod reports;
pub mod select;
mod uplink;

use std::collections::BTreeMap;

use tradewind_units::{Duration, Timestamp};

use crate::budget::Allowance;
use crate::event::{DropReason, Event, TimerReason};
use crate::id::{FlowNumber, PacketId, Peer};
use crate::message::{
    COPY_HEADER_BYTES, Class, MAX_PAYLOAD_BYTES, Message, Report, Service, Source,
};
use crate::outbox::{Outbox, Transmit};
use crate::session::OVERHEAD;
use crate::timers::Timers;
use access::AccessLeg;
pub use access::Arq;
pub use reports::Reports;
use uplink::Uplink;

/// The most flows of one sender. Chosen: a gateway of a large site.
pub const MAX_FLOWS: usize = 65_536;
/// The most ingress relays of one sender. Chosen: the near regions of all clouds.
pub const MAX_LEGS: usize = 64;

/// The paths of a forwarded flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Paths {
    /// Over the relays alone.
    #[default]
    Overlay,
    /// Over the Internet, too: the first copy wins.
    Both,
}

/// The packets that are copied of a flow whose packets all go over the Internet
/// [JQ 3.5, selective duplication].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copies {
    /// All packets.
    #[default]
    All,
    /// High-priority packets, and the last of each window: one that no packet follows for some
    /// time.
    Chosen {
        /// That time; `None`: last packets are not copied.
        last_after: Option<Duration>,
    },
}

/// A flow at its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderFlow {
    /// The receiver, over the Internet; `None`: no packet is sent there.
    pub receiver: Option<Peer>,
    /// The ingress relay. Without one the flow goes over the Internet, whatever its service, or
    /// nowhere, if it has no receiver.
    pub ingress: Option<Peer>,
    /// The service.
    pub service: Service,
    /// Paths of a forwarded flow.
    pub paths: Paths,
    /// The packets that are copied, if all go over the Internet.
    pub copies: Copies,
    /// The latency budget: the time for which a packet is worth having; `None`: unlimited.
    pub worth: Option<Duration>,
}

/// The settings for all flows of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SenderConfig {
    /// The rules for sending copies again that are not acknowledged; `None`: never.
    pub arq: Option<Arq>,
    /// The bytes that the uplink takes; `None`: any number. Packets on their only path and control
    /// traffic are always sent; copies, first or repeated, take the rest. The last quarter of the
    /// burst is reserved for high-priority copies.
    pub uplink: Option<Allowance>,
}

#[derive(Debug, Clone)]
struct State {
    flow: SenderFlow,
    next: u64,
    /// The latest packet while it is not copied and may be the last of a window.
    last: Option<LastPacket>,
    reports: Reports,
}

#[derive(Debug, Clone)]
struct LastPacket {
    sequence: u64,
    due: Timestamp,
    payload: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Resend(Peer),
    LastOfWindow(FlowNumber),
}

/// The state machine of a sender.
#[derive(Debug, Clone)]
pub struct Sender {
    config: SenderConfig,
    uplink: Uplink,
    flows: BTreeMap<FlowNumber, State>,
    legs: BTreeMap<Peer, AccessLeg>,
    timers: Timers<Timer>,
    outbox: Outbox,
}

impl Sender {
    /// Returns a sender without flows.
    #[must_use]
    pub fn new(config: SenderConfig) -> Self {
        Self {
            config,
            uplink: Uplink::new(config.uplink),
            flows: BTreeMap::new(),
            legs: BTreeMap::new(),
            timers: Timers::default(),
            outbox: Outbox::default(),
        }
    }

    /// Begins a flow, or changes it; its sequences go on.
    ///
    /// # Errors
    /// [`DropReason::TableFull`] when there are too many flows or ingress relays.
    pub fn set_flow(&mut self, number: FlowNumber, flow: SenderFlow) -> Result<(), DropReason> {
        let is_new_leg = flow.ingress.is_some_and(|peer| !self.legs.contains_key(&peer));
        let is_new_flow = !self.flows.contains_key(&number);
        if is_new_leg && self.legs.len() >= MAX_LEGS {
            self.forget_unused_legs();
        }
        if (is_new_leg && self.legs.len() >= MAX_LEGS)
            || (is_new_flow && self.flows.len() >= MAX_FLOWS)
        {
            return Err(DropReason::TableFull);
        }
        if let Some(peer) = flow.ingress {
            self.legs.entry(peer).or_insert_with(AccessLeg::new);
        }
        let fresh = State { flow, next: 0, last: None, reports: Reports::default() };
        self.flows.entry(number).or_insert(fresh).flow = flow;
        Ok(())
    }

    /// Ends a flow; returns `false` when there is none.
    pub fn remove_flow(&mut self, number: FlowNumber) -> bool {
        self.flows.remove(&number).is_some()
    }

    /// Forgets legs that no flow uses. Called only at the limit, since a relay that knows a leg
    /// accepts no number of it twice.
    fn forget_unused_legs(&mut self) {
        let flows = &self.flows;
        let is_used = |peer: &Peer| flows.values().any(|state| state.flow.ingress == Some(*peer));
        self.legs.retain(|peer, _| is_used(peer));
    }

    /// Changes the service of a flow, as its receiver's reports demand; returns `false` when there
    /// is no such flow.
    pub fn set_service(&mut self, number: FlowNumber, service: Service) -> bool {
        let state = self.flows.get_mut(&number);
        state.map(|state| state.flow.service = service).is_some()
    }

    /// Returns the packet of the flow's next payload, so that it can be sealed as that.
    #[must_use]
    pub fn next_packet(&self, number: FlowNumber) -> Option<PacketId> {
        let sequence = self.flows.get(&number)?.next;
        Some(PacketId { flow: number, sequence })
    }

    /// Counts the flow's next packet as sent without this machine; returns `None` when there is no
    /// such flow.
    pub fn skip(&mut self, number: FlowNumber) -> Option<PacketId> {
        let packet = self.next_packet(number)?;
        self.flows.get_mut(&number)?.next += 1;
        Some(packet)
    }

    /// Sends a sealed payload as [`Sender::next_packet`].
    ///
    /// # Errors
    /// [`DropReason::UnknownFlow`], or [`DropReason::Malformed`] when the payload is empty or too
    /// long; nothing is sent then.
    pub fn send(
        &mut self,
        now: Timestamp,
        number: FlowNumber,
        class: Class,
        payload: &[u8],
    ) -> Result<PacketId, DropReason> {
        if payload.is_empty() || payload.len() > MAX_PAYLOAD_BYTES {
            return Err(DropReason::Malformed);
        }
        let state = self.flows.get_mut(&number).ok_or(DropReason::UnknownFlow)?;
        let packet = PacketId { flow: number, sequence: state.next };
        state.next += 1;
        let flow = state.flow;
        let source = Source { packet, service: flow.service, class, payload };
        let is_forwarded = flow.service == Service::Forwarding && flow.ingress.is_some();
        let by_internet = flow.receiver.filter(|_| !is_forwarded || flow.paths == Paths::Both);
        if let Some(receiver) = by_internet {
            self.outbox.send(receiver, &Message::Source(source));
            self.uplink.spend(now, payload.len());
        }
        let Some(leg) = flow.ingress.filter(|_| flow.service != Service::Direct) else {
            return Ok(packet);
        };
        let is_chosen = by_internet.is_none() || flow.copies == Copies::All || class == Class::High;
        if is_chosen {
            state.last = None;
            // What takes a packet's only path is not a copy that the uplink could drop.
            let is_only = by_internet.is_none();
            if is_only {
                self.spend_uplink(now, AROUND_COPY + payload.len());
            }
            if is_only || self.uplink_bears(now, &source) {
                self.copy(now, leg, (source, flow.worth));
            }
        } else if let Copies::Chosen { last_after: Some(span) } = flow.copies {
            let due = now + span;
            let held = state.last.get_or_insert_with(|| {
                self.timers.set(due, Timer::LastOfWindow(number));
                LastPacket { sequence: 0, due, payload: Vec::new() }
            });
            (held.sequence, held.due) = (packet.sequence, due);
            held.payload.clear();
            held.payload.extend_from_slice(payload);
        }
        Ok(packet)
    }

    /// Charges the uplink for a datagram of this machine or another that is sent in any case.
    pub fn spend_uplink(&mut self, now: Timestamp, bytes: usize) {
        self.uplink.spend(now, bytes);
    }

    /// Corrects the uplink's account by the bytes that have left for neighbours since the last
    /// call, with all headers, once nothing waits to be sent. So control traffic is counted as
    /// well, which is not counted elsewhere.
    pub fn note_left(&mut self, now: Timestamp, bytes: u64) {
        self.uplink.note_left(now, bytes);
    }

    /// Returns whether the uplink has capacity for another copy of this length; if so it is
    /// charged.
    pub fn uplink_bears_copy(&mut self, now: Timestamp, class: Class, bytes: usize) -> bool {
        let bears = self.uplink.bears_copy(now, class, bytes);
        if !bears {
            self.outbox.drop(DropReason::OverBudget);
        }
        bears
    }

    fn uplink_bears(&mut self, now: Timestamp, source: &Source<'_>) -> bool {
        self.uplink_bears_copy(now, source.class, AROUND_COPY + source.payload.len())
    }

    fn copy(
        &mut self,
        now: Timestamp,
        peer: Peer,
        (source, worth): (Source<'_>, Option<Duration>),
    ) {
        let Some(leg) = self.legs.get_mut(&peer) else { return };
        let number = leg.next_number();
        self.outbox.send(peer, &Message::Copy { number, source });
        self.outbox.emit(Event::CopySent { packet: source.packet, resent: 0 });
        if let Some(arq) = &self.config.arq
            && let Some(due) = leg.remember(now, number, (source, worth), arq)
        {
            self.timers.set(due, Timer::Resend(peer));
        }
    }

    /// Handles a message that came from `from` in its session.
    pub fn handle_datagram(&mut self, now: Timestamp, from: Peer, bytes: &[u8]) {
        match Message::parse(bytes) {
            Ok(message) => self.handle_message(now, from, message),
            Err(_) => self.outbox.drop(DropReason::Malformed),
        }
    }

    /// Handles a message that has been parsed.
    pub fn handle_message(&mut self, now: Timestamp, from: Peer, message: Message<'_>) {
        match message {
            Message::Acknowledgement(seen) => match self.legs.get_mut(&from) {
                None => self.outbox.drop(DropReason::WrongPeer),
                Some(leg) => {
                    if !leg.acknowledge(now, seen) {
                        return self.outbox.drop(DropReason::Contradiction);
                    }
                    self.resend(now, from);
                }
            },
            Message::Feedback(report) => self.take_report(from, report),
            Message::Keepalive { is_answer: false, nonce } if self.knows(from) => {
                self.outbox.send(from, &Message::Keepalive { is_answer: true, nonce });
            }
            _ => self.outbox.drop(DropReason::Unexpected),
        }
    }

    fn knows(&self, peer: Peer) -> bool {
        self.legs.contains_key(&peer)
            || self.flows.values().any(|state| state.flow.receiver == Some(peer))
    }

    fn take_report(&mut self, from: Peer, report: Report) {
        match self.flows.get_mut(&report.sums.flow) {
            None => self.outbox.drop(DropReason::UnknownFlow),
            Some(state) if state.flow.receiver != Some(from) => {
                self.outbox.drop(DropReason::WrongPeer);
            }
            // Twice: a packet that comes long after it counted as lost counts again for a while.
            Some(state) if report.sums.expected / 2 > state.next => {
                self.outbox.drop(DropReason::Contradiction);
            }
            Some(state) => {
                if let Some(news) = state.reports.take(report) {
                    self.outbox.emit(Event::Feedback(news));
                }
            }
        }
    }

    /// Sends the copies again that were lost on a leg.
    fn resend(&mut self, now: Timestamp, peer: Peer) {
        let (Some(leg), Some(arq)) = (self.legs.get_mut(&peer), &self.config.arq) else { return };
        leg.resend(now, arq, |number, source, resent| {
            let bytes = AROUND_COPY + source.payload.len();
            if !self.uplink.bears_copy(now, source.class, bytes) {
                return self.outbox.drop(DropReason::OverBudget);
            }
            self.outbox.send(peer, &Message::Copy { number, source });
            self.outbox.emit(Event::CopySent { packet: source.packet, resent });
        });
        if let Some(due) = leg.rearm(arq) {
            self.timers.set(due, Timer::Resend(peer));
        }
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some((at, timer)) = self.timers.pop_due(now) {
            match timer {
                Timer::Resend(peer) => {
                    if let Some(leg) = self.legs.get_mut(&peer) {
                        leg.disarm(at);
                    }
                    self.resend(now, peer);
                }
                Timer::LastOfWindow(number) => self.copy_last(now, number),
            }
        }
    }

    fn copy_last(&mut self, now: Timestamp, number: FlowNumber) {
        let Some(state) = self.flows.get_mut(&number) else { return };
        let Some(held) = state.last.take() else { return };
        if held.due > now {
            self.timers.set(held.due, Timer::LastOfWindow(number));
            state.last = Some(held);
            return;
        }
        let (flow, packet) = (state.flow, PacketId { flow: number, sequence: held.sequence });
        let Some(leg) = flow.ingress.filter(|_| flow.service != Service::Direct) else { return };
        let source =
            Source { packet, service: flow.service, class: Class::Normal, payload: &held.payload };
        if self.uplink_bears(now, &source) {
            self.copy(now, leg, (source, flow.worth));
        }
    }

    /// Returns the next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        self.outbox.poll_transmit()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.outbox.poll_event()
    }

    /// Returns when to call [`Sender::handle_timeout`] next, and for which reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, TimerReason)> {
        self.timers.first().map(|(at, timer)| {
            let reason = match timer {
                Timer::Resend(_) => TimerReason::Resend,
                Timer::LastOfWindow(_) => TimerReason::LastOfWindow,
            };
            (at, reason)
        })
    }
}

/// The bytes of a copy beside its payload: the message's header, and the seal's.
const AROUND_COPY: usize = COPY_HEADER_BYTES + OVERHEAD;
