//! The egress relay's side: keeps the packets that ingress relays send near the receivers, and
//! recovers lost packets.
//!
//! A receiver requests (NACK) the packets it misses. The relay tries, in this order:
//!
//! 1. *cache*: if it has kept the packet (caching service), it returns it;
//! 2. *in-stream*: if a block of the same flow misses no more packets than it has repair packets
//!    here, it sends a repair packet, and the receiver solves the block with its own packets;
//! 3. *cross-stream*: if a block with other flows' packets has enough repair packets, it requests
//!    theirs from the other receivers (cooperative recovery), solves the block as soon as enough
//!    have arrived, and does not wait for stragglers;
//! 4. otherwise the request waits a while for packets that may be on their way.
//!
//! A repair packet of the flow itself that arrives while helpers are asked is sent at once: the
//! packet is recovered by whichever is first.
//!
//! The flow of a group has several receivers, each of which sends its own requests. Its packets are
//! always kept, forwarded or cached, and never coded.
//!
//! Every attempt has a deadline and fails silently [JQ 3.2]. Amplification is bounded: only a
//! flow's own receivers may send requests, each packet is answered at most twice to each, packets
//! that no ingress relay vouched for are never answered, and requests and help have budgets.

mod blocks;
mod presence;
mod recovery;
mod requests;

use std::collections::BTreeMap;

use tradewind_units::{Bytes, Duration, Timestamp};

use crate::budget::Allowance;
use crate::early::Early;
use crate::event::{Arrival, DropReason, Event, Failure, TimerReason};
use crate::id::{FlowNumber, PacketId, Peer, Tenant};
use crate::message::{Message, Nack, RecoverySource, Service, Source};
use crate::outbox::{Outbox, Transmit};
use crate::store::{Keep, Store, StoredAmounts};
use crate::tally::Tally;
use crate::timers::Timers;
pub use blocks::KeepBlocks;
use blocks::{BlockKey, Blocks};
use presence::Receivers;
pub use requests::{MAX_ASKED, MAX_ASKED_OF_ONE};
use requests::{Request, Requests};

/// Most flows of one egress relay. Chosen: as many as of an ingress relay.
pub const MAX_FLOWS: usize = 262_144;
/// Most answers to requests for one packet. Chosen: one, and one more for an answer that got lost.
pub const MAX_ANSWERS: u8 = 2;

/// A flow at its egress relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressFlow {
    /// The ingress relay whose packets are kept for the flow.
    pub ingress: Peer,
    /// The receiver, which may request the flow's packets.
    pub receiver: Peer,
    /// The flow's owner.
    pub tenant: Tenant,
}

/// The settings for all flows of an egress relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressConfig {
    /// The limits of the cache (caching).
    pub cache: Keep,
    /// The limits of kept blocks (coding).
    pub blocks: KeepBlocks,
    /// Longest that a request waits for packets that have not arrived.
    pub wait_within: Duration,
    /// Longest that helpers may take to answer.
    pub help_within: Duration,
    /// Rate of packets that one receiver may request.
    pub asks: Allowance,
    /// Rate of packets that one receiver may be asked to lend.
    pub helps: Allowance,
}

impl Default for EgressConfig {
    /// Returns the defaults. Chosen: a second of packets, since recovery ends within a round trip;
    /// waits of 150 ms, less than most latency budgets; requests for two outages at 250 packets a
    /// second at a time.
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self {
            cache: Keep { age: second, bytes: Bytes::new(256 << 20), packets: 262_144 },
            blocks: KeepBlocks { age: second, bytes: Bytes::new(256 << 20), blocks: 131_072 },
            wait_within: Duration::from_millis(150),
            help_within: Duration::from_millis(150),
            asks: Allowance { per_second: 1000, burst: 1000 },
            helps: Allowance { per_second: 1000, burst: 1000 },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Wait(Request),
    Help(BlockKey),
    Expiry,
}

/// The state machine of an egress relay.
#[derive(Debug, Clone)]
pub struct Egress {
    config: EgressConfig,
    flows: BTreeMap<FlowNumber, EgressFlow>,
    /// The ingress relays of all flows.
    ingresses: Tally,
    /// The receivers of groups' flows.
    groups: BTreeMap<FlowNumber, Vec<Peer>>,
    receivers: Receivers,
    cache: Store,
    early: Early,
    blocks: Blocks,
    requests: Requests,
    recoveries: BTreeMap<u64, BlockKey>,
    next_recovery: u64,
    is_expiry_set: bool,
    timers: Timers<Timer>,
    outbox: Outbox,
}

impl Egress {
    /// Returns a relay without flows.
    #[must_use]
    pub fn new(config: EgressConfig) -> Self {
        Self {
            config,
            flows: BTreeMap::new(),
            ingresses: Tally::default(),
            groups: BTreeMap::new(),
            receivers: Receivers::new(config.asks, config.helps),
            cache: Store::new(config.cache),
            early: Early::new(),
            blocks: Blocks::new(config.blocks),
            requests: Requests::default(),
            recoveries: BTreeMap::new(),
            next_recovery: 0,
            is_expiry_set: false,
            timers: Timers::default(),
            outbox: Outbox::default(),
        }
    }

