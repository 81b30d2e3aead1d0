//! The sending half of a direction: cuts the stream into chunks and keeps each until it has
//! arrived.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};
use tradewind_units::Timestamp;

use crate::StripeError;
use crate::frame::{Frame, INITIAL_WINDOW, MAX_PIECES};

/// The first item that has not arrived, where nothing else may be sent before it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockingItem {
    /// Its offset.
    pub(crate) offset: u64,
    /// The time when it was sent.
    pub(crate) sent_at: Timestamp,
    /// The connection that it was last sent over.
    pub(crate) carrier: Option<u32>,
}

/// The sending half of a direction.
#[derive(Debug)]
pub(crate) struct Sender {
    start: u64,
    /// Offset before which everything has been put into frames.
    packed: u64,
    queue: VecDeque<Bytes>,
    queued: u64,
    /// Offset before which bytes may be sent.
    limit: u64,
    /// Most bytes sent beyond those that have arrived without a gap, whatever limit the peer
    /// grants.
    largest: u64,
    /// The frames sent beyond the data that has arrived without a gap, by offset; END is one
    /// without bytes.
    items: BTreeMap<u64, Item>,
    held: u64,
    /// Offsets of the items to send over another connection as well.
    again: BTreeSet<u64>,
    end: End,
    confirmed: u64,
    /// The last limit reported as used up, by FULL.
    reported_full: u64,
    resent: u64,
}

#[derive(Debug)]
struct Item {
    /// The bytes; released once they have arrived.
    payload: Bytes,
    arrived: bool,
    /// The connections that carry it.
    carriers: Vec<u32>,
    sent_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Wanted,
    Packed,
}

impl Sender {
    /// Creates a sender that begins at offset `start`, as the bytes before it were sent without
    /// frames. It keeps at most `largest` bytes.
    pub(crate) fn new(start: u64, largest: u64) -> Self {
        Self {
            start,
            packed: start,
            queue: VecDeque::new(),
            queued: 0,
            limit: start.saturating_add(INITIAL_WINDOW),
            largest: largest.max(INITIAL_WINDOW),
            items: BTreeMap::new(),
            held: 0,
            again: BTreeSet::new(),
            end: End::Open,
            confirmed: start,
            reported_full: start,
            resent: 0,
        }
    }

    pub(crate) const fn start(&self) -> u64 {
        self.start
    }

    /// Returns the number of bytes that the window allows beyond those queued.
    pub(crate) const fn free_capacity(&self) -> u64 {
        self.limit.saturating_sub(self.packed + self.queued)
    }

    pub(crate) const fn queued(&self) -> u64 {
        self.queued
    }

    /// Returns the number of bytes held, sent or not.
    pub(crate) const fn held(&self) -> u64 {
        self.queued + self.held
    }

    /// Returns the number of frames kept.
    pub(crate) fn frames(&self) -> usize {
        self.items.len()
    }

    /// Returns the number of bytes that were sent again.
    pub(crate) const fn resent(&self) -> u64 {
        self.resent
    }

    pub(crate) fn write(&mut self, bytes: Bytes) {
        debug_assert!(self.end == End::Open, "nothing follows the end");
        self.queued += bytes.len() as u64;
        if !bytes.is_empty() {
            self.queue.push_back(bytes);
        }
    }

