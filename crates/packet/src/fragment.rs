//! Datagrams that are too long for every path, cut into pieces where they enter the overlay and
//! joined where they leave it.
//!
//! There is no IP fragmentation: each piece is a message of its conversation
//! ([`Message::Fragment`](crate::message::Message::Fragment)), as long as the paths take, numbered
//! and recovered like any other. A datagram of which a piece does not come in time is given up
//! whole.
//!
//! Waiting pieces are bounded: by datagrams of a conversation, and in all by datagrams and bytes.
//! Beyond that the oldest datagram of the owner with most bytes waiting is evicted.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use tradewind_units::{Duration, Timestamp};

/// Bytes of a piece's message before the piece.
pub const FRAGMENT_HEADER_BYTES: usize = 11;
/// Most pieces of a datagram. Chosen: the longest datagram of UDP at the minimum MTU of IPv6.
pub const MAX_PIECES: u8 = 64;
/// The longest datagram of UDP.
pub const MAX_DATAGRAM_BYTES: usize = 65_507;

/// Datagrams of one conversation that wait for pieces. Chosen: those of a burst.
const MAX_OF_CONVERSATION: usize = 16;
/// Joined or given up datagrams of a conversation that are remembered, so that a duplicate piece
/// does not begin a new one. Chosen: more than wait at a time.
const REMEMBERED: usize = 64;
/// Time for which they are remembered after the last piece of the conversation. Chosen: the longest
/// budget.
const REMEMBERED_FOR: Duration = Duration::from_secs(65);
/// Bookkeeping bytes of each piece.
const AROUND_PIECE: usize = 32;

/// The limits of all waiting pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinLimits {
    /// Bytes of pieces, with the bookkeeping.
    pub bytes: usize,
    /// Datagrams.
    pub datagrams: usize,
}

impl Default for JoinLimits {
    /// Returns the defaults. Chosen: as much as a gateway of a large site has in flight at once.
    fn default() -> Self {
        Self { bytes: 16 << 20, datagrams: 1024 }
    }
}

/// A piece of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The datagram's number among those of the conversation that were cut.
    pub datagram: u32,
    /// The place in the datagram, from 0.
    pub index: u8,
    /// The number of pieces of the datagram, 2 to [`MAX_PIECES`].
    pub count: u8,
    /// The bytes of the piece, at least 1.
    pub bytes: &'a [u8],
}

/// Cuts a datagram into pieces of at most `most` bytes, all of one length but for the last. Returns
/// `None` when one piece would do, or too many would be needed.
pub fn cut(
    datagram: u32,
    payload: &[u8],
    most: usize,
) -> Option<impl Iterator<Item = Piece<'_>> + use<'_>> {
    let count = payload.len().div_ceil(most.max(1));
    let count = u8::try_from(count).ok().filter(|count| (2..=MAX_PIECES).contains(count))?;
    let pieces = payload.chunks(payload.len().div_ceil(count.into()));
    Some(pieces.zip(0..).map(move |(bytes, index)| Piece { datagram, index, count, bytes }))
}

/// The outcome of adding a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// The last missing piece came: the whole datagram.
    Whole(Vec<u8>),
    /// Other pieces are still missing.
    Waits,
    /// It came before, contradicts others, or belongs to a datagram that is over.
    Useless,
}

/// The key of a datagram that waits for pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DatagramKey<O> {
    owner: O,
    conversation: u32,
    datagram: u32,
}

impl<O: Copy> DatagramKey<O> {
    /// Returns the keys of all datagrams of a conversation.
    fn of_conversation(owner: O, conversation: u32) -> RangeInclusive<Self> {
        let key = |datagram| Self { owner, conversation, datagram };
        key(0)..=key(u32::MAX)
    }

    /// Returns the keys of all datagrams of an owner.
    fn of_owner(owner: O) -> RangeInclusive<Self> {
        let key = |number| Self { owner, conversation: number, datagram: number };
        key(0)..=key(u32::MAX)
    }
}

/// Joins pieces, by owner and by conversation.
#[derive(Debug)]
pub struct Joiner<O> {
    limits: JoinLimits,
    waiting: BTreeMap<DatagramKey<O>, Partial>,
    conversations: BTreeMap<(O, u32), Conversation>,
    bytes: usize,
    by_owner: BTreeMap<O, usize>,
    given_up: u64,
}

#[derive(Debug)]
struct Partial {
    pieces: Vec<Option<Box<[u8]>>>,
    missing: u8,
    /// The bytes of the pieces, with the bookkeeping.
    bytes: usize,
    begun: Timestamp,
    ends: Timestamp,
}

#[derive(Debug, Default)]
struct Conversation {
    waiting: usize,
    over: VecDeque<u32>,
    last_received: Timestamp,
}

impl<O: Ord + Copy> Joiner<O> {
    /// Returns a joiner that holds nothing.
    #[must_use]
    pub fn new(limits: JoinLimits) -> Self {
        let (waiting, conversations, by_owner) = Default::default();
        Self { limits, waiting, conversations, bytes: 0, by_owner, given_up: 0 }
    }

