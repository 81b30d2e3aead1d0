//! The sender's part: stored messages that the relay does not have yet.
//!
//! Numbered, acknowledged, and sent again when later ones have come or nothing is heard for a round
//! trip and four deviations (RFC 6298). How many are on their way follows what the leg bears, in
//! outline as TCP does: one more for each that has come, half after a loss. While the relay does
//! not answer, a few are tried now and then, and what is sealed meanwhile waits, bounded by age and
//! bytes.
//!
//! What is too old, or too much, before it was ever sent goes without a trace: numbers are given
//! when deposits are sent first. What was sent stays until the relay has it, at most a window,
//! since what comes behind it waits for its number; the relay is told when it is worth nothing any
//! more.
//!
//! A relay that does not know the stream, or a packet that no leg takes, begins a new one: all that
//! waits, from number 0, behind the envelope that the first packet needs. What comes twice by that
//! its receiver drops.

use tradewind_grant::PublicIdentity;
use tradewind_units::{Bytes, Duration, Timestamp};

use super::message_store::WINDOW;
use super::stored_messages::{Kept, StoredMessages};
use crate::message::{Deposit, Deposited};
use crate::round_trip::RoundTrip;

/// Round trip to the relay before one is measured. Chosen: a mobile access path's.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(300);
/// Longest wait before another try while the relay does not answer. Chosen: one that is back is
/// found soon.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Deposits on their way at the beginning, and at least while others come. Source: RFC 6928, in
/// outline.
const INITIAL_WINDOW: u64 = 16;
const LEAST_WINDOW: u64 = 8;
/// How often the wait is doubled at most.
const MOST_WAITS: u32 = 8;
/// How many later ones come before one counts as lost (RFC 9002, 6.1.1).
const REORDERED: u64 = 3;
/// Tries that later ones outlive, after which a deposit is given up. Chosen: it is too long for the
/// path; no loss is that persistent.
const MOST_MISSES: u8 = 32;

/// What waits for the relay at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DepositorConfig {
    /// For how long a packet is worth anything.
    pub keep: Duration,
    /// Most bytes before the relay has them.
    pub bytes: Bytes,
}

/// What became of a stored message on its way.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    at: Option<Timestamp>,
    tries: u8,
    /// Tries that were lost while later ones came, and how far those had come at the last one.
    misses: u8,
    come: u64,
    has_come: bool,
}

/// Stored messages for one receiver on their way to one relay.
#[derive(Debug)]
pub struct Depositor {
    to: PublicIdentity,
    config: DepositorConfig,
    stream: u64,
    begins: bool,
    /// The stream no longer holds what waits.
    is_stale: bool,
    /// Their numbers follow each other from `base` on; those below `gone` were sent.
    stored_messages: StoredMessages<Sent>,
    base: u64,
    /// One beyond the highest that has come, and one beyond the highest that was sent.
    come: u64,
    gone: u64,
    window: u64,
    /// The relay's life, once it has answered.
    epoch: Option<u64>,
    /// The window was halved for losses below.
    halved_to: u64,
    round_trip: RoundTrip,
    waits: u32,
    /// When what is on its way was sent first, and when it counts as lost.
    tried: Timestamp,
    deadline: Option<Timestamp>,
    deposited: u64,
    expired: u64,
    resent: u64,
}

impl Depositor {
    /// For the receiver `to`. `stream` is a number that this sender has not used before; those
    /// above it are used next.
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
            come: 0,
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

