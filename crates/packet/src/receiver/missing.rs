//! Missing packets: when to request them, when to request them again, when to give them up.

use std::collections::VecDeque;

use tradewind_units::{Duration, Timestamp};

use crate::event::Event;
use crate::id::{FlowNumber, Peer};
use crate::message::{Message, Nack, Ranges, write_ranges};
use crate::outbox::Outbox;

/// The most packets of a flow that are missing at a time; beyond that the oldest are given up.
/// Chosen: an outage of 5 s at 100 packets a second.
const MAX_MISSING: usize = 512;
/// The most requests for one packet. Chosen: the egress relay answers twice, a request may get
/// lost, and a packet whose copy got lost as well may be at the relay a round trip later.
const MAX_ASKS: u8 = 4;
/// The least time before a packet is requested again. Chosen: more than most relays near by need
/// for an answer.
const MIN_RETRY: Duration = Duration::from_millis(20);

/// A packet that should have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Missed {
    sequence: u64,
    pub(super) expected: Timestamp,
    /// Set when it was given up and counted as lost.
    is_lost: bool,
    asks: u8,
    asked: Timestamp,
    next: Timestamp,
}

impl Missed {
    fn lost(&self) -> Lost {
        Lost { sequence: self.sequence, expected: self.expected }
    }
}

/// A packet that is not waited for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) sequence: u64,
    pub(super) expected: Timestamp,
}

/// Sequences that are not waited for any more.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    pub(super) lost: Vec<Lost>,
    /// The first of those that may never have been sent.
    pub(super) forgotten: Option<u64>,
}

/// All missing packets of a flow, in the order of their sequences.
#[derive(Debug, Clone)]
pub(super) struct Missing {
    list: VecDeque<Missed>,
    /// No packet is due before this time; the one that is due then may have come meanwhile.
    next: Option<Timestamp>,
    round_trip: Duration,
    recovery_deadline: Duration,
    /// The smoothed time from a request to its answer.
    answer: Option<Duration>,
}

impl Missing {
    pub(super) fn new(round_trip: Duration, recovery_deadline: Duration) -> Self {
        Self { list: VecDeque::new(), next: None, round_trip, recovery_deadline, answer: None }
    }

    /// Updates the measured times of the paths.
    pub(super) fn set_path(&mut self, round_trip: Duration, recovery_deadline: Duration) {
        (self.round_trip, self.recovery_deadline) = (round_trip, recovery_deadline);
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    fn place(&self, sequence: u64) -> Result<usize, usize> {
        match self.list.back() {
            Some(last) if last.sequence < sequence => Err(self.list.len()),
            _ => self.list.binary_search_by_key(&sequence, |missed| missed.sequence),
        }
    }

    /// Adds a sequence that was due at `expected`, unless it is there already, to be requested at
    /// `ask_at` or only waited for; returns the one that had to be given up for it.
    pub(super) fn add(
        &mut self,
        sequence: u64,
        expected: Timestamp,
        ask_at: Option<Timestamp>,
    ) -> Option<Lost> {
        match self.place(sequence) {
            Ok(_) => None,
            Err(place) => {
                let next = ask_at.unwrap_or(expected + self.recovery_deadline);
                self.next = Some(self.next.map_or(next, |first| first.min(next)));
                let asked = Timestamp::ZERO;
                let fresh = Missed { sequence, expected, is_lost: false, asks: 0, asked, next };
                self.list.insert(place, fresh);
                let oldest = (self.list.len() > MAX_MISSING).then(|| self.list.pop_front());
                oldest.flatten().filter(|missed| !missed.is_lost).map(|missed| missed.lost())
            }
        }
    }

    /// Removes a sequence that has come.
    pub(super) fn remove(&mut self, sequence: u64) -> Option<Missed> {
        if self.list.is_empty() {
            return None;
        }
        self.place(sequence).ok().and_then(|place| self.list.remove(place))
    }

    pub(super) fn was_asked(&self, sequence: u64) -> bool {
        self.place(sequence).is_ok_and(|place| self.list[place].asks > 0)
    }

    /// Makes all missing packets due, since a relay that can be asked is known only now.
    pub(super) fn request_at_once(&mut self) {
        for missed in self.list.iter_mut().filter(|missed| !missed.is_lost) {
            missed.next = missed.expected;
        }
        self.next = self.first();
    }

    /// Learns the time to an answer from a packet that was recovered.
    pub(super) fn came_back(&mut self, now: Timestamp, missed: &Missed) {
        if missed.asks == 1 {
            let took = now.since(missed.asked);
            self.answer = Some(self.answer.map_or(took, |answer| (answer * 7 + took) / 8));
        }
    }

    fn first(&self) -> Option<Timestamp> {
        self.list.iter().map(|missed| missed.next).min()
    }

    fn retry(&self) -> Duration {
        self.answer.map_or(self.round_trip / 2, |answer| answer * 3 / 2).max(MIN_RETRY)
    }

    /// Returns when to call [`Missing::take_due`] next.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.next
    }

    /// Handles the packets that are due; sequences to request go to `asks`. A sequence from `known`
    /// on may never have been sent, and is forgotten when another would be given up.
    pub(super) fn take_due(&mut self, now: Timestamp, known: u64, asks: &mut Vec<u64>) -> GivenUp {
        let retry = self.retry();
        let recovery_deadline = self.recovery_deadline;
        let mut given_up = GivenUp::default();
        let mut has_old = false;
        for missed in self.list.iter_mut().filter(|missed| missed.next <= now) {
            let end = missed.expected + recovery_deadline;
            if missed.is_lost || (now >= end && missed.sequence >= known) {
                missed.next = Timestamp::ZERO;
                has_old = true;
                if !missed.is_lost {
                    given_up.forgotten = given_up.forgotten.or(Some(missed.sequence));
                }
            } else if now >= end {
                missed.is_lost = true;
                // Kept for the same time again: it may come late.
                missed.next = now + recovery_deadline;
                given_up.lost.push(missed.lost());
            } else if missed.asks >= if missed.sequence < known { MAX_ASKS } else { 1 } {
                // A packet that may never have been sent is requested once, until there is a sign
                // that it was.
                missed.next = if missed.asks >= MAX_ASKS { end } else { (now + retry).min(end) };
            } else {
                asks.push(missed.sequence);
                missed.asks += 1;
                missed.asked = now;
                let next = match missed.asks + 1 {
                    // By then its sender knows that the copy did not come, and has sent another,
                    // even if the relay is as far from it as this receiver.
                    MAX_ASKS => (missed.expected + self.round_trip).max(now + retry),
                    _ => now + retry,
                };
                missed.next = next.min(end);
            }
        }
        if has_old {
            self.list.retain(|missed| missed.next != Timestamp::ZERO);
        }
        self.next = self.first();
        given_up
    }
}

/// Requests sequences, which must ascend.
pub(super) fn request(to: Peer, flow: FlowNumber, sequences: &[u64], outbox: &mut Outbox) {
    let mut rest = sequences;
    let mut bytes = Vec::new();
    while !rest.is_empty() {
        bytes.clear();
        let written = write_ranges(rest, &mut bytes);
        outbox.send(to, &Message::Nack(Nack { flow, ranges: Ranges::of(&bytes) }));
        let items = u8::try_from(written).expect("at most 64");
        outbox.emit(Event::NackSent { flow, items });
        rest = &rest[written..];
    }
}
