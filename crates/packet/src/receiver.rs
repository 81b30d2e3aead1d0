//! The receiver's side: delivers each packet once, from whichever path it comes first, and requests
//! missing packets from a relay near by.
//!
//! | part | does |
//! |---|---|
//! | `detector` | determines when a packet should have come |
//! | `missing` | missing packets: when to request them, request them again, and give them up |
//! | `solve` | solves in-stream blocks with the flow's own packets |
//! | `report` | reports on flows to their senders, and sends keepalives to relays |
//! | `lend` | keeps packets for one or two round trips, and lends them to the egress relay for others |
//!
//! A packet is accepted only if it is what its sender sealed ([`Genuine`]), on any path; a message
//! that is refused alters no state.

mod config;
mod detector;
mod lend;
mod missing;
mod report;
mod solve;
mod state;

use std::collections::BTreeMap;

use tradewind_units::{Duration, Timestamp};

use crate::event::{Arrival, DropReason, Event, TimerReason};
use crate::id::{FlowNumber, Genuine, PacketId, Peer};
use crate::message::{HelpRequest, Message, RecoverySource, Repair, Scope, Service, Source};
use crate::outbox::{Arena, Outbox, Transmit};
use crate::store::StoredAmounts;
use crate::timers::Timers;
use crate::window::{Seen, WINDOW};
pub use config::{Delivery, ReceiverConfig, ReceiverFlow};
use lend::Lender;
use missing::Lost;
use state::State;

/// Most flows of one receiver. Chosen: a gateway of a large site.
pub const MAX_FLOWS: usize = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Flow(FlowNumber),
    Feedback,
    Keepalive,
}

/// The proof that a packet is what its sender sealed.
#[derive(Clone, Copy)]
enum Proof<'a> {
    /// The caller has opened and delivered it.
    Opened,
    /// To be checked by this.
    Ask(&'a dyn Genuine),
}

/// The state machine of a receiver.
#[derive(Debug, Clone)]
pub struct Receiver {
    config: ReceiverConfig,
    flows: BTreeMap<FlowNumber, State>,
    lender: Lender,
    deliveries: Arena<(PacketId, Arrival, bool)>,
    solved: Vec<(PacketId, Vec<u8>)>,
    scratch: Vec<u64>,
    timers: Timers<Timer>,
    outbox: Outbox,
}

impl Receiver {
    /// Returns a receiver without flows, at `now`.
    #[must_use]
    pub fn new(now: Timestamp, config: ReceiverConfig) -> Self {
        let mut timers = Timers::default();
        let first =
            [(config.feedback_every, Timer::Feedback), (config.keepalive_every, Timer::Keepalive)];
        for (every, timer) in first {
            if let Some(every) = every {
                timers.set(now + every, timer);
            }
        }
        Self {
            lender: Lender::new(&config),
            config,
            flows: BTreeMap::new(),
            deliveries: Arena::default(),
            solved: Vec::new(),
            scratch: Vec::new(),
            timers,
            outbox: Outbox::default(),
        }
    }

    /// Begins a flow. A sender that restarts begins another flow: sequences never go back.
    ///
    /// # Errors
    /// [`DropReason::TableFull`] when there are too many, [`DropReason::Duplicate`] when there is
    /// one of that number.
    pub fn add_flow(&mut self, number: FlowNumber, flow: ReceiverFlow) -> Result<(), DropReason> {
        if self.flows.contains_key(&number) {
            return Err(DropReason::Duplicate);
        }
        if self.flows.len() >= MAX_FLOWS {
            return Err(DropReason::TableFull);
        }
        let state = State::new(flow, self.config.asks);
        self.flows.insert(number, state);
        Ok(())
    }

    /// Ends a flow, after a last report on it; returns `false` when there is none.
    pub fn remove_flow(&mut self, number: FlowNumber) -> bool {
        let state = self.flows.remove(&number);
        state.map(|mut state| state.report(number, &mut self.outbox)).is_some()
    }

    /// Returns whether there is a flow of that number.
    #[must_use]
    pub fn has_flow(&self, number: FlowNumber) -> bool {
        self.flows.contains_key(&number)
    }

    /// Returns whether a packet has come, or is too old by now.
    #[must_use]
    pub fn has_arrived(&self, packet: PacketId) -> bool {
        let state = self.flows.get(&packet.flow);
        state.is_some_and(|state| state.window.look(packet.sequence) != Seen::New)
    }