    /// Begins a flow, or changes it.
    ///
    /// # Errors
    /// [`DropReason::TableFull`] when there are too many.
    pub fn set_flow(&mut self, number: FlowNumber, flow: EgressFlow) -> Result<(), DropReason> {
        if !self.flows.contains_key(&number) && self.flows.len() >= MAX_FLOWS {
            return Err(DropReason::TableFull);
        }
        let is_known = self.flows.get(&number).is_some_and(|old| old.receiver == flow.receiver);
        if is_known && !self.groups.contains_key(&number) {
            // The receiver keeps what is left of its budgets.
            self.name_flow(number, flow);
            return Ok(());
        }
        self.remove_flow(number);
        self.receivers.add(flow.receiver, number);
        self.name_flow(number, flow);
        Ok(())
    }

    fn name_flow(&mut self, number: FlowNumber, flow: EgressFlow) {
        self.ingresses.add(flow.ingress);
        if let Some(old) = self.flows.insert(number, flow) {
            self.ingresses.remove(old.ingress);
        }
    }

    /// Does the same as [`Egress::set_flow`] for the flow of a group with these receivers.
    ///
    /// # Errors
    /// As [`Egress::set_flow`].
    pub fn set_group(
        &mut self,
        number: FlowNumber,
        flow: EgressFlow,
        receivers: &[Peer],
    ) -> Result<(), DropReason> {
        self.set_flow(number, flow)?;
        for receiver in receivers.iter().filter(|receiver| **receiver != flow.receiver) {
            self.receivers.add(*receiver, number);
        }
        self.groups.insert(number, receivers.to_vec());
        Ok(())
    }

    /// Ends a flow; returns `false` when there is none.
    pub fn remove_flow(&mut self, number: FlowNumber) -> bool {
        let Some(flow) = self.flows.remove(&number) else { return false };
        self.ingresses.remove(flow.ingress);
        self.receivers.remove(flow.receiver, number);
        for receiver in self.groups.remove(&number).unwrap_or_default() {
            self.receivers.remove(receiver, number);
        }
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
        let is_sign_of_life = matches!(message, Message::Keepalive { .. });
        let done = match message {
            Message::Source(source) => self.take_source(now, from, source),
            Message::Repair(repair) => self.take_repair(now, from, &repair),
            Message::Nack(nack) => self.take_nack(now, from, &nack),
            Message::HelpAnswer { request, payload } => self.take_help(now, from, request, payload),
            Message::Keepalive { is_answer, nonce } if self.knows(from) => {
                if !is_answer {
                    self.outbox.send(from, &Message::Keepalive { is_answer: true, nonce });
                }
                Ok(())
            }
            _ => Err(DropReason::Unexpected),
        };
        match done {
            Err(reason) => self.outbox.drop(reason),
            Ok(()) => {
                let is_back = self.receivers.note_message(now, from);
                if is_back || (is_sign_of_life && self.receivers.is_presence_due(now, from)) {
                    // Repeated with each keepalive: if the report got lost, the receiver's flows
                    // would not be coded.
                    self.report_presence(from, true);
                }
            }
        }
    }

    /// Handles the packets of a flow that came before it was served.
    pub fn take_early(&mut self, now: Timestamp, flow: FlowNumber) {
        for early in self.early.take(now, flow) {
            self.handle_message(now, early.from, Message::Source(early.source()));
        }
    }

    fn knows(&self, peer: Peer) -> bool {
        self.receivers.knows(peer) || self.ingresses.has(peer)
    }

    fn take_source(
        &mut self,
        now: Timestamp,
        from: Peer,
        source: Source<'_>,
    ) -> Result<(), DropReason> {
        let packet = source.packet;
        let Some(flow) = self.flows.get(&packet.flow).copied() else {
            let gone = self.early.keep(now, (from, 0), source);
            (0..gone).for_each(|_| self.outbox.drop(DropReason::UnknownFlow));
            return Ok(());
        };
        if flow.ingress != from {
            return Err(DropReason::WrongPeer);
        }
        let group = self.groups.get(&packet.flow);
        let (is_forwarded, is_cached) = match source.service {
            Service::Forwarding => (true, group.is_some()),
            Service::Caching => (false, true),
            Service::Direct | Service::Coding => return Err(DropReason::NotServed),
        };
        if is_cached && !self.cache.insert(now, flow.tenant, packet, source.payload) {
            return Err(DropReason::Duplicate);
        }
        if is_forwarded {
            let alone = std::slice::from_ref(&flow.receiver);
            for receiver in group.map_or(alone, |group| &group[..]) {
                if self.outbox.send(*receiver, &Message::Source(source)).is_some() {
                    self.outbox.emit(Event::Forwarded(packet));
                }
            }
        }
        if is_cached {
            self.outbox.emit(Event::Cached(packet));
            self.set_expiry(now);
            self.serve_those_waiting(now, packet);
        }
        Ok(())
    }