    pub(crate) fn finish(&mut self) {
        if self.end == End::Open {
            self.end = End::Wanted;
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.end != End::Open
    }

    /// Returns whether all of the direction has arrived, its end included.
    pub(crate) fn is_over(&self) -> bool {
        self.end == End::Packed && self.confirmed == self.packed + 1
    }

    /// Returns the next frame for `connection`, and the offset that identifies it.
    pub(crate) fn next(
        &mut self,
        connection: u32,
        now: Timestamp,
        chunk: usize,
    ) -> Option<(u64, Frame)> {
        let free = |at: &&u64| !self.items[*at].carriers.contains(&connection);
        if let Some(at) = self.again.iter().find(free).copied() {
            self.again.remove(&at);
            let item = self.items.get_mut(&at).expect("what is sent again is kept");
            item.carriers.push(connection);
            item.sent_at = now;
            self.resent += item.payload.len() as u64;
            return Some((at, frame(at, &item.payload)));
        }
        if self.items.len() >= MAX_PIECES {
            return None;
        }
        let at = self.packed;
        let payload = match self.queued {
            0 if self.end == End::Wanted => {
                self.end = End::Packed;
                Bytes::new()
            }
            0 => return None,
            _ => self.pack(chunk)?,
        };
        self.packed += payload.len() as u64;
        self.held += payload.len() as u64;
        let next = frame(at, &payload);
        let item = Item { payload, arrived: false, carriers: vec![connection], sent_at: now };
        self.items.insert(at, item);
        Some((at, next))
    }

    /// Returns the limit once all that it allows has been sent; each limit only once.
    pub(crate) fn full(&mut self) -> Option<u64> {
        let is_full = self.end == End::Open && self.packed >= self.limit;
        if !is_full || self.reported_full >= self.limit {
            return None;
        }
        self.reported_full = self.limit;
        Some(self.limit)
    }

    /// Cuts at most `chunk` bytes off the queue, within the window. Small pieces are coalesced, so
    /// that data that waits for a connection takes fewer frames.
    fn pack(&mut self, chunk: usize) -> Option<Bytes> {
        let window = usize::try_from(self.limit.saturating_sub(self.packed)).unwrap_or(usize::MAX);
        let most = chunk.min(window);
        if most == 0 {
            return None;
        }
        let mut first = self.queue.pop_front()?;
        if first.len() > most {
            let rest = first.split_off(most);
            self.queue.push_front(rest);
        } else if first.len() < most / 4 && !self.queue.is_empty() {
            let mut together = BytesMut::from(&first[..]);
            while together.len() < most
                && let Some(mut next) = self.queue.pop_front()
            {
                if next.len() > most - together.len() {
                    let rest = next.split_off(most - together.len());
                    self.queue.push_front(rest);
                }
                together.extend_from_slice(&next);
            }
            first = together.freeze();
        }
        self.queued -= first.len() as u64;
        Some(first)
    }

    /// Marks an item as received by the peer, perhaps beyond a gap.
    pub(crate) fn arrived(&mut self, at: u64) {
        if let Some(item) = self.items.get_mut(&at) {
            item.arrived = true;
            self.held -= std::mem::take(&mut item.payload).len() as u64;
            self.again.remove(&at);
        }
    }

    /// Handles an acknowledgement of everything before `cumulative` that allows bytes before
    /// `limit`. Whatever the peer allows, this end keeps no more than `largest`.
    pub(crate) fn confirm(&mut self, cumulative: u64, limit: u64) -> Result<(), StripeError> {
        if cumulative > self.packed + u64::from(self.end == End::Packed) {
            return Err(StripeError::Contradiction("acknowledgement of what was not sent"));
        }
        self.confirmed = self.confirmed.max(cumulative);
        self.limit = self.limit.max(limit.min(self.confirmed.saturating_add(self.largest)));
        while let Some((at, _)) = self.items.first_key_value()
            && *at < cumulative
        {
            let at = *at;
            self.arrived(at);
            self.items.remove(&at);
        }
        Ok(())
    }

    /// Notes that `connection` no longer carries this item.
    pub(crate) fn dropped(&mut self, at: u64, connection: u32) {
        if let Some(item) = self.items.get_mut(&at) {
            item.carriers.retain(|carrier| *carrier != connection);
            if item.carriers.is_empty() && !item.arrived {
                self.again.insert(at);
            }
        }
    }

    /// Queues an item for another connection as well, unless it has arrived.
    pub(crate) fn send_again(&mut self, at: u64) {
        if self.items.get(&at).is_some_and(|item| !item.arrived) {
            self.again.insert(at);
        }
    }

    /// Returns the first item that has not arrived, if nothing else may be sent before it has.
    pub(crate) fn blocking_item(&self) -> Option<BlockingItem> {
        if self.queued > 0 && self.packed < self.limit && self.items.len() < MAX_PIECES {
            return None;
        }
        let (at, item) = self.items.iter().find(|(_, item)| !item.arrived)?;
        let carrier = item.carriers.last().copied();
        let blocking = BlockingItem { offset: *at, sent_at: item.sent_at, carrier };
        (!self.again.contains(at)).then_some(blocking)
    }
}

fn frame(at: u64, payload: &Bytes) -> Frame {
    if payload.is_empty() {
        Frame::End(at)
    } else {
        Frame::Data { offset: at, payload: payload.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_keeps_at_most_its_own_window() {
        let largest = 2 * INITIAL_WINDOW;
        let mut sender = Sender::new(100, largest);
        let chunk = 4 << 10;
        for _ in 0..4 {
            sender.confirm(sender.confirmed, u64::MAX).unwrap();
            while sender.free_capacity() > 0 {
                sender.write(Bytes::from(vec![7; chunk.min(sender.free_capacity() as usize)]));
                assert!(sender.next(0, Timestamp::ZERO, chunk).is_some());
            }
            assert_eq!(sender.held(), largest);
            // Data received beyond a gap does not widen the window.
            sender.arrived(sender.packed - chunk as u64);
            sender.confirm(sender.confirmed, u64::MAX).unwrap();
            assert_eq!(sender.free_capacity(), 0);
            sender.confirm(sender.packed, u64::MAX).unwrap();
            assert_eq!((sender.held(), sender.free_capacity()), (0, largest));
        }
    }
}
