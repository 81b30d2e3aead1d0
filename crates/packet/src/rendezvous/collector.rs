//! The receiver's part: requests the stored messages that wait at one relay, in rounds.
//!
//! A request acknowledges the messages that have come, so that the relay can delete them, and says
//! how many stored messages may follow; the answer ends with how many are left. The next request
//! follows at once while messages are left, and after a second otherwise. Stored messages are
//! delivered in order.

use std::collections::{BTreeMap, VecDeque};

use tradewind_units::{Duration, Timestamp};

use super::message_store::WINDOW;
use crate::message::{Acknowledgement, Collect, Remaining, StoredMessage};
use crate::round_trip::RoundTrip;

/// The interval of requests while nothing waits. Chosen: with all headers polling costs 20 kB a
/// minute.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// The timeout of an answer before a round trip is measured, and the longest.
const MAX_ANSWER: Duration = Duration::from_secs(1);
/// The credit of the first round, the least and the most. Chosen: bursts that fit into access
/// links' queues, and applications' sockets.
const FIRST_CREDIT: u16 = 16;
const MIN_CREDIT: u16 = 8;
const MAX_CREDIT: u16 = 64;
/// Rounds in which later stored messages come and one does not, after which that is given up.
/// Chosen: it is too long for the path; no loss is that persistent.
const MAX_STALLS: u32 = 40;
/// The wait after the first round without a message in order; doubled for each further one.
const FIRST_STALL: Duration = Duration::from_millis(10);

/// Collects the stored messages of one relay.
#[derive(Debug)]
pub struct Collector {
    epoch: u64,
    /// Every position below has come.
    next: u64,
    /// Messages that came before a missing one, by position, with the position that they may
    /// follow.
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
    /// Returns the request that is due.
    pub fn poll_collect(&mut self, now: Timestamp) -> Option<Collect> {
        if now < self.due {
            return None;
        }
        if self.is_awaited {
            self.credit = (self.credit / 2).max(MIN_CREDIT);
        }
        self.ask += 1;
        (self.asked, self.is_awaited) = (now, true);
        self.due = now + self.reply_timeout();
        let seen = Acknowledgement::of(self.next, self.held.keys().copied());
        Some(Collect { epoch: self.epoch, ask: self.ask, credit: self.credit, seen })
    }

    /// Returns the next stored message in order.
    pub fn poll_stored_message(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    /// Handles a stored message of the relay.
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

    /// Handles the end of an answer.
    pub fn handle_remaining(&mut self, now: Timestamp, remaining: &Remaining) {
        if remaining.ask != self.ask || !self.is_awaited {
            return;
        }
        self.live_in(remaining.epoch);
        self.is_awaited = false;
        self.round_trip.learn(now.since(self.asked));
        let has_gap = !self.held.is_empty();
        self.credit = if has_gap {
            (self.credit / 2).max(MIN_CREDIT)
        } else {
            self.credit.saturating_mul(2).min(MAX_CREDIT)
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

    /// Returns how long the answer, or more of it, may take.
    fn reply_timeout(&self) -> Duration {
        (self.round_trip.reply_timeout(MAX_ANSWER) * 2).min(MAX_ANSWER)
    }

    /// Starts anew when the relay has a new epoch, in which positions begin anew.
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

    /// Releases held messages that are in order now.
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
        if self.stalls >= MAX_STALLS
            && let Some((position, (_, bytes))) = self.held.pop_first()
        {
            self.take(position, bytes);
            self.take_held();
        }
    }
}
