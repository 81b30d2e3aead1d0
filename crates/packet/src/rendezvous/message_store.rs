//! The relay's part: stored messages that wait for their receivers.
//!
//! Each sender's stream of deposits is a *lane*: it takes them in the order of their numbers,
//! whichever order they come in. All lanes for one receiver are its *shelf*, which gives every
//! stored message a position. What is kept is bounded by its age, by bytes for each sender, and by
//! bytes in all; for room the oldest goes, of who takes too much or, when all together do, of who
//! takes most: nobody pushes others' stored messages out.
//!
//! Who deposits and who collects is proven by their sessions; whoever drives this machine says so.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use tradewind_grant::PublicIdentity;
use tradewind_units::{Bytes, Duration, Timestamp};

use super::stored_messages::{Kept, StoredMessages, cost};
use crate::budget::{Allowance, Budget};
use crate::message::{
    ACKNOWLEDGED_WORDS, Acknowledgement, Collect, Deposit, Deposited, Remaining, StoredMessage,
};

/// Deposits that may come before one that is missing: as many as an acknowledgement tells of.
pub(super) const WINDOW: u64 = 64 * ACKNOWLEDGED_WORDS as u64;
/// Lanes of one sender, and what each takes beside its stored messages, in bytes. Chosen: a path
/// has one, and another whenever its sender begins anew; gateways have half as many paths by one
/// relay. When stored messages wait in all, no other is begun.
const MOST_LANES: usize = 64;
const LANE_COST: u64 = 1024;
/// Senders at a time. Chosen.
const MOST_SENDERS: usize = 4096;
/// How long a lane without stored messages is known. Chosen: a sender that the relay has forgotten
/// begins anew, at the price of a round trip.
const IDLE: Duration = Duration::from_secs(120);
/// Time between two looks for what is too old. Chosen.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Most stored messages of an answer. Chosen: fewer full packets than the buffer of an
/// application's socket holds by default.
const MOST_CREDIT: usize = 64;
/// Questions of a receiver, and stored messages that it is given again. Chosen: what a third of
/// losses takes at some thousand packets a second. Each stored message is given once for nothing,
/// since somebody has deposited it.
const ASKED: Allowance = Allowance { per_second: 1000, burst: 1024 };

/// How much is kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageStoreConfig {
    /// Most of all.
    pub bytes: Bytes,
    /// Most of one sender.
    pub per_sender: Bytes,
    /// Longest.
    pub keep: Duration,
}

/// What became of packets; envelopes are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Packets that began to wait.
    pub deposited: u64,
    /// Packets that their receivers have.
    pub collected: u64,
    /// Packets that nobody collected in their time.
    pub expired: u64,
    /// Packets that had to go for room.
    pub evicted: u64,
}

/// Stored messages that wait.
#[derive(Debug)]
pub struct MessageStore {
    config: MessageStoreConfig,
    epoch: u64,
    lanes: BTreeMap<Name, Lane>,
    mailboxes: BTreeMap<PublicIdentity, Mailbox>,
    /// What each sender takes, and all.
    taken: BTreeMap<PublicIdentity, u64>,
    all_taken: u64,
    /// Above all positions of shelves that were forgotten.
    floor: u64,
    next_sweep: Timestamp,
    tally: Tally,
}

/// A sender and its stream.
type Name = (PublicIdentity, u64);

#[derive(Debug)]
struct Lane {
    to: PublicIdentity,
    /// The number that is missing.
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
    /// All below were given once.
    given: u64,
    asked: Budget,
}

impl Lane {
    fn cost(&self) -> u64 {
        LANE_COST + self.ahead_cost + self.stored_messages.cost()
    }

    /// Whether nothing waits in it, in order or not.
    fn is_free(&self) -> bool {
        self.stored_messages.front().is_none() && self.ahead.is_empty()
    }

    fn seen(&self) -> Acknowledgement {
        Acknowledgement::of(self.next, self.ahead.keys().copied())
    }

    /// Keeps what is not kept yet and can be acknowledged.
    fn take(&mut self, deposit: &Deposit<'_>, until: Timestamp) {
        let number = deposit.number;
        if number < self.next || number - self.next > WINDOW || self.ahead.contains_key(&number) {
            return;
        }
        self.ahead_cost += cost(deposit.stored_message);
        self.ahead.insert(number, (until, deposit.stored_message.to_vec()));
    }

    /// The next in order, if it has come.
    fn release(&mut self) -> Option<(Timestamp, Vec<u8>)> {
        let (until, bytes) = self.ahead.remove(&self.next)?;
        self.next += 1;
        self.ahead_cost -= cost(&bytes);
        Some((until, bytes))
    }

    /// Lets go of the first while that is to go; counts packets.
    fn released(&mut self, is_to_go: impl Fn(&Kept<()>) -> bool) -> u64 {
        let mut packets = 0;
        while self.stored_messages.front().is_some_and(&is_to_go) {
            packets += u64::from(self.stored_messages.pop() == Some(true));
        }
        packets
    }
}

