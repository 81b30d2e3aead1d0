//! The ingress relay's side: receives copies from senders near by, and sends packets and repair
//! packets to egress relays.
//!
//! | service of a copy | sent to the flow's egress relay |
//! |---|---|
//! | forwarding, caching | the packet |
//! | coding | repair packets of the blocks it goes into (`coder`) |
//!
//! The flow of a group goes to several egress relays: whatever is sent for it is sent to each of
//! them once. It is never coded, since no receiver could lend packets that all receivers have.
//!
//! Copies may be acknowledged, so that senders repeat those that the access leg lost (`access`). A
//! copy that comes out of order was most likely sent again after a loss there, and its packet was
//! lost as well: both take the same access path. The egress relay gets such a packet itself, to be
//! kept, and the packet goes into no block: that costs one packet for each such loss, and the
//! receiver need not wait for a block and for helpers. All copies that are handled before anything
//! is sent are acknowledged together.
//!
//! Copies of flows that are not served yet are kept for a moment (`early`).
//!
//! If one relay is both ingress and egress relay of a flow, packets are handed over to the egress
//! relay's side directly ([`Beside`]), without being written and parsed again.

mod access;
mod coder;

use std::collections::BTreeMap;

use tradewind_units::{Duration, Timestamp};

use crate::early::Early;
use crate::egress::Egress;
use crate::event::{DropReason, Event, TimerReason};
use crate::id::{FlowNumber, Peer, Tenant};
use crate::message::{Message, Service, Source};
use crate::outbox::{Outbox, Transmit};
use crate::tally::Tally;
use crate::timers::Timers;
use crate::window::{Seen, Window};
use access::Arrivals;
use coder::Coder;
pub use coder::{Coding, InStream, Placement};

/// Most flows of one ingress relay. Chosen: ten times what fills a core at 10 packets a second
/// each.
pub const MAX_FLOWS: usize = 262_144;

/// The tenants whose packets may be coded with a tenant's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// The tenant alone.
    #[default]
    Own,
    /// All tenants that the relay's operator lets share, too.
    Any,
}

/// A flow at its ingress relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngressFlow {
    /// The sender.
    pub sender: Peer,
    /// The egress relay.
    pub egress: Peer,
    /// The flow's owner.
    pub tenant: Tenant,
    /// The tenants whose packets may be coded with the flow's.
    pub sharing: Sharing,
    /// The strongest service it may use, in the order direct, coding, caching, forwarding.
    pub most: Service,
    /// The in-stream repair packets; `None`: none (s = 0).
    pub in_stream: Option<InStream>,
}

/// The rules for acknowledging copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledging {
    /// The number of copies after which one is sent, 128 at most; at once when a copy is missing.
    pub every: u8,
    /// Longest delay of an acknowledgement.
    pub within: Duration,
}

impl Default for Acknowledging {
    /// Returns the defaults. Chosen: an acknowledgement is billed as egress traffic of the cloud.
    fn default() -> Self {
        Self { every: 8, within: Duration::from_millis(20) }
    }
}

/// The settings for all flows of an ingress relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IngressConfig {
    /// The parameters of coding.
    pub coding: Coding,
    /// The rules for acknowledging copies; `None`: they are not acknowledged.
    pub acknowledging: Option<Acknowledging>,
    /// The number of the first block: a relay that restarts must choose one that it has not used.
    pub first_block: u64,
}

#[derive(Debug, Clone)]
struct State {
    flow: IngressFlow,
    /// The egress relays of a group's flow; empty for other flows.
    group: Vec<Peer>,
    /// Packets that have come, whatever their copy numbers: no block may hold one twice.
    window: Window,
    is_online: bool,
}

impl State {
    fn new(flow: IngressFlow) -> Self {
        Self { flow, group: Vec::new(), window: Window::new(), is_online: true }
    }

    fn egresses(&self) -> &[Peer] {
        match &self.group[..] {
            [] => std::slice::from_ref(&self.flow.egress),
            group => group,
        }
    }
}

/// A sender of copies.
#[derive(Debug, Clone)]
struct Sender {
    arrivals: Arrivals,
    /// The number of flows from it.
    flows: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Acknowledge(Peer),
    Close(coder::BlockId),
}

/// The state machine of an ingress relay.
#[derive(Debug, Clone)]
pub struct Ingress {
    config: IngressConfig,
    flows: BTreeMap<FlowNumber, State>,
    senders: BTreeMap<Peer, Sender>,
    egresses: Tally,
    coder: Coder,
    early: Early,
    /// Senders to be acknowledged before anything is sent, each once.
    ack_due: Vec<Peer>,
    timers: Timers<Timer>,
    outbox: Outbox,
}

/// The egress relay's side on the same node.
#[derive(Debug)]
pub struct Beside<'a> {
    /// The peer by which flows name this node as their egress relay, and, at the egress relay's
    /// side, as their ingress relay.
    pub name: Peer,
    /// The egress relay's state machine.
    pub egress: &'a mut Egress,
}

