//! The receiver's part: it asks one relay for what waits, in rounds.
//!
//! A question tells what has come, so that it need wait no longer, and how many stored messages may
//! follow; the answer ends with how many are left. The next question follows at once while there is
//! something, and after a second while there is nothing. Stored messages are handed on in order.

use std::collections::{BTreeMap, VecDeque};

use tradewind_units::{Duration, Timestamp};

use super::message_store::WINDOW;
use crate::message::{Acknowledgement, Collect, Remaining, StoredMessage};
use crate::round_trip::RoundTrip;

/// Time between two questions while nothing waits. Chosen: with all headers asking costs 20 kB a
/// minute.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// How long an answer may take before a round trip is measured, and at most.
const LONGEST_ANSWER: Duration = Duration::from_secs(1);
/// Credit of the first round, least and most. Chosen: bursts that access links' queues bear, and
/// applications' sockets.
const FIRST_CREDIT: u16 = 16;
const LEAST_CREDIT: u16 = 8;
const MOST_CREDIT: u16 = 64;
/// Rounds in which later stored messages come and one does not, until that is given up. Chosen: it
/// is too long for the path; no loss is that persistent.
const MOST_STALLS: u32 = 40;
/// Wait after the first round that brought nothing in order; doubled for each other.
const FIRST_STALL: Duration = Duration::from_millis(10);

/// What comes from one relay.
#[derive(Debug)]
pub struct Collector {
    epoch: u64,
    /// All positions below have come.
    next: u64,
    /// Those that came before one that is missing, with the position that they may follow.
    held: BTreeMap<u64, (u64, Vec<u8>)>,
    ready: VecDeque<Vec<u8>>,
    ask: u64,
    is_awaited: bool,
    asked: Timestamp,
    due: Timestamp,
    has_progress: bool,
    stalls: u32,
    credit: u16,
    round_trip: RoundTrip,
}

impl Default for Collector {
    fn default() -> Self {
        Self {
            epoch: 0,
            next: 0,
            held: BTreeMap::new(),
            ready: VecDeque::new(),
            ask: 0,
            is_awaited: false,
            asked: Timestamp::ZERO,
            due: Timestamp::ZERO,
            has_progress: false,
            stalls: 0,
            credit: FIRST_CREDIT,
            round_trip: RoundTrip::default(),
        }
    }
}

impl Collector {
    /// The question that is due.
    pub fn poll_collect(&mut self, now: Timestamp) -> Option<Collect> {
        if now < self.due {
            return None;
        }
        if self.is_awaited {
            self.credit = (self.credit / 2).max(LEAST_CREDIT);
        }
        self.ask += 1;
        (self.asked, self.is_awaited) = (now, true);
        self.due = now + self.reply_timeout();
        let seen = Acknowledgement::of(self.next, self.held.keys().copied());
        Some(Collect { epoch: self.epoch, ask: self.ask, credit: self.credit, seen })
    }

    /// The next stored message in order.
    pub fn poll_stored_message(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    /// Takes a stored message of the relay.
    pub fn handle_stored_message(&mut self, now: Timestamp, stored_message: &StoredMessage<'_>) {
        self.live_in(stored_message.epoch);
        if self.is_awaited {
            self.due = now + self.reply_timeout();
        }
        let StoredMessage { since, position, stored_message: bytes, .. } = *stored_message;
        if position < self.next {
            return;
        }
        if since > self.next {
            if (1..=WINDOW).contains(&(position - self.next)) {
                self.held.insert(position, (since, bytes.to_vec()));
            }
            return;
        }
        self.take(position, bytes.to_vec());
        self.take_held();
    }

    /// Takes the end of an answer.
    pub fn handle_remaining(&mut self, now: Timestamp, remaining: &Remaining) {
        if remaining.ask != self.ask || !self.is_awaited {
            return;
        }
        self.live_in(remaining.epoch);
        self.is_awaited = false;
        self.round_trip.learn(now.since(self.asked));
        let has_gap = !self.held.is_empty();
        self.credit = match has_gap {
            true => (self.credit / 2).max(LEAST_CREDIT),
            false => self.credit.saturating_mul(2).min(MOST_CREDIT),
        };
        if std::mem::take(&mut self.has_progress) {
            (self.stalls, self.due) = (0, now);
        } else if has_gap || remaining.left > 0 {
            self.stalls += 1;
            self.due = now + (FIRST_STALL * (1 << self.stalls.min(8))).min(POLL_EVERY);
            self.give_up_hopeless();
        } else {
            (self.stalls, self.due) = (0, now + POLL_EVERY);
        }
    }

    /// How long the answer, or more of it, may take.
    fn reply_timeout(&self) -> Duration {
        (self.round_trip.reply_timeout(LONGEST_ANSWER) * 2).min(LONGEST_ANSWER)
    }

    /// Another life of the relay: its positions begin anew.
    fn live_in(&mut self, epoch: u64) {
        if epoch != self.epoch {
            (self.epoch, self.next) = (epoch, 0);
            self.held.clear();
        }
    }

    fn take(&mut self, position: u64, bytes: Vec<u8>) {
        self.held.remove(&position);
        self.next = position + 1;
        self.has_progress = true;
        self.ready.push_back(bytes);
    }

    /// Hands on what was held back and is in order now.
    fn take_held(&mut self) {
        while let Some(first) = self.held.first_entry() {
            let (position, (since, _)) = (*first.key(), first.get());
            if position >= self.next && *since > self.next {
                break;
            }
            let (_, bytes) = first.remove();
            if position >= self.next {
                self.take(position, bytes);
            }
        }
    }

    fn give_up_hopeless(&mut self) {
        if self.stalls >= MOST_STALLS
            && let Some((position, (_, bytes))) = self.held.pop_first()
        {
            self.take(position, bytes);
            self.take_held();
        }
    }
}