impl MessageStore {
    /// An empty one. `epoch` tells this life of the relay from others.
    #[must_use]
    pub fn new(config: MessageStoreConfig, epoch: u64) -> Self {
        Self {
            config,
            epoch,
            lanes: BTreeMap::new(),
            mailboxes: BTreeMap::new(),
            taken: BTreeMap::new(),
            all_taken: 0,
            floor: 0,
            next_sweep: Timestamp::ZERO,
            tally: Tally::default(),
        }
    }

    /// What has happened since this was asked last.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// What is kept costs so much, in bytes.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.all_taken
    }

    /// Takes a deposit of `from`; the answer, unless there is no room for it at all.
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
            let stored_message = Kept { number: mailbox.next, until, note: (), bytes };
            let is_packet = !stored_message.is_envelope();
            self.tally.deposited += u64::from(is_packet);
            // Its sender needed its number, not it.
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

    /// Answers a receiver: hands over what has waited for it, and tells what still does; nothing to
    /// who asks too much.
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
        // Positions of another life mean nothing.
        let seen = match collect.epoch == epoch {
            true => collect.seen,
            false => Acknowledgement::NOTHING,
        };
        for name in mailbox.lanes.clone() {
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            let before = lane.cost();
            self.tally.collected += lane.released(|first| first.number < seen.next);
            let after = lane.cost();
            self.account(name.0, before, after);
        }
        let credit = usize::from(collect.credit).min(MOST_CREDIT);
        let left = self.hand_over((now, owner), &seen, credit, give);
        Some(Remaining { epoch, ask, left: u32::try_from(left).unwrap_or(u32::MAX) })
    }

    /// Hands over what has not come, in order, from the fronts of all lanes; how many are left.
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
                lane.stored_messages.all().filter(|kept| kept.number >= seen.next).peekable();
            if let Some(first) = queue.peek() {
                fronts.push(Reverse((first.number, queues.len())));
                queues.push(queue);
            }
        }
        let (mut since, mut given, mut is_first) = (seen.next, 0, true);
        while let Some(Reverse((position, at))) = fronts.pop() {
            // The first goes even if it was held back: what was missing before it is perhaps gone.
            if given == credit || (!is_first && position > seen.next + WINDOW) {
                break;
            }
            let Some(kept) = queues[at].next() else { continue };
            if is_first || !seen.has(position) {
                if position < mailbox.given && !mailbox.asked.take(now, 1) {
                    break;
                }
                mailbox.given = mailbox.given.max(position + 1);
                give(StoredMessage {
                    epoch: self.epoch,
                    since,
                    position,
                    stored_message: &kept.bytes,
                });
                given += 1;
            }
            (since, is_first) = (position + 1, false);
            fronts.extend(queues[at].peek().map(|next| Reverse((next.number, at))));
        }
        let held: u32 = seen.beyond.iter().map(|word| word.count_ones()).sum();
        left.saturating_sub(given + held as usize)
    }

    /// Lets go of what is too old, once a second at most.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + SWEEP_EVERY;
        let names: Vec<Name> = self.lanes.keys().copied().collect();
        for name in names {
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            let before = lane.cost();
            self.tally.expired += lane.released(|first| first.until <= now);
            let is_over = lane.stored_messages.front().is_none() && now.since(lane.used) >= IDLE;
            let after = lane.cost();
            self.account(name.0, before, after);
            if is_over {
                self.close_lane(name);
            }
        }
    }

    fn open_lane(&mut self, now: Timestamp, name: Name, to: PublicIdentity) -> Option<()> {
        let is_new = !self.taken.contains_key(&name.0);
        if is_new && self.taken.len() >= MOST_SENDERS {
            return None;
        }
        if self.lanes_of(name.0).count() >= MOST_LANES {
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
        self.tally.evicted += lane.released(|_| true);
        self.account(name.0, before, 0);
        let Some(mailbox) = self.mailboxes.get_mut(&lane.to) else { return };
        mailbox.lanes.remove(&name);
        if mailbox.lanes.is_empty() {
            // A receiver may know positions of it.
            self.floor = self.floor.max(mailbox.next);
            self.mailboxes.remove(&lane.to);
        }
    }

    fn account(&mut self, sender: PublicIdentity, before: u64, after: u64) {
        let taken = self.taken.entry(sender).or_default();
        *taken = *taken + after - before;
        if *taken == 0 {
            self.taken.remove(&sender);
        }
        self.all_taken = self.all_taken + after - before;
    }

    fn make_room(&mut self, sender: PublicIdentity) {
        let most = self.config.per_sender.as_u64();
        while self.taken.get(&sender).is_some_and(|taken| *taken > most) {
            self.evict(sender);
        }
        while self.all_taken > self.config.bytes.as_u64() {
            let greatest = self.taken.iter().max_by_key(|(_, taken)| **taken);
            let Some(sender) = greatest.map(|(sender, _)| *sender) else { return };
            self.evict(sender);
        }
    }

    /// Lets go of the oldest of a sender: what waits longest, or a lane in which nothing waits.
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
