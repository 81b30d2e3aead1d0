//! The relay's part: keeps stored messages for their receivers.
//!
//! Each sender's stream of deposits is a *lane*, which puts them in the order of their numbers. All
//! lanes for one receiver are its *mailbox*, which gives every stored message a position. The store
//! is bounded by age, by bytes for each sender, and by bytes in all. Beyond that the oldest message
//! is evicted, of the sender over its own bound or, when all together exceed the bytes, of the
//! sender with most bytes: no sender can evict others' stored messages.
//!
//! The identities of senders and receivers are proven by their sessions, and given by the machine's
//! caller.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use tradewind_grant::PublicIdentity;
use tradewind_units::{Bytes, Duration, Timestamp};

use super::stored_messages::{Stored, StoredMessages, cost};
use crate::budget::{Allowance, Budget};
use crate::message::{
    ACKNOWLEDGED_WORDS, Acknowledgement, Collect, Deposit, Deposited, Remaining, StoredMessage,
};

/// Deposits that may come before a missing one: as many as an acknowledgement covers.
pub(super) const WINDOW: u64 = 64 * ACKNOWLEDGED_WORDS as u64;
/// The most lanes of one sender, and the cost of each beside its stored messages, in bytes. Chosen:
/// a path has one, and another whenever its sender begins anew; gateways have half as many paths
/// over one relay. When stored messages wait in all of them, no other is begun.
const MAX_LANES: usize = 64;
const LANE_COST: u64 = 1024;
/// The most senders at a time. Chosen.
const MAX_SENDERS: usize = 4096;
/// The time for which a lane without stored messages is kept. Chosen: a sender that the relay has
/// forgotten begins anew, which costs a round trip.
const IDLE: Duration = Duration::from_secs(120);
/// The interval of searches for expired messages. Chosen.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// The most stored messages of an answer. Chosen: fewer full packets than the buffer of an
/// application's socket holds by default.
const MAX_CREDIT: usize = 64;
/// The rate of a receiver's requests, and of stored messages that it is sent again. Chosen: enough
/// for a third of losses at some thousand packets a second. Sending each stored message once is
/// free, since somebody has deposited it.
const ASKED: Allowance = Allowance { per_second: 1000, burst: 1024 };

/// The limits of a message store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageStoreConfig {
    /// The most bytes in all.
    pub bytes: Bytes,
    /// The most bytes of one sender.
    pub per_sender: Bytes,
    /// The longest that a message is kept.
    pub keep: Duration,
}

/// Counts of packets; stored headers are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Packets that began to wait.
    pub deposited: u64,
    /// Packets that their receivers have acknowledged.
    pub collected: u64,
    /// Packets that expired before they were collected.
    pub expired: u64,
    /// Packets that were evicted.
    pub evicted: u64,
}

/// The store of a relay.
#[derive(Debug)]
pub struct MessageStore {
    config: MessageStoreConfig,
    epoch: u64,
    lanes: BTreeMap<Name, Lane>,
    mailboxes: BTreeMap<PublicIdentity, Mailbox>,
    /// The bytes of each sender, and of all.
    bytes_used: BTreeMap<PublicIdentity, u64>,
    all_bytes_used: u64,
    /// A position above all those of mailboxes that were removed.
    floor: u64,
    next_sweep: Timestamp,
    tally: Tally,
}

/// A sender and its stream.
type Name = (PublicIdentity, u64);

#[derive(Debug)]
struct Lane {
    to: PublicIdentity,
    /// The first number that has not come.
    next: u64,
    ahead: BTreeMap<u64, (Timestamp, Vec<u8>)>,
    ahead_cost: u64,
    stored_messages: StoredMessages<()>,
    used: Timestamp,
}

#[derive(Debug)]
struct Mailbox {
    lanes: BTreeSet<Name>,
    next: u64,
    /// Every position below was sent once.
    given: u64,
    asked: Budget,
}

impl Lane {
    fn cost(&self) -> u64 {
        LANE_COST + self.ahead_cost + self.stored_messages.cost()
    }

    /// Returns whether nothing waits in it, in order or not.
    fn is_free(&self) -> bool {
        self.stored_messages.front().is_none() && self.ahead.is_empty()
    }

    fn seen(&self) -> Acknowledgement {
        Acknowledgement::of(self.next, self.ahead.keys().copied())
    }

    /// Keeps a deposit that is new and can be acknowledged.
    fn take(&mut self, deposit: &Deposit<'_>, until: Timestamp) {
        let number = deposit.number;
        if number < self.next || number - self.next > WINDOW || self.ahead.contains_key(&number) {
            return;
        }
        self.ahead_cost += cost(deposit.stored_message);
        self.ahead.insert(number, (until, deposit.stored_message.to_vec()));
    }

    /// Returns the next deposit in order, if it has come.
    fn release(&mut self) -> Option<(Timestamp, Vec<u8>)> {
        let (until, bytes) = self.ahead.remove(&self.next)?;
        self.next += 1;
        self.ahead_cost -= cost(&bytes);
        Some((until, bytes))
    }

