//! The receiver's side: packets to the application once each, whichever way they come first; what is missing is asked for near by.
//!
//! | part | does |
//! |---|---|
//! | `detector` | tells when a packet should have come |
//! | `missing` | what is missing: when to ask for it, ask again, and give it up |
//! | `solve` | solves in-stream blocks with the flow's own packets |
//! | `report` | tells senders how their flows fare, and relays that it is there |
//! | `lend` | keeps packets for one or two round trips, and lends them to the egress relay for others |
//!
//! A packet is taken only if it is what its sender sealed ([`Genuine`]), by whatever way it came; nothing else alters any state.

mod detector;
mod lend;
mod missing;
mod report;
mod solve;

use std::collections::BTreeMap;

use tradewind_units::{Bytes, Duration, Timestamp};

use crate::budget::{Allowance, Budget};
use crate::event::{DropReason, Event, TimerReason, Way};
use crate::id::{FlowNumber, Genuine, PacketId, Peer};
use crate::message::{Means, Message, Service, Source};
use crate::outbox::{Arena, Outbox, Transmit};
use crate::store::{Keep, Store};
use crate::timers::Timers;
use crate::window::{Seen, WINDOW, Window};
use detector::Detector;
use lend::Waiting;
use missing::Missing;
use report::Counts;
use solve::Blocks;

/// Most flows of one receiver. Chosen: a gateway of a large site.
pub const MOST_FLOWS: usize = 65_536;

/// A flow at its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverFlow {
    /// Who sends it over the Internet.
    pub sender: Peer,
    /// Who keeps packets of it near by; without one nothing is asked for.
    pub egress: Option<Peer>,
    /// The round trip of the Internet path, as measured when the flow began.
    pub round_trip: Duration,
    /// How much later than it should have come a packet is still worth having: the latency budget less the path's delay.
    pub patience: Duration,
}

/// What holds for all flows of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// What is kept to be lent. Its age should be one to two round trips [JQ 3.2].
    pub lend: Keep,
    /// Packets lent.
    pub lends: Allowance,
    /// Packets that each flow may ask for.
    pub asks: Allowance,
    /// How often senders are told how their flows fare; `None`: never.
    pub feedback_every: Option<Duration>,
    /// How often egress relays hear that this receiver is there; `None`: never.
    pub keepalive_every: Option<Duration>,
}

impl Default for ReceiverConfig {
    /// Chosen: packets of 400 ms, two round trips of most paths; requests and loans as [`EgressConfig`](crate::egress::EgressConfig)
    /// allows them; reports each second, keepalives each 5 s.
    fn default() -> Self {
        let allowance = Allowance { per_second: 1000, burst: 1000 };
        Self {
            lend: Keep {
                age: Duration::from_millis(400),
                bytes: Bytes::new(64 << 20),
                packets: 65_536,
            },
            lends: allowance,
            asks: allowance,
            feedback_every: Some(Duration::from_secs(1)),
            keepalive_every: Some(Duration::from_secs(5)),
        }
    }
}

/// A packet for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// Which.
    pub packet: PacketId,
    /// How it came.
    pub way: Way,
    /// Whether it is later than the flow's patience.
    pub is_late: bool,
    /// The sealed payload.
    pub payload: &'a [u8],
}

#[derive(Debug, Clone)]
struct State {
    flow: ReceiverFlow,
    window: Window,
    detector: Detector,
    missing: Missing,
    blocks: Blocks,
    asks: Budget,
    counts: Counts,
    /// The deadline that is set.
    armed: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Flow(FlowNumber),
    Feedback,
    Keepalive,
}

/// The machine.
#[derive(Debug, Clone)]
pub struct Receiver<G> {
    config: ReceiverConfig,
    genuine: G,
    flows: BTreeMap<FlowNumber, State>,
    lent: Store,
    lends: Budget,
    waiting: Waiting,
    deliveries: Arena<(PacketId, Way, bool)>,
    solved: Vec<(PacketId, Vec<u8>)>,
    scratch: Vec<u64>,
    timers: Timers<Timer>,
    outbox: Outbox,
}

impl<G: Genuine> Receiver<G> {
    /// A receiver without flows, at `now`; `genuine` tells what its senders sealed.
    #[must_use]
    pub fn new(now: Timestamp, config: ReceiverConfig, genuine: G) -> Self {
        let mut timers = Timers::default();
        let first =
            [(config.feedback_every, Timer::Feedback), (config.keepalive_every, Timer::Keepalive)];
        for (every, timer) in first {
            if let Some(every) = every {
                timers.set(now + every, timer);
            }
        }
        Self {
            config,
            genuine,
            flows: BTreeMap::new(),
            lent: Store::new(config.lend),
            lends: Budget::new(config.lends),
            waiting: Waiting::default(),
            deliveries: Arena::default(),
            solved: Vec::new(),
            scratch: Vec::new(),
            timers,
            outbox: Outbox::default(),
        }
    }