    /// Packets that the relay has acknowledged, those that were given up, and deposits that were
    /// sent again.
    #[must_use]
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.deposited, self.expired, self.resent)
    }

    /// Whether the relay has let several tries pass.
    #[must_use]
    pub fn is_unheard(&self) -> bool {
        self.waits > 1
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stored_messages.front().is_none()
    }

    /// Keeps a stored message until the relay has it.
    pub fn push(&mut self, now: Timestamp, stored_message: Vec<u8>) {
        let until = now + self.config.keep;
        // It has no number yet.
        self.stored_messages.push(Kept {
            number: 0,
            until,
            note: Sent::default(),
            bytes: stored_message,
        });
        while self.stored_messages.cost() > self.config.bytes.as_u64()
            && self.give_up_unsent(|_| true)
        {}
    }

    /// The relay can be reached again: what waits is tried at once.
    pub fn relay_is_back(&mut self) {
        if self.waits > 0 {
            self.waits = 0;
            self.time_out();
        }
    }

    /// Gives up what became too old before it was sent.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while self.give_up_unsent(|kept| kept.until <= now) {}
    }

    /// What is to be sent now; until there is nothing.
    pub fn poll_deposit(&mut self, now: Timestamp) -> Option<Deposit<'_>> {
        self.handle_timeout(now);
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.waits = (self.waits + 1).min(MOST_WAITS);
            self.time_out();
        }
        // While the relay does not answer there is a try now and then.
        if self.waits > 0 && self.deadline.is_some() && now > self.tried {
            return None;
        }
        if self.is_stale && self.stored_messages.front().is_some() {
            self.begin_anew();
            // What was on its way may go by now.
            self.handle_timeout(now);
        }
        let reply_timeout = self.reply_timeout();
        let window = if self.waits > 0 { LEAST_WINDOW } else { self.window };
        let in_window = (self.base..).zip(self.stored_messages.waiting()).take(window as usize);
        let mut due =
            in_window.filter(|(number, kept)| self.is_due(now, reply_timeout, *number, kept));
        let number = due.next()?.0;
        self.note_loss(number);
        self.gone = self.gone.max(number + 1);
        if self.deadline.is_none() {
            self.deadline = Some(now + (reply_timeout * (1 << self.waits)).min(LONGEST_WAIT));
            self.tried = now;
        }
        let (stream, begins, to, come) = (self.stream, self.begins, self.to, self.come);
        let at = (number - self.base) as usize;
        let kept = self.stored_messages.waiting_mut().get_mut(at)?;
        self.resent += u64::from(kept.note.tries > 0);
        let is_missed = kept.note.tries > 0 && come > kept.note.come.max(number + REORDERED);
        kept.note = Sent {
            at: Some(now),
            tries: kept.note.tries.saturating_add(1),
            misses: kept.note.misses.saturating_add(u8::from(is_missed)),
            come,
            has_come: false,
        };
        // Rounded up, so that the relay does not give up first; nothing for what is too old.
        let keep_s = kept.until.since(now).as_secs() + u64::from(kept.until > now);
        let keep_s = u32::try_from(keep_s).unwrap_or(u32::MAX);
        Some(Deposit { stream, begins, number, keep_s, to, stored_message: &kept.bytes })
    }

    /// Takes the relay's answer.
    pub fn handle_deposited(&mut self, now: Timestamp, told: &Deposited) {
        let (seen, is_possible) = (told.seen, told.seen.end() <= self.gone);
        if told.stream != self.stream || self.is_stale || !is_possible {
            return;
        }
        let is_another_life = self.epoch.is_some_and(|epoch| epoch != told.epoch);
        self.epoch = Some(told.epoch);
        // One that does not know the stream before the first acknowledgement answers what was
        // overtaken.
        if is_another_life || !told.is_known {
            if !self.begins {
                (self.is_stale, self.waits, self.deadline) = (true, 0, None);
            }
            return;
        }
        self.begins = false;
        self.come = self.come.max(seen.end());
        let (mut fresh, mut sample) = (0, None);
        let sent = (self.base..self.gone).zip(self.stored_messages.waiting_mut());
        for (number, kept) in sent {
            if !kept.note.has_come && seen.has(number) {
                kept.note.has_come = true;
                fresh += 1;
                // Karn: one that was sent twice tells nothing.
                let at = kept.note.at.filter(|_| kept.note.tries == 1);
                sample = at.map(|at| now.since(at)).or(sample);
            }
        }
        // What came before one that is missing waits with it.
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
        kept: &Kept<Sent>,
    ) -> bool {
        let Sent { at, tries, has_come, .. } = kept.note;
        let Some(at) = at.filter(|_| !has_come) else { return !has_come };
        let is_overtaken = number + REORDERED < self.come;
        is_overtaken && (tries == 1 || now.since(at) >= reply_timeout)
    }

    fn reply_timeout(&self) -> Duration {
        self.round_trip.reply_timeout(FIRST_ROUND_TRIP).min(LONGEST_WAIT)
    }

    /// The window halves once for all that is on its way when a loss is noticed.
    fn note_loss(&mut self, number: u64) {
        let is_loss = number < self.gone && number + REORDERED < self.come;
        if is_loss && number >= self.halved_to {
            self.window = (self.window / 2).max(LEAST_WINDOW);
            self.halved_to = self.gone;
        }
    }

    /// All that is on its way is taken for lost, and what came before something that did not (RFC
    /// 2018, 8).
    fn time_out(&mut self) {
        self.deadline = None;
        self.window = (self.window / 2).max(LEAST_WINDOW);
        self.stored_messages.waiting_mut().iter_mut().take(WINDOW as usize + 1).for_each(|kept| {
            (kept.note.at, kept.note.has_come) = (None, false);
        });
    }

    /// Gives up the oldest packet that was never sent, if it is to go; whether it did.
    fn give_up_unsent(&mut self, is_to_go: impl Fn(&Kept<Sent>) -> bool) -> bool {
        let sent = (self.gone - self.base) as usize;
        let is_packet = self.stored_messages.let_go_behind(sent, is_to_go);
        self.expired += u64::from(is_packet == Some(true));
        is_packet.is_some()
    }

    /// One that does not come while others do would hold up all behind it.
    fn give_up_hopeless(&mut self) {
        let first = self.stored_messages.front();
        let is_hopeless =
            |kept: &&Kept<Sent>| kept.note.misses >= MOST_MISSES && !kept.is_envelope();
        if first.filter(is_hopeless).is_some() {
            self.stored_messages.pop();
            self.base += 1;
            self.expired += 1;
            self.is_stale = true;
        }
    }

    fn begin_anew(&mut self) {
        self.stored_messages.put_envelope_back();
        for kept in self.stored_messages.waiting_mut() {
            kept.note = Sent { misses: kept.note.misses, ..Sent::default() };
        }
        self.stream = self.stream.wrapping_add(1);
        (self.begins, self.is_stale, self.deadline) = (true, false, None);
        (self.base, self.come, self.gone, self.halved_to) = (0, 0, 0, 0);
        self.window = self.window.min(INITIAL_WINDOW);
    }
}