    /// Updates a flow's paths from later measurements; returns `false` when there is no such flow.
    pub fn set_path(&mut self, number: FlowNumber, path: ReceiverFlow) -> bool {
        let Some(state) = self.flows.get_mut(&number) else { return false };
        if state.flow != path {
            let is_new_keeper = state.flow.keeper().is_none() && path.keeper().is_some();
            state.flow = path;
            state.detector.set_path(path.round_trip, path.recovery_deadline);
            state.missing.set_path(path.round_trip, path.recovery_deadline);
            if is_new_keeper {
                state.missing.request_at_once();
            }
            self.rearm(number);
        }
        true
    }

    /// Handles a message that came from `from` in its session; `genuine` checks payloads.
    pub fn handle_datagram(
        &mut self,
        now: Timestamp,
        from: Peer,
        bytes: &[u8],
        genuine: &impl Genuine,
    ) {
        match Message::parse(bytes) {
            Ok(message) => self.handle_message(now, from, message, genuine),
            Err(_) => self.outbox.drop(DropReason::Malformed),
        }
    }

    /// Handles a message that has been parsed.
    pub fn handle_message(
        &mut self,
        now: Timestamp,
        from: Peer,
        message: Message<'_>,
        genuine: &impl Genuine,
    ) {
        let proof = Proof::Ask(genuine);
        let done = match message {
            Message::Source(source) => self.take_source(now, from, source, proof),
            Message::Recovered { packet, means, payload } => {
                self.take_recovered(now, from, (packet, means), payload, proof)
            }
            Message::Repair(repair) => self.take_repair(now, from, &repair),
            Message::HelpRequest(request) => self.take_help_request(now, from, request),
            Message::Keepalive { is_answer, nonce } => {
                self.take_keepalive(now, from, is_answer, nonce)
            }
            _ => Err(DropReason::Unexpected),
        };
        self.settle(now, done, proof);
    }

    /// Notes a packet that came on its usual path, and that the caller has opened and delivered;
    /// `sealed` is the received payload.
    pub fn handle_opened(
        &mut self,
        now: Timestamp,
        packet: PacketId,
        arrival: Arrival,
        sealed: &[u8],
        genuine: &impl Genuine,
    ) {
        let done = self.accept(now, packet, sealed, arrival, Proof::Opened);
        self.settle(now, done, Proof::Ask(genuine));
    }

    /// Notes that a packet that was recovered has come over the Internet after all: it was late,
    /// not lost.
    pub fn handle_duplicate(&mut self, now: Timestamp, packet: PacketId) {
        if let Some(state) = self.flows.get_mut(&packet.flow) {
            state.came_after_all(now, packet.sequence);
        }
    }

    fn settle(&mut self, now: Timestamp, done: Result<(), DropReason>, proof: Proof<'_>) {
        if let Err(reason) = done {
            self.outbox.drop(reason);
        }
        self.accept_solved(now, proof);
    }

    fn take_source(
        &mut self,
        now: Timestamp,
        from: Peer,
        source: Source<'_>,
        proof: Proof<'_>,
    ) -> Result<(), DropReason> {
        let packet = source.packet;
        let state = self.flows.get(&packet.flow).ok_or(DropReason::UnknownFlow)?;
        let arrival = if from == state.flow.sender {
            Arrival::Internet
        } else if Some(from) == state.flow.egress && source.service == Service::Forwarding {
            Arrival::Overlay
        } else {
            return Err(DropReason::WrongPeer);
        };
        self.accept(now, packet, source.payload, arrival, proof)
    }

    fn take_recovered(
        &mut self,
        now: Timestamp,
        from: Peer,
        (packet, means): (PacketId, RecoverySource),
        payload: &[u8],
        proof: Proof<'_>,
    ) -> Result<(), DropReason> {
        let state = served_by(&mut self.flows, packet.flow, from)?;
        if state.window.look(packet.sequence) == Seen::Before {
            return Err(DropReason::Duplicate);
        }
        if !state.missing.was_asked(packet.sequence) {
            return Err(DropReason::NotAsked);
        }
        let arrival = match means {
            RecoverySource::Cache => Arrival::Cache,
            RecoverySource::CrossStream => Arrival::CrossStream,
        };
        self.accept(now, packet, payload, arrival, proof)
    }