    /// Begins a flow. A sender that starts anew begins another flow: sequences never go back.
    ///
    /// # Errors
    /// [`DropReason::TableFull`] when there are too many, [`DropReason::Duplicate`] when there is one of that number.
    pub fn add_flow(&mut self, number: FlowNumber, flow: ReceiverFlow) -> Result<(), DropReason> {
        if self.flows.contains_key(&number) {
            return Err(DropReason::Duplicate);
        }
        if self.flows.len() >= MOST_FLOWS {
            return Err(DropReason::TableFull);
        }
        let state = State {
            flow,
            window: Window::new(),
            detector: Detector::new(flow.round_trip),
            missing: Missing::new(flow.round_trip, flow.patience),
            blocks: Blocks::default(),
            asks: Budget::new(self.config.asks),
            counts: Counts::default(),
            armed: None,
        };
        self.flows.insert(number, state);
        Ok(())
    }

    /// Ends a flow; `false` when there is none.
    pub fn remove_flow(&mut self, number: FlowNumber) -> bool {
        self.flows.remove(&number).is_some()
    }

    /// Takes a message that came from `from` in its session.
    pub fn handle_datagram(&mut self, now: Timestamp, from: Peer, bytes: &[u8]) {
        let done = match Message::parse(bytes) {
            Ok(Message::Source(source)) => self.take_source(now, from, source),
            Ok(Message::Recovered { packet, means, payload }) => {
                self.take_recovered(now, from, packet, means, payload)
            }
            Ok(Message::Repair(repair)) => self.take_repair(now, from, &repair),
            Ok(Message::HelpRequest(request)) => self.take_help_request(now, from, request),
            Ok(Message::Keepalive { is_answer, nonce }) => {
                self.take_keepalive(now, from, is_answer, nonce)
            }
            Ok(_) => Err(DropReason::Unexpected),
            Err(_) => Err(DropReason::Malformed),
        };
        if let Err(reason) = done {
            self.outbox.drop(reason);
        }
        self.accept_solved(now);
    }

    fn take_source(
        &mut self,
        now: Timestamp,
        from: Peer,
        source: Source<'_>,
    ) -> Result<(), DropReason> {
        let packet = source.packet;
        let state = self.flows.get(&packet.flow).ok_or(DropReason::UnknownFlow)?;
        let way = if from == state.flow.sender {
            Way::Internet
        } else if Some(from) == state.flow.egress && source.service == Service::Forwarding {
            Way::Overlay
        } else {
            return Err(DropReason::WrongPeer);
        };
        self.accept(now, packet, source.payload, way)
    }

    fn take_recovered(
        &mut self,
        now: Timestamp,
        from: Peer,
        packet: PacketId,
        means: Means,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        let state = self.flows.get(&packet.flow).ok_or(DropReason::UnknownFlow)?;
        if Some(from) != state.flow.egress {
            return Err(DropReason::WrongPeer);
        }
        if state.window.look(packet.sequence) == Seen::Before {
            return Err(DropReason::Duplicate);
        }
        if !state.missing.was_asked(packet.sequence) {
            return Err(DropReason::NotAsked);
        }
        let way = match means {
            Means::Cache => Way::Cache,
            Means::CrossStream => Way::CrossStream,
        };
        self.accept(now, packet, payload, way)
    }

    /// Takes a packet, if it is the first copy and genuine.
    fn accept(
        &mut self,
        now: Timestamp,
        packet: PacketId,
        payload: &[u8],
        way: Way,
    ) -> Result<(), DropReason> {
        let state = self.flows.get_mut(&packet.flow).ok_or(DropReason::UnknownFlow)?;
        match state.window.look(packet.sequence) {
            Seen::New => {}
            Seen::Before => return Err(DropReason::Duplicate),
            Seen::TooOld => return Err(DropReason::TooOld),
        }
        if !self.genuine.is_genuine(packet, payload) {
            return Err(DropReason::NotGenuine);
        }
        state.window.insert(packet.sequence);
        let usual = matches!(way, Way::Internet | Way::Overlay);
        let missed = state.missing.remove(packet.sequence);
        let after = missed.map_or(Duration::ZERO, |missed| now.since(missed.expected));
        let is_late = after > state.flow.patience;
        match missed {
            Some(missed) if usual => {
                state.detector.came_late(now.since(missed.expected));
                // It had been counted as lost.
                let counted = u64::from(missed.is_lost);
                state.counts.lost -= counted.min(state.counts.lost);
                state.counts.lost_by_internet -= counted.min(state.counts.lost_by_internet);
            }
            Some(missed) => {
                state.missing.came_back(now, &missed);
                state.counts.lost_by_internet += u64::from(!missed.is_lost);
                state.counts.lost -= u64::from(missed.is_lost).min(state.counts.lost);
            }
            None => {}
        }
        state.counts.in_time += u64::from(!is_late);
        state.counts.late += u64::from(is_late);
        let newly = if usual {
            state.detector.arrive(now, packet.sequence)
        } else {
            state.detector.confirm(now, packet.sequence)
        };
        if !newly.is_empty() {
            Self::miss(now, state, newly, packet.flow, &mut self.outbox);
        }
        let pushed =
            self.deliveries.push((packet, way, is_late), |out| out.extend_from_slice(payload));
        if pushed.is_none() {
            self.outbox.drop(DropReason::QueueFull);
        }
        self.outbox.tell(Event::Delivered { packet, way, after, is_late });
        self.lent.insert(now, packet, payload);
        let state = self.flows.get_mut(&packet.flow).ok_or(DropReason::UnknownFlow)?;
        state.blocks.add_source(packet, payload, &mut self.solved);
        self.lend_if_waiting(now, packet, payload);
        self.rearm(packet.flow);
        Ok(())
    }