impl Ingress {
    /// Returns a relay without flows.
    #[must_use]
    pub fn new(config: IngressConfig) -> Self {
        Self {
            config,
            flows: BTreeMap::new(),
            senders: BTreeMap::new(),
            egresses: Tally::default(),
            coder: Coder::new(config.coding, config.first_block),
            early: Early::new(),
            ack_due: Vec::new(),
            timers: Timers::default(),
            outbox: Outbox::default(),
        }
    }

    /// Begins a flow, or changes it.
    ///
    /// # Errors
    /// [`DropReason::TableFull`] when there are too many.
    pub fn set_flow(&mut self, number: FlowNumber, flow: IngressFlow) -> Result<(), DropReason> {
        if !self.flows.contains_key(&number) && self.flows.len() >= MAX_FLOWS {
            return Err(DropReason::TableFull);
        }
        self.name(&flow);
        if let Some(state) = self.flows.get_mut(&number) {
            let (old, group) =
                (std::mem::replace(&mut state.flow, flow), std::mem::take(&mut state.group));
            self.name_no_more(&old, &group);
        } else {
            self.flows.insert(number, State::new(flow));
        }
        Ok(())
    }

    /// Does the same as [`Ingress::set_flow`] for the flow of a group, which goes to all of these
    /// egress relays.
    ///
    /// # Errors
    /// As [`Ingress::set_flow`].
    pub fn set_group(
        &mut self,
        number: FlowNumber,
        flow: IngressFlow,
        egresses: &[Peer],
    ) -> Result<(), DropReason> {
        self.set_flow(number, flow)?;
        if let Some(state) = self.flows.get_mut(&number) {
            state.group.extend_from_slice(egresses);
            egresses.iter().for_each(|egress| self.egresses.add(*egress));
        }
        Ok(())
    }

    fn name(&mut self, flow: &IngressFlow) {
        self.egresses.add(flow.egress);
        let fresh = || Sender { arrivals: Arrivals::new(), flows: 0 };
        self.senders.entry(flow.sender).or_insert_with(fresh).flows += 1;
    }

    fn name_no_more(&mut self, flow: &IngressFlow, group: &[Peer]) {
        for egress in group.iter().chain([&flow.egress]) {
            self.egresses.remove(*egress);
        }
        if let Some(sender) = self.senders.get_mut(&flow.sender) {
            sender.flows -= 1;
            if sender.flows == 0 {
                self.senders.remove(&flow.sender);
            }
        }
    }

    /// Ends a flow; returns `false` when there is none.
    pub fn remove_flow(&mut self, number: FlowNumber) -> bool {
        let Some(state) = self.flows.remove(&number) else { return false };
        self.name_no_more(&state.flow, &state.group);
        self.coder.forget(number);
        true
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
        self.handle(now, from, message, None);
    }

    /// Does the same as [`Ingress::handle_message`], and hands packets for this node's own egress
    /// relay's side to it.
    pub fn handle_message_beside(
        &mut self,
        now: Timestamp,
        from: Peer,
        message: Message<'_>,
        beside: Beside<'_>,
    ) {
        self.handle(now, from, message, Some(beside));
    }

    fn handle(
        &mut self,
        now: Timestamp,
        from: Peer,
        message: Message<'_>,
        beside: Option<Beside<'_>>,
    ) {
        let done = match message {
            Message::Copy { number, source } => self.take_copy(now, from, (number, source), beside),
            Message::Presence { flow, is_online } => self.note_presence(from, flow, is_online),
            Message::Keepalive { is_answer: false, nonce } if self.knows(from) => {
                self.outbox.send(from, &Message::Keepalive { is_answer: true, nonce });
                Ok(())
            }
            _ => Err(DropReason::Unexpected),
        };
        if let Err(reason) = done {
            self.outbox.drop(reason);
        }
    }

    /// Handles the copies of a flow that came before it was served.
    pub fn take_early(&mut self, now: Timestamp, flow: FlowNumber, mut beside: Option<Beside<'_>>) {
        for early in self.early.take(now, flow) {
            let again =
                beside.as_mut().map(|Beside { name, egress }| Beside { name: *name, egress });
            let (number, source) = (early.number, early.source());
            self.handle(now, early.from, Message::Copy { number, source }, again);
        }
    }

    fn knows(&self, peer: Peer) -> bool {
        self.senders.contains_key(&peer) || self.egresses.has(peer)
    }