    /// Removes the first message while `is_to_go`; returns how many packets that were.
    fn pop_while(&mut self, is_to_go: impl Fn(&Stored<()>) -> bool) -> u64 {
        let mut packets = 0;
        while self.stored_messages.front().is_some_and(&is_to_go) {
            packets += u64::from(self.stored_messages.pop() == Some(true));
        }
        packets
    }
}

impl MessageStore {
    /// Returns an empty store. `epoch` distinguishes this start of the relay from others.
    #[must_use]
    pub fn new(config: MessageStoreConfig, epoch: u64) -> Self {
        Self {
            config,
            epoch,
            lanes: BTreeMap::new(),
            mailboxes: BTreeMap::new(),
            bytes_used: BTreeMap::new(),
            all_bytes_used: 0,
            floor: 0,
            next_sweep: Timestamp::ZERO,
            tally: Tally::default(),
        }
    }

    /// Returns the counts since the last call.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Returns the bytes that all messages cost.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.all_bytes_used
    }

    /// Handles a deposit of `from`; returns the answer, unless the store has no space for it at
    /// all.
    pub fn deposit(
        &mut self,
        now: Timestamp,
        from: PublicIdentity,
        deposit: &Deposit<'_>,
    ) -> Option<Deposited> {
        let (epoch, stream, name) = (self.epoch, deposit.stream, (from, deposit.stream));
        let most = self.config.per_sender.as_u64().min(self.config.bytes.as_u64());
        if cost(deposit.stored_message) + LANE_COST > most {
            return None;
        }
        if !self.lanes.contains_key(&name) {
            if !deposit.begins {
                let seen = Acknowledgement::NOTHING;
                return Some(Deposited { epoch, stream, is_known: false, seen });
            }
            self.open_lane(now, name, deposit.to)?;
        }
        let until = now + self.config.keep.min(Duration::from_secs(deposit.keep_s.into()));
        let lane = self.lanes.get_mut(&name).filter(|lane| lane.to == deposit.to)?;
        let mailbox = self.mailboxes.get_mut(&deposit.to)?;
        let before = lane.cost();
        lane.used = now;
        lane.take(deposit, until);
        while let Some((until, bytes)) = lane.release() {
            let stored_message = Stored { number: mailbox.next, until, note: (), bytes };
            let is_packet = !stored_message.is_header();
            self.tally.deposited += u64::from(is_packet);
            // Its sender needed its number only.
            if is_packet && until <= now {
                self.tally.expired += 1;
                continue;
            }
            mailbox.next += 1;
            lane.stored_messages.push(stored_message);
        }
        let (after, seen) = (lane.cost(), lane.seen());
        self.account(from, before, after);
        self.make_room(from);
        Some(Deposited { epoch, stream, is_known: true, seen })
    }

    /// Answers a receiver's request: hands over the messages that wait for it, and returns how many
    /// are left. Returns `None` when the receiver's rate is exceeded.
    pub fn collect(
        &mut self,
        now: Timestamp,
        owner: PublicIdentity,
        collect: &Collect,
        give: impl FnMut(StoredMessage<'_>),
    ) -> Option<Remaining> {
        let (epoch, ask) = (self.epoch, collect.ask);
        let Some(mailbox) = self.mailboxes.get_mut(&owner) else {
            return Some(Remaining { epoch, ask, left: 0 });
        };
        if !mailbox.asked.take(now, 1) {
            return None;
        }
        // Positions of another epoch mean nothing.
        let seen = if collect.epoch == epoch { collect.seen } else { Acknowledgement::NOTHING };
        for name in mailbox.lanes.clone() {
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            let before = lane.cost();
            self.tally.collected += lane.pop_while(|first| first.number < seen.next);
            let after = lane.cost();
            self.account(name.0, before, after);
        }
        let credit = usize::from(collect.credit).min(MAX_CREDIT);
        let left = self.hand_over((now, owner), &seen, credit, give);
        Some(Remaining { epoch, ask, left: u32::try_from(left).unwrap_or(u32::MAX) })
    }

    /// Hands over messages that have not come, in order, from the fronts of all lanes; returns how
    /// many are left.
    fn hand_over(
        &mut self,
        (now, owner): (Timestamp, PublicIdentity),
        seen: &Acknowledgement,
        credit: usize,
        mut give: impl FnMut(StoredMessage<'_>),
    ) -> usize {
        let Some(mailbox) = self.mailboxes.get_mut(&owner) else { return 0 };
        let (mut queues, mut fronts, mut left) = (Vec::new(), BinaryHeap::new(), 0);
        for lane in mailbox.lanes.iter().filter_map(|name| self.lanes.get(name)) {
            left += lane.stored_messages.waiting().len();
            let mut queue =
                lane.stored_messages.all().filter(|stored| stored.number >= seen.next).peekable();
            if let Some(first) = queue.peek() {
                fronts.push(Reverse((first.number, queues.len())));
                queues.push(queue);
            }
        }
        let (mut since, mut given, mut is_first) = (seen.next, 0, true);
        while let Some(Reverse((position, at))) = fronts.pop() {
            // The first is sent even if the receiver holds it: the messages missing before it may
            // be gone.
            if given == credit || (!is_first && position > seen.next + WINDOW) {
                break;
            }
            let Some(stored) = queues[at].next() else { continue };
            if is_first || !seen.has(position) {
                if position < mailbox.given && !mailbox.asked.take(now, 1) {
                    break;
                }
                mailbox.given = mailbox.given.max(position + 1);
                give(StoredMessage {
                    epoch: self.epoch,
                    since,
                    position,
                    stored_message: &stored.bytes,
                });
                given += 1;
            }
            (since, is_first) = (position + 1, false);
            fronts.extend(queues[at].peek().map(|next| Reverse((next.number, at))));
        }
        let held: u32 = seen.beyond.iter().map(|word| word.count_ones()).sum();
        left.saturating_sub(given + held as usize)
    }

    /// Removes expired messages, once a second at most.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + SWEEP_EVERY;
        let names: Vec<Name> = self.lanes.keys().copied().collect();
        for name in names {
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            let before = lane.cost();
            self.tally.expired += lane.pop_while(|first| first.until <= now);
            let is_over = lane.stored_messages.front().is_none() && now.since(lane.used) >= IDLE;
            let after = lane.cost();
            self.account(name.0, before, after);
            if is_over {
                self.close_lane(name);
            }
        }
    }

    fn open_lane(&mut self, now: Timestamp, name: Name, to: PublicIdentity) -> Option<()> {
        let is_new = !self.bytes_used.contains_key(&name.0);
        if is_new && self.bytes_used.len() >= MAX_SENDERS {
            return None;
        }
        if self.lanes_of(name.0).count() >= MAX_LANES {
            let free = self.lanes_of(name.0).filter(|(_, lane)| lane.is_free());
            let oldest = free.min_by_key(|(_, lane)| lane.used).map(|(name, _)| *name);
            self.close_lane(oldest?);
        }
        let (ahead, stored_messages) = (BTreeMap::new(), StoredMessages::default());
        let lane = Lane { to, next: 0, ahead, ahead_cost: 0, stored_messages, used: now };
        let cost = lane.cost();
        self.lanes.insert(name, lane);
        let next = self.floor;
        let mailbox = self.mailboxes.entry(to);
        let (lanes, asked) = (BTreeSet::new(), Budget::new(ASKED));
        let mailbox = mailbox.or_insert_with(|| Mailbox { lanes, next, given: next, asked });
        mailbox.lanes.insert(name);
        self.account(name.0, 0, cost);
        Some(())
    }

    fn lanes_of(&self, sender: PublicIdentity) -> impl Iterator<Item = (&Name, &Lane)> {
        self.lanes.range((sender, 0)..=(sender, u64::MAX))
    }

    fn close_oldest_lane(&mut self, sender: PublicIdentity) {
        let oldest = self.lanes_of(sender).min_by_key(|(_, lane)| lane.used);
        if let Some(name) = oldest.map(|(name, _)| *name) {
            self.close_lane(name);
        }
    }

    fn close_lane(&mut self, name: Name) {
        let Some(mut lane) = self.lanes.remove(&name) else { return };
        let before = lane.cost();
        self.tally.evicted += lane.pop_while(|_| true);
        self.account(name.0, before, 0);
        let Some(mailbox) = self.mailboxes.get_mut(&lane.to) else { return };
        mailbox.lanes.remove(&name);
        if mailbox.lanes.is_empty() {
            // A receiver may know its positions.
            self.floor = self.floor.max(mailbox.next);
            self.mailboxes.remove(&lane.to);
        }
    }

    fn account(&mut self, sender: PublicIdentity, before: u64, after: u64) {
        let bytes_used = self.bytes_used.entry(sender).or_default();
        *bytes_used = *bytes_used + after - before;
        if *bytes_used == 0 {
            self.bytes_used.remove(&sender);
        }
        self.all_bytes_used = self.all_bytes_used + after - before;
    }

    fn make_room(&mut self, sender: PublicIdentity) {
        let most = self.config.per_sender.as_u64();
        while self.bytes_used.get(&sender).is_some_and(|bytes_used| *bytes_used > most) {
            self.evict(sender);
        }
        while self.all_bytes_used > self.config.bytes.as_u64() {
            let greatest = self.bytes_used.iter().max_by_key(|(_, bytes_used)| **bytes_used);
            let Some(sender) = greatest.map(|(sender, _)| *sender) else { return };
            self.evict(sender);
        }
    }

    /// Evicts the oldest message of a sender, or a lane in which nothing waits.
    fn evict(&mut self, sender: PublicIdentity) {
        let oldest = self
            .lanes_of(sender)
            .filter_map(|(name, lane)| Some((lane.stored_messages.front()?.until, *name)))
            .min();
        let Some((_, name)) = oldest else { return self.close_oldest_lane(sender) };
        let Some(lane) = self.lanes.get_mut(&name) else { return };
        let before = lane.cost();
        self.tally.evicted += u64::from(lane.stored_messages.pop() == Some(true));
        let after = lane.cost();
        self.account(name.0, before, after);
    }
}