    fn take_nack(&mut self, now: Timestamp, from: Peer, nack: &Nack<'_>) -> Result<(), DropReason> {
        let flow = *self.flows.get(&nack.flow).ok_or(DropReason::UnknownFlow)?;
        let is_member = || self.groups.get(&nack.flow).is_some_and(|group| group.contains(&from));
        if flow.receiver != from && !is_member() {
            return Err(DropReason::WrongPeer);
        }
        let items: u8 = nack.ranges.iter().map(|(_, length)| length).sum();
        if !self.receivers.may_ask(now, from, items) {
            return Err(DropReason::OverBudget);
        }
        self.outbox.emit(Event::Asked { flow: nack.flow, items });
        self.set_expiry(now);
        for sequence in nack.ranges.sequences() {
            self.handle_request(now, flow.tenant, (PacketId { flow: nack.flow, sequence }, from));
        }
        Ok(())
    }

    fn handle_request(&mut self, now: Timestamp, tenant: Tenant, request: Request) {
        if !self.requests.remember(now, tenant, request) {
            return self.outbox.drop(DropReason::TableFull);
        }
        if self.requests.answers(request).is_some_and(|answers| answers >= MAX_ANSWERS) {
            return self.outbox.drop(DropReason::Answered);
        }
        self.blocks.expire_covering(now, request.0);
        // A request that waits cannot be served yet; a repeated one prolongs the wait.
        if self.requests.waits_until(request).is_none() && self.serve(now, request) {
            return;
        }
        let until = now + self.config.wait_within;
        self.requests.set_wait(request, Some(until));
        self.timers.set(until, Timer::Wait(request));
    }

    /// Serves the requests that wait for `packet`, after something that may recover it has arrived.
    fn serve_those_waiting(&mut self, now: Timestamp, packet: PacketId) {
        for request in self.requests.waiting_for(packet) {
            if self.serve(now, request) {
                self.requests.set_wait(request, None);
            }
        }
    }

    /// Tries to recover a packet; returns whether that is done or in progress.
    fn serve(&mut self, now: Timestamp, (packet, receiver): Request) -> bool {
        if let Some(payload) = self.cache.get(now, packet) {
            let message = Message::Recovered { packet, means: RecoverySource::Cache, payload };
            self.outbox.send(receiver, &message);
            self.count_answer((packet, receiver), Arrival::Cache);
            return true;
        }
        self.serve_in_stream(packet, receiver) || self.serve_cross_stream(now, packet)
    }

    fn count_answer(&mut self, request: Request, arrival: Arrival) {
        self.requests.count_answer(request);
        self.outbox.emit(Event::Answered { packet: request.0, arrival });
    }

    fn set_expiry(&mut self, now: Timestamp) {
        if !self.is_expiry_set {
            self.is_expiry_set = true;
            self.timers.set(now + self.config.cache.age, Timer::Expiry);
        }
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some((at, timer)) = self.timers.pop_due(now) {
            match timer {
                Timer::Wait(request) => self.give_up(at, request),
                Timer::Help(key) => self.end_recovery(now, at, key),
                Timer::Expiry => self.expire(now),
            }
        }
    }

    fn give_up(&mut self, at: Timestamp, request: Request) {
        let packet = request.0;
        if self.requests.waits_until(request) == Some(at) {
            self.requests.set_wait(request, None);
            self.blocks.forget_wanted(packet);
            let failure = match self.blocks.covering(packet) {
                Some(_) => Failure::TooFewRepairs,
                None => Failure::Unknown,
            };
            self.outbox.emit(Event::Failed { packet, failure });
        }
    }

    fn expire(&mut self, now: Timestamp) {
        self.is_expiry_set = false;
        self.cache.expire(now);
        for recovery in self.blocks.expire(now) {
            self.recoveries.remove(&recovery);
        }
        // A request is remembered as long as anything that could answer it.
        let age = self.config.blocks.age.max(self.config.cache.age);
        self.requests.forget_older_than(now, age);
        if !(self.cache.is_empty() && self.blocks.is_empty() && self.requests.is_empty()) {
            self.set_expiry(now);
        }
    }

    /// Returns how much is kept: packets, repair packets and their blocks, and requests of
    /// receivers.
    #[must_use]
    pub fn held(&self) -> StoredAmounts {
        StoredAmounts {
            packets: self.cache.len(),
            bytes: self.cache.bytes() + self.blocks.bytes(),
            blocks: self.blocks.len(),
            requests: self.requests.len(),
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

    /// Returns when to call [`Egress::handle_timeout`] next, and for which reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, TimerReason)> {
        self.timers.first().map(|(at, timer)| {
            let reason = match timer {
                Timer::Wait(_) | Timer::Help(_) => TimerReason::Recovery,
                Timer::Expiry => TimerReason::Expiry,
            };
            (at, reason)
        })
    }
}