    /// Handles a repair packet that was sent because a packet of its block was requested.
    fn take_repair(
        &mut self,
        now: Timestamp,
        from: Peer,
        repair: &Repair<'_>,
    ) -> Result<(), DropReason> {
        if repair.scope != Scope::InStream {
            return Err(DropReason::Unexpected);
        }
        let first = repair.members.packets().next().ok_or(DropReason::Malformed)?;
        let state = served_by(&mut self.flows, first.flow, from)?;
        if !repair.members.packets().any(|packet| state.missing.was_asked(packet.sequence)) {
            return Err(DropReason::NotAsked);
        }
        state.blocks.add_repair(now, repair, &self.lender.packets, &mut self.solved)
    }

    fn take_help_request(
        &mut self,
        now: Timestamp,
        from: Peer,
        request: HelpRequest,
    ) -> Result<(), DropReason> {
        let state = served_by(&mut self.flows, request.packet.flow, from)?;
        self.lender.take_request(now, state, (from, request), &mut self.outbox)
    }

    /// Accepts a packet, if it is the first copy and genuine.
    fn accept(
        &mut self,
        now: Timestamp,
        packet: PacketId,
        payload: &[u8],
        arrival: Arrival,
        proof: Proof<'_>,
    ) -> Result<(), DropReason> {
        let state = self.flows.get_mut(&packet.flow).ok_or(DropReason::UnknownFlow)?;
        match state.window.look(packet.sequence) {
            Seen::New => {}
            Seen::Before => {
                if arrival == Arrival::Internet {
                    state.came_after_all(now, packet.sequence);
                }
                return Err(DropReason::Duplicate);
            }
            Seen::TooOld => return Err(DropReason::TooOld),
        }
        if matches!(proof, Proof::Ask(seal) if !seal.is_genuine(packet, payload)) {
            return Err(DropReason::NotGenuine);
        }
        state.window.insert(packet.sequence);
        let usual = matches!(arrival, Arrival::Internet | Arrival::Overlay);
        let (after, is_late) = state.count(now, packet.sequence, arrival);
        let newly = if usual {
            state.detector.arrive(now, packet.sequence)
        } else {
            state.detector.bring_back(now, packet.sequence)
        };
        if !newly.is_empty() {
            Self::miss(now, state, newly, packet.flow, &mut self.outbox);
        }
        if matches!(proof, Proof::Ask(_)) {
            let pushed = self
                .deliveries
                .push((packet, arrival, is_late), |out| out.extend_from_slice(payload));
            if pushed.is_none() {
                self.outbox.drop(DropReason::QueueFull);
            }
        }
        self.outbox.emit(Event::Delivered { packet, arrival, after, is_late });
        state.blocks.add_source(packet, payload, &mut self.solved);
        if state.flow.is_coded() {
            self.lender.keep(now, (packet, payload), state.flow.egress, &mut self.outbox);
        }
        self.rearm(packet.flow);
        Ok(())
    }

    /// Notes that sequences are missing.
    fn miss(
        now: Timestamp,
        state: &mut State,
        sequences: std::ops::Range<u64>,
        flow: FlowNumber,
        outbox: &mut Outbox,
    ) {
        // Of a long outage only the end can still be recovered.
        let kept = sequences.end.saturating_sub(WINDOW - 1).max(sequences.start);
        state.lose_all(kept - sequences.start);
        let ask_at = state.flow.keeper().map(|_| now + state.detector.tolerance());
        for sequence in kept..sequences.end {
            if state.window.look(sequence) != Seen::New {
                continue;
            }
            let expected = state.detector.expected(sequence).min(now);
            if let Some(lost) = state.missing.add(sequence, expected, ask_at) {
                Self::lose(state, flow, lost, outbox);
            }
        }
    }

    fn lose(state: &mut State, flow: FlowNumber, lost: Lost, outbox: &mut Outbox) {
        let Lost { sequence, expected } = lost;
        state.lose(sequence, expected);
        outbox.emit(Event::Lost(PacketId { flow, sequence }));
    }

    /// Accepts the packets of solved blocks, until no further block is solved by them.
    fn accept_solved(&mut self, now: Timestamp, proof: Proof<'_>) {
        while let Some((packet, payload)) = self.solved.pop() {
            if let Err(reason) = self.accept(now, packet, &payload, Arrival::InStream, proof) {
                self.outbox.drop(reason);
            }
        }
    }

