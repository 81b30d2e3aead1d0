//! The sender's part: keeps the stored messages that the relay does not have yet, and sends them.
//!
//! Deposits are numbered, acknowledged, and sent again when later ones have come or there is no
//! answer for a round trip and four deviations (RFC 6298). The window follows the capacity of the
//! leg, in outline as TCP's does: one more for each deposit that has come, half after a loss. While
//! the relay does not answer, a few are tried now and then, and newly sealed messages wait, bounded
//! by age and bytes.
//!
//! Messages that expire or exceed the bounds before they were ever sent are dropped without a gap
//! in the numbers: a number is assigned when a deposit is first sent. A sent message stays until
//! the relay has it, at most a window of them, since later ones wait for its number; its expiry is
//! reported to the relay.
//!
//! When the relay does not know the stream, or a packet is too long for the leg, a new stream
//! begins: all waiting messages, from number 0, after the stored header that the first packet
//! needs. The receiver drops duplicates.

use tradewind_grant::PublicIdentity;
use tradewind_units::{Bytes, Duration, Timestamp};

use super::message_store::WINDOW;
use super::stored_messages::{Stored, StoredMessages};
use crate::message::{Deposit, Deposited};
use crate::round_trip::RoundTrip;

/// The round trip to the relay before one is measured. Chosen: a mobile access path's.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(300);
/// The longest wait before another try while the relay does not answer. Chosen: a relay that is
/// back is found soon.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The initial window of deposits in flight, and the least while others come. Source: RFC 6928, in
/// outline.
const INITIAL_WINDOW: u64 = 16;
const MIN_WINDOW: u64 = 8;
/// The most times that the wait is doubled.
const MAX_WAITS: u32 = 8;
/// The number of later deposits that come before one counts as lost (RFC 9002, 6.1.1).
const REORDERED: u64 = 3;
/// Tries lost while later deposits came, after which a deposit is given up. Chosen: it is too long
/// for the path; no loss is that persistent.
const MAX_MISSES: u8 = 32;

/// The limits of messages that wait for the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DepositorConfig {
    /// The time for which a packet is worth having.
    pub keep: Duration,
    /// The most bytes that wait.
    pub bytes: Bytes,
}

/// Counts of a depositor's packets by their outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DepositCounts {
    /// Packets that the relay has acknowledged.
    pub deposited: u64,
    /// Packets that were given up.
    pub expired: u64,
    /// Deposits that were sent again.
    pub resent: u64,
}

/// The state of a stored message in flight.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    at: Option<Timestamp>,
    tries: u8,
    /// The number of tries lost while later deposits came, and how far those had come at the last
    /// one.
    misses: u8,
    acknowledged_end: u64,
    has_come: bool,
}

/// The stored messages for one receiver on their way to one relay.
#[derive(Debug)]
pub struct Depositor {
    to: PublicIdentity,
    config: DepositorConfig,
    stream: u64,
    begins: bool,
    /// Set when the waiting messages can no longer be sent in the stream.
    is_stale: bool,
    /// The waiting messages, numbered from `base` on; those with numbers below `gone` were sent.
    stored_messages: StoredMessages<Sent>,
    base: u64,
    /// One beyond the highest that has come, and one beyond the highest that was sent.
    acknowledged_end: u64,
    gone: u64,
    window: u64,
    /// The relay's epoch, once it has answered.
    epoch: Option<u64>,
    /// The number up to which losses have halved the window already.
    halved_to: u64,
    round_trip: RoundTrip,
    waits: u32,
    /// When the deposits in flight were first sent, and when they count as lost.
    tried: Timestamp,
    deadline: Option<Timestamp>,
    deposited: u64,
    expired: u64,
    resent: u64,
}

impl Depositor {
    /// Returns a depositor for the receiver `to`. `stream` is a number that this sender has not
    /// used before; those above it are used next.
    #[must_use]
    pub fn new(to: PublicIdentity, config: DepositorConfig, stream: u64) -> Self {
        Self {
            to,
            config,
            stream,
            begins: true,
            is_stale: false,
            stored_messages: StoredMessages::default(),
            base: 0,
            acknowledged_end: 0,
            gone: 0,
            epoch: None,
            window: INITIAL_WINDOW,
            halved_to: 0,
            round_trip: RoundTrip::default(),
            waits: 0,
            tried: Timestamp::ZERO,
            deadline: None,
            deposited: 0,
            expired: 0,
            resent: 0,
        }
    }