    /// Returns how many datagrams were given up so far: a piece was missing for too long, or there
    /// was no space.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Returns how many bytes wait, with the bookkeeping.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how many datagrams wait for pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether no datagram waits for pieces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a piece of a conversation of `owner`. Its datagram is given up when others are missing
    /// for longer than `wait` after the first.
    pub fn add(
        &mut self,
        now: Timestamp,
        (owner, conversation): (O, u32),
        piece: Piece<'_>,
        wait: Duration,
    ) -> Joined {
        let Piece { datagram, index, count, bytes } = piece;
        if !(2..=MAX_PIECES).contains(&count) || index >= count || bytes.is_empty() {
            return Joined::Useless;
        }
        let known = self.conversations.entry((owner, conversation)).or_default();
        known.last_received = now;
        if known.over.contains(&datagram) {
            return Joined::Useless;
        }
        let key = DatagramKey { owner, conversation, datagram };
        if !self.waiting.contains_key(&key) {
            self.begin(now, key, count, wait);
        }
        let Some(partial) = self.waiting.get_mut(&key) else { return Joined::Useless };
        let length: usize = partial.pieces.iter().flatten().map(|piece| piece.len()).sum();
        let is_same = partial.pieces.len() == usize::from(count);
        if !is_same || length + bytes.len() > MAX_DATAGRAM_BYTES {
            return Joined::Useless;
        }
        let Some(place @ None) = partial.pieces.get_mut(usize::from(index)) else {
            return Joined::Useless;
        };
        *place = Some(bytes.into());
        partial.missing -= 1;
        if partial.missing == 0 {
            return self.end(key).map_or(Joined::Useless, |whole| Joined::Whole(whole.joined()));
        }
        partial.bytes += bytes.len();
        self.count(owner, bytes.len());
        self.make_room();
        Joined::Waits
    }

    /// Gives up datagrams that have waited for too long, and forgets idle conversations.
    pub fn expire(&mut self, now: Timestamp) {
        let late = self.waiting.iter().filter(|(_, partial)| partial.ends <= now);
        let late: Vec<_> = late.map(|(key, _)| *key).collect();
        late.into_iter().for_each(|key| self.give_up(key));
        self.conversations.retain(|_, known| {
            known.waiting > 0 || now.since(known.last_received) < REMEMBERED_FOR
        });
    }

    /// Forgets a conversation that is over.
    pub fn remove(&mut self, owner: O, conversation: u32) {
        let all = DatagramKey::of_conversation(owner, conversation);
        let waiting: Vec<_> = self.waiting.range(all).map(|(key, _)| *key).collect();
        waiting.into_iter().for_each(|key| self.give_up(key));
        self.conversations.remove(&(owner, conversation));
    }

    fn begin(&mut self, now: Timestamp, key: DatagramKey<O>, count: u8, wait: Duration) {
        let DatagramKey { owner, conversation, .. } = key;
        let is_full = self.conversations.get(&(owner, conversation));
        if is_full.is_some_and(|known| known.waiting >= MAX_OF_CONVERSATION) {
            let all = DatagramKey::of_conversation(owner, conversation);
            let oldest = self.waiting.range(all).min_by_key(|(_, partial)| partial.begun);
            oldest.map(|(key, _)| *key).into_iter().for_each(|key| self.give_up(key));
        }
        let pieces = std::iter::repeat_with(|| None).take(count.into()).collect();
        let bytes = usize::from(count) * AROUND_PIECE;
        let partial = Partial { pieces, missing: count, bytes, begun: now, ends: now + wait };
        self.waiting.insert(key, partial);
        if let Some(known) = self.conversations.get_mut(&(owner, conversation)) {
            known.waiting += 1;
        }
        self.count(owner, bytes);
    }

    fn count(&mut self, owner: O, bytes: usize) {
        self.bytes += bytes;
        *self.by_owner.entry(owner).or_default() += bytes;
    }

    /// Gives up the oldest datagram of the owner with most bytes, until all is within the limits.
    fn make_room(&mut self) {
        while self.bytes > self.limits.bytes || self.waiting.len() > self.limits.datagrams {
            let most = self.by_owner.iter().max_by_key(|(_, bytes)| **bytes);
            let Some(owner) = most.map(|(owner, _)| *owner) else { return };
            let theirs = self.waiting.range(DatagramKey::of_owner(owner));
            let oldest = theirs.min_by_key(|(_, partial)| partial.begun);
            let Some(oldest) = oldest.map(|(key, _)| *key) else { return };
            self.give_up(oldest);
        }
    }

    fn give_up(&mut self, key: DatagramKey<O>) {
        self.given_up += u64::from(self.end(key).is_some());
    }

    /// Removes a datagram that is complete, or given up.
    fn end(&mut self, key: DatagramKey<O>) -> Option<Partial> {
        let partial = self.waiting.remove(&key)?;
        let DatagramKey { owner, conversation, datagram } = key;
        self.bytes -= partial.bytes;
        if let Some(bytes) = self.by_owner.get_mut(&owner) {
            *bytes -= partial.bytes;
            if *bytes == 0 {
                self.by_owner.remove(&owner);
            }
        }
        if let Some(known) = self.conversations.get_mut(&(owner, conversation)) {
            known.waiting -= 1;
            if known.over.len() >= REMEMBERED {
                known.over.pop_front();
            }
            known.over.push_back(datagram);
        }
        Some(partial)
    }
}

impl Partial {
    fn joined(self) -> Vec<u8> {
        let pieces: Vec<Box<[u8]>> = self.pieces.into_iter().flatten().collect();
        pieces.concat()
    }
}