    /// Sets the flow's timer, if it is earlier than the one that is set.
    fn rearm(&mut self, number: FlowNumber) {
        let Some(state) = self.flows.get_mut(&number) else { return };
        let silence = state.flow.keeper().and_then(|_| state.detector.deadline());
        let Some(due) = silence.into_iter().chain(state.missing.deadline()).min() else { return };
        if state.armed.is_none_or(|armed| due < armed) {
            state.armed = Some(due);
            self.timers.set(due, Timer::Flow(number));
        }
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some((at, timer)) = self.timers.pop_due(now) {
            match timer {
                Timer::Flow(number) => {
                    if let Some(state) = self.flows.get_mut(&number).filter(|s| s.armed == Some(at))
                    {
                        state.armed = None;
                        self.look_after(now, number);
                        self.rearm(number);
                    }
                }
                Timer::Feedback => {
                    self.report();
                    let every = self.config.feedback_every.unwrap_or(Duration::MAX);
                    self.timers.set(now + every, Timer::Feedback);
                }
                Timer::Keepalive => {
                    self.send_keepalives(now);
                    let every = self.config.keepalive_every.unwrap_or(Duration::MAX);
                    self.timers.set(now + every, Timer::Keepalive);
                }
            }
        }
    }

    /// Notes overdue packets as missing, and requests missing packets or gives them up.
    fn look_after(&mut self, now: Timestamp, number: FlowNumber) {
        let Some(state) = self.flows.get_mut(&number) else { return };
        while state.flow.keeper().is_some()
            && let Some(due) = state.detector.deadline().filter(|due| *due <= now)
        {
            let (sequence, expected) = state.detector.miss(due);
            // With the long timer it may have been sent since it was requested.
            state.missing.remove(sequence);
            if state.window.look(sequence) == Seen::New
                && let Some(lost) = state.missing.add(sequence, expected, Some(now))
            {
                Self::lose(state, number, lost, &mut self.outbox);
            }
        }
        let known = state.detector.known();
        self.scratch.clear();
        let given_up = state.missing.take_due(now, known, &mut self.scratch);
        given_up.forgotten.into_iter().for_each(|sequence| state.detector.forget(sequence));
        for lost in given_up.lost {
            Self::lose(state, number, lost, &mut self.outbox);
        }
        let Some(keeper) = state.flow.keeper() else { return };
        let items = u32::try_from(self.scratch.len()).unwrap_or(u32::MAX);
        if items > 0 {
            if state.asks.take(now, items) {
                missing::request(keeper, number, &self.scratch, &mut self.outbox);
            } else {
                self.outbox.drop(DropReason::OverBudget);
            }
        }
    }

    /// Returns how much is kept: packets to lend, blocks to solve, and requests of this receiver
    /// and of others.
    #[must_use]
    pub fn held(&self) -> StoredAmounts {
        let missing: usize = self.flows.values().map(|state| state.missing.len()).sum();
        StoredAmounts {
            packets: self.lender.packets.len(),
            bytes: self.lender.packets.bytes(),
            blocks: self.flows.values().map(|state| state.blocks.len()).sum(),
            requests: missing + self.lender.waiting(),
        }
    }

    /// Returns the next packet for the application.
    pub fn poll_delivery(&mut self) -> Option<Delivery<'_>> {
        let ((packet, arrival, is_late), payload) = self.deliveries.pop()?;
        Some(Delivery { packet, arrival, is_late, payload })
    }

    /// Returns the next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        self.outbox.poll_transmit()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.outbox.poll_event()
    }

    /// Returns when to call [`Receiver::handle_timeout`] next, and for which reason.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, TimerReason)> {
        self.timers.first().map(|(at, timer)| {
            let reason = match timer {
                Timer::Flow(number) => {
                    let silence = self.flows.get(&number).and_then(|s| s.detector.deadline());
                    if silence == Some(at) { TimerReason::Silence } else { TimerReason::Missing }
                }
                Timer::Feedback => TimerReason::Feedback,
                Timer::Keepalive => TimerReason::Keepalive,
            };
            (at, reason)
        })
    }
}

/// Returns the flow of this number, if `egress` is its egress relay.
fn served_by(
    flows: &mut BTreeMap<FlowNumber, State>,
    number: FlowNumber,
    egress: Peer,
) -> Result<&mut State, DropReason> {
    let state = flows.get_mut(&number).ok_or(DropReason::UnknownFlow)?;
    if state.flow.egress == Some(egress) { Ok(state) } else { Err(DropReason::WrongPeer) }
}