    /// Returns the counts since the start.
    #[must_use]
    pub fn counts(&self) -> DepositCounts {
        DepositCounts { deposited: self.deposited, expired: self.expired, resent: self.resent }
    }

    /// Returns whether the relay has not answered several tries.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        self.waits > 1
    }

    /// Returns whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stored_messages.front().is_none()
    }

    /// Keeps a stored message until the relay has it.
    pub fn push(&mut self, now: Timestamp, stored_message: Vec<u8>) {
        let until = now + self.config.keep;
        // It has no number yet.
        self.stored_messages.push(Stored {
            number: 0,
            until,
            note: Sent::default(),
            bytes: stored_message,
        });
        while self.stored_messages.cost() > self.config.bytes.as_u64()
            && self.give_up_unsent(|_| true)
        {}
    }

    /// Notes that the relay can be reached again: waiting messages are tried at once.
    pub fn relay_is_back(&mut self) {
        if self.waits > 0 {
            self.waits = 0;
            self.time_out();
        }
    }

    /// Gives up messages that expired before they were sent.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while self.give_up_unsent(|stored| stored.until <= now) {}
    }

    /// Returns the next deposit to be sent now, if there is one.
    pub fn poll_deposit(&mut self, now: Timestamp) -> Option<Deposit<'_>> {
        self.handle_timeout(now);
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.waits = (self.waits + 1).min(MAX_WAITS);
            self.time_out();
        }
        // While the relay does not answer there is a try now and then.
        if self.waits > 0 && self.deadline.is_some() && now > self.tried {
            return None;
        }
        if self.is_stale && self.stored_messages.front().is_some() {
            self.begin_anew();
            // Deposits that were in flight may be given up now.
            self.handle_timeout(now);
        }
        let reply_timeout = self.reply_timeout();
        let window = if self.waits > 0 { MIN_WINDOW } else { self.window };
        let in_window = (self.base..).zip(self.stored_messages.waiting()).take(window as usize);
        let mut due =
            in_window.filter(|(number, stored)| self.is_due(now, reply_timeout, *number, stored));
        let number = due.next()?.0;
        self.note_loss(number);
        self.gone = self.gone.max(number + 1);
        if self.deadline.is_none() {
            self.deadline = Some(now + (reply_timeout * (1 << self.waits)).min(MAX_WAIT));
            self.tried = now;
        }
        let (stream, begins, to, acknowledged_end) =
            (self.stream, self.begins, self.to, self.acknowledged_end);
        let at = (number - self.base) as usize;
        let stored = self.stored_messages.waiting_mut().get_mut(at)?;
        self.resent += u64::from(stored.note.tries > 0);
        let is_missed = stored.note.tries > 0
            && acknowledged_end > stored.note.acknowledged_end.max(number + REORDERED);
        stored.note = Sent {
            at: Some(now),
            tries: stored.note.tries.saturating_add(1),
            misses: stored.note.misses.saturating_add(u8::from(is_missed)),
            acknowledged_end,
            has_come: false,
        };
        // Rounded up, so that the relay does not give up first; 0 for an expired message.
        let keep_s = stored.until.since(now).as_secs() + u64::from(stored.until > now);
        let keep_s = u32::try_from(keep_s).unwrap_or(u32::MAX);
        Some(Deposit { stream, begins, number, keep_s, to, stored_message: &stored.bytes })
    }

    /// Handles the relay's answer.
    pub fn handle_deposited(&mut self, now: Timestamp, deposited: &Deposited) {
        let (seen, is_possible) = (deposited.seen, deposited.seen.end() <= self.gone);
        if deposited.stream != self.stream || self.is_stale || !is_possible {
            return;
        }
        let is_another_life = self.epoch.is_some_and(|epoch| epoch != deposited.epoch);
        self.epoch = Some(deposited.epoch);
        // An answer of a relay that does not know the stream, before the first acknowledgement, is
        // outdated.
        if is_another_life || !deposited.is_known {
            if !self.begins {
                (self.is_stale, self.waits, self.deadline) = (true, 0, None);
            }
            return;
        }
        self.begins = false;
        self.acknowledged_end = self.acknowledged_end.max(seen.end());
        let (mut fresh, mut sample) = (0, None);
        let sent = (self.base..self.gone).zip(self.stored_messages.waiting_mut());
        for (number, stored) in sent {
            if !stored.note.has_come && seen.has(number) {
                stored.note.has_come = true;
                fresh += 1;
                // Karn: one that was sent twice is no measurement.
                let at = stored.note.at.filter(|_| stored.note.tries == 1);
                sample = at.map(|at| now.since(at)).or(sample);
            }
        }
        // Messages that came before a missing one wait with it.
        while self.base < seen.next && self.stored_messages.front().is_some() {
            self.base += 1;
            self.deposited += u64::from(self.stored_messages.pop() == Some(true));
        }
        sample.into_iter().for_each(|sample| self.round_trip.learn(sample));
        if fresh > 0 {
            self.waits = 0;
            self.window = (self.window + fresh).min(WINDOW);
            let is_awaited = self.base < self.gone;
            self.deadline = is_awaited.then(|| now + self.reply_timeout());
        }
        self.give_up_hopeless();
    }

    fn is_due(
        &self,
        now: Timestamp,
        reply_timeout: Duration,
        number: u64,
        stored: &Stored<Sent>,
    ) -> bool {
        let Sent { at, tries, has_come, .. } = stored.note;
        let Some(at) = at.filter(|_| !has_come) else { return !has_come };
        let is_overtaken = number + REORDERED < self.acknowledged_end;
        is_overtaken && (tries == 1 || now.since(at) >= reply_timeout)
    }

    fn reply_timeout(&self) -> Duration {
        self.round_trip.reply_timeout(FIRST_ROUND_TRIP).min(MAX_WAIT)
    }

    /// Halves the window once for all deposits in flight when a loss is noticed.
    fn note_loss(&mut self, number: u64) {
        let is_loss = number < self.gone && number + REORDERED < self.acknowledged_end;
        if is_loss && number >= self.halved_to {
            self.window = (self.window / 2).max(MIN_WINDOW);
            self.halved_to = self.gone;
        }
    }

    /// Counts all deposits in flight as lost, and those that came before a missing one (RFC 2018,
    /// 8).
    fn time_out(&mut self) {
        self.deadline = None;
        self.window = (self.window / 2).max(MIN_WINDOW);
        self.stored_messages.waiting_mut().iter_mut().take(WINDOW as usize + 1).for_each(
            |stored| {
                (stored.note.at, stored.note.has_come) = (None, false);
            },
        );
    }

    /// Gives up the oldest packet that was never sent, if `is_to_go`; returns whether it did.
    fn give_up_unsent(&mut self, is_to_go: impl Fn(&Stored<Sent>) -> bool) -> bool {
        let sent = (self.gone - self.base) as usize;
        let is_packet = self.stored_messages.release_behind(sent, is_to_go);
        self.expired += u64::from(is_packet == Some(true));
        is_packet.is_some()
    }

    /// Gives up a deposit that does not come while others do: it would block all behind it.
    fn give_up_hopeless(&mut self) {
        let first = self.stored_messages.front();
        let is_hopeless =
            |stored: &&Stored<Sent>| stored.note.misses >= MAX_MISSES && !stored.is_header();
        if first.filter(is_hopeless).is_some() {
            self.stored_messages.pop();
            self.base += 1;
            self.expired += 1;
            self.is_stale = true;
        }
    }

    fn begin_anew(&mut self) {
        self.stored_messages.put_header_back();
        for stored in self.stored_messages.waiting_mut() {
            stored.note = Sent { misses: stored.note.misses, ..Sent::default() };
        }
        self.stream = self.stream.wrapping_add(1);
        (self.begins, self.is_stale, self.deadline) = (true, false, None);
        (self.base, self.acknowledged_end, self.gone, self.halved_to) = (0, 0, 0, 0);
        self.window = self.window.min(INITIAL_WINDOW);
    }
}