    /// Sequences turn out to be missing.
    fn miss(
        now: Timestamp,
        state: &mut State,
        sequences: std::ops::Range<u64>,
        flow: FlowNumber,
        outbox: &mut Outbox,
    ) {
        if sequences.end - sequences.start > WINDOW {
            // No loss is that long: the sender left them out.
            return;
        }
        let ask_at = now + state.detector.tolerance();
        for sequence in sequences {
            let expected = state.detector.expected(sequence).min(now);
            if let Some(lost) = state.missing.add(sequence, expected, ask_at) {
                Self::lose(state, PacketId { flow, sequence: lost }, outbox);
            }
        }
    }

    fn lose(state: &mut State, packet: PacketId, outbox: &mut Outbox) {
        state.counts.lost += 1;
        state.counts.lost_by_internet += 1;
        outbox.tell(Event::Lost(packet));
    }

    /// Takes what blocks were solved for, until nothing more comes of it.
    fn accept_solved(&mut self, now: Timestamp) {
        while let Some((packet, payload)) = self.solved.pop() {
            if let Err(reason) = self.accept(now, packet, &payload, Way::InStream) {
                self.outbox.drop(reason);
            }
        }
    }

    /// Sets the flow's deadline, if it comes before the one that is set.
    fn rearm(&mut self, number: FlowNumber) {
        let Some(state) = self.flows.get_mut(&number) else { return };
        let silence = state.flow.egress.and_then(|_| state.detector.deadline());
        let Some(due) = silence.into_iter().chain(state.missing.deadline()).min() else { return };
        if state.armed.is_none_or(|armed| due < armed) {
            state.armed = Some(due);
            self.timers.set(due, Timer::Flow(number));
        }
    }

    /// Does what is due.
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
                    self.keep_alive(now);
                    let every = self.config.keepalive_every.unwrap_or(Duration::MAX);
                    self.timers.set(now + every, Timer::Keepalive);
                }
            }
        }
    }

    /// What is overdue counts as missing; what is missing is asked for, or given up.
    fn look_after(&mut self, now: Timestamp, number: FlowNumber) {
        let Some(state) = self.flows.get_mut(&number) else { return };
        while state.flow.egress.is_some()
            && let Some(due) = state.detector.deadline().filter(|due| *due <= now)
        {
            let sequence = state.detector.miss(due);
            let expected = state.detector.expected(sequence);
            if state.window.look(sequence) == Seen::New
                && let Some(lost) = state.missing.add(sequence, expected, now)
            {
                Self::lose(state, PacketId { flow: number, sequence: lost }, &mut self.outbox);
            }
        }
        let known = state.detector.known();
        self.scratch.clear();
        for lost in state.missing.due(now, known, &mut self.scratch) {
            Self::lose(state, PacketId { flow: number, sequence: lost }, &mut self.outbox);
        }
        let Some(egress) = state.flow.egress else { return };
        let items = u32::try_from(self.scratch.len()).unwrap_or(u32::MAX);
        if items > 0 {
            if state.asks.take(now, items) {
                missing::ask(egress, number, &self.scratch, &mut self.outbox);
            } else {
                self.outbox.drop(DropReason::OverBudget);
            }
        }
    }

    /// The next packet for the application.
    pub fn poll_delivery(&mut self) -> Option<Delivery<'_>> {
        let ((packet, way, is_late), payload) = self.deliveries.pop()?;
        Some(Delivery { packet, way, is_late, payload })
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        self.outbox.poll_transmit()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.outbox.poll_event()
    }

    /// When to call [`Receiver::handle_timeout`] next, and what for.
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