    fn take_copy(
        &mut self,
        now: Timestamp,
        from: Peer,
        (number, source): (u64, Source<'_>),
        mut beside: Option<Beside<'_>>,
    ) -> Result<(), DropReason> {
        let Some(state) = self.flows.get_mut(&source.packet.flow) else {
            let gone = self.early.keep(now, (from, number), source);
            (0..gone).for_each(|_| self.outbox.drop(DropReason::UnknownFlow));
            return Ok(());
        };
        let (flow, is_online) = (state.flow, state.is_online);
        if flow.sender != from {
            return Err(DropReason::WrongPeer);
        }
        let is_coded = source.service == Service::Coding;
        if source.service == Service::Direct
            || dearness(source.service) > dearness(flow.most)
            || (is_coded && !state.group.is_empty())
        {
            return Err(DropReason::NotServed);
        }
        let arrivals = &mut self.senders.get_mut(&from).ok_or(DropReason::WrongPeer)?.arrivals;
        let is_behind = number + 1 < arrivals.end();
        let is_new = arrivals.insert(number);
        if let Some(acknowledging) = self.config.acknowledging {
            match arrivals.note_unacknowledged(now, &acknowledging, !is_new) {
                access::AckDue::AtOnce => {
                    let seen = arrivals.acknowledge();
                    self.outbox.send(from, &Message::Acknowledgement(seen));
                }
                access::AckDue::Now => self.ack_due.push(from),
                access::AckDue::At(due) => self.timers.set(due, Timer::Acknowledge(from)),
                access::AckDue::Later => {}
            }
        }
        if !is_new {
            return Err(DropReason::Duplicate);
        }
        match state.window.look(source.packet.sequence) {
            Seen::New => state.window.insert(source.packet.sequence),
            Seen::Before => return Err(DropReason::Duplicate),
            Seen::TooOld => return Err(DropReason::TooOld),
        }
        if is_coded && is_behind && self.config.acknowledging.is_some() {
            let source = Source { service: Service::Caching, ..source };
            pass_on(now, flow.egress, source, &mut self.outbox, &mut beside);
        } else if is_coded {
            if is_online {
                let due = self.coder.add(now, &flow, source, &mut self.outbox);
                for (at, place) in due.into_iter().flatten() {
                    self.timers.set(at, Timer::Close(place));
                }
            }
        } else {
            for egress in state.egresses() {
                pass_on(now, *egress, source, &mut self.outbox, &mut beside);
            }
        }
        Ok(())
    }

    fn note_presence(
        &mut self,
        from: Peer,
        flow: FlowNumber,
        is_online: bool,
    ) -> Result<(), DropReason> {
        let state = self.flows.get_mut(&flow).ok_or(DropReason::UnknownFlow)?;
        if !state.egresses().contains(&from) {
            return Err(DropReason::WrongPeer);
        }
        // The presence of a group's members has no effect: its flow is not coded.
        if state.group.is_empty() && state.is_online != is_online {
            state.is_online = is_online;
            self.outbox.emit(Event::Presence { flow, is_online });
        }
        Ok(())
    }

    fn acknowledge(&mut self, peer: Peer) {
        if let Some(sender) = self.senders.get_mut(&peer) {
            let seen = sender.arrivals.acknowledge();
            self.outbox.send(peer, &Message::Acknowledgement(seen));
        }
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some((at, timer)) = self.timers.pop_due(now) {
            match timer {
                Timer::Close(place) => self.coder.close_due(place, &mut self.outbox),
                Timer::Acknowledge(peer) => {
                    if self.senders.get_mut(&peer).is_some_and(|it| it.arrivals.is_due(at)) {
                        self.acknowledge(peer);
                    }
                }
            }
        }
    }

    /// Returns the next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        let mut ack_due = std::mem::take(&mut self.ack_due);
        for peer in ack_due.drain(..) {
            if self.senders.get_mut(&peer).is_some_and(|it| it.arrivals.take_reported()) {
                self.acknowledge(peer);
            }
        }
        self.ack_due = ack_due;
        self.outbox.poll_transmit()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.outbox.poll_event()
    }

    /// Returns when to call [`Ingress::handle_timeout`] next, and for which reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, TimerReason)> {
        self.timers.first().map(|(at, timer)| {
            let reason = match timer {
                Timer::Acknowledge(_) => TimerReason::Acknowledge,
                Timer::Close(_) => TimerReason::CloseBlock,
            };
            (at, reason)
        })
    }
}

/// Sends a packet to its egress relay, or hands it over on this node.
fn pass_on(
    now: Timestamp,
    to: Peer,
    source: Source<'_>,
    outbox: &mut Outbox,
    beside: &mut Option<Beside<'_>>,
) {
    let message = Message::Source(source);
    let is_passed_on = match beside {
        Some(Beside { name, egress }) if *name == to => {
            egress.handle_message(now, *name, message);
            true
        }
        _ => outbox.send(to, &message).is_some(),
    };
    if is_passed_on {
        outbox.emit(Event::Forwarded(source.packet));
    }
}

/// Returns the rank of a service by its cost to a relay [JQ 3].
fn dearness(service: Service) -> u8 {
    match service {
        Service::Direct => 0,
        Service::Coding => 1,
        Service::Caching => 2,
        Service::Forwarding => 3,
    }
}
