//! The sending half of a direction: cuts the stream into chunks and keeps each until it has arrived.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};
use tradewind_units::Timestamp;

use crate::StripeError;
use crate::frame::{FIRST_WINDOW, Frame, MOST_PIECES};

/// The sending half of a direction.
#[derive(Debug)]
pub(crate) struct Sender {
    start: u64,
    /// Everything before it has been put into frames.
    packed: u64,
    queue: VecDeque<Bytes>,
    queued: u64,
    /// Bytes before it may be sent.
    limit: u64,
    /// Most bytes that are sent beyond what has arrived without a gap, whatever the other allows.
    largest: u64,
    /// What was sent beyond what has arrived without a gap, by offset. The end is one without bytes.
    items: BTreeMap<u64, Item>,
    held: u64,
    /// What of that is to be sent over another connection.
    again: BTreeSet<u64>,
    end: End,
    confirmed: u64,
    /// The limit that was told to be used up.
    told_full: u64,
    resent: u64,
}

#[derive(Debug)]
struct Item {
    /// Let go once it has arrived.
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
    /// Begins at `start`: what came before has travelled without frames. Keeps at most `largest` bytes.
    pub(crate) fn new(start: u64, largest: u64) -> Self {
        Self {
            start,
            packed: start,
            queue: VecDeque::new(),
            queued: 0,
            limit: start.saturating_add(FIRST_WINDOW),
            largest: largest.max(FIRST_WINDOW),
            items: BTreeMap::new(),
            held: 0,
            again: BTreeSet::new(),
            end: End::Open,
            confirmed: start,
            told_full: start,
            resent: 0,
        }
    }

    pub(crate) const fn start(&self) -> u64 {
        self.start
    }

    /// Bytes that the window allows beyond those queued.
    pub(crate) const fn room(&self) -> u64 {
        self.limit.saturating_sub(self.packed + self.queued)
    }

    pub(crate) const fn queued(&self) -> u64 {
        self.queued
    }

    /// Bytes that it holds, sent or not.
    pub(crate) const fn held(&self) -> u64 {
        self.queued + self.held
    }

    /// Frames that it keeps.
    pub(crate) fn frames(&self) -> usize {
        self.items.len()
    }

    /// Bytes that were sent more than once.
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

    /// Whether all of the direction has arrived, its end included.
    pub(crate) fn is_over(&self) -> bool {
        self.end == End::Packed && self.confirmed == self.packed + 1
    }

    /// The next frame for `connection`, and the offset by which it is told apart.
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
        if self.items.len() >= MOST_PIECES {
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

    /// The limit, once all that it allows was sent; told once.
    pub(crate) fn full(&mut self) -> Option<u64> {
        let is_full = self.end == End::Open && self.packed >= self.limit;
        if !is_full || self.told_full >= self.limit {
            return None;
        }
        self.told_full = self.limit;
        Some(self.limit)
    }

    /// Cuts at most `chunk` bytes off the queue, within the window. Small pieces are put together: what waits for a
    /// connection leaves in fewer frames.
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

    /// The other has this one, perhaps beyond a gap.
    pub(crate) fn arrived(&mut self, at: u64) {
        if let Some(item) = self.items.get_mut(&at) {
            item.arrived = true;
            self.held -= std::mem::take(&mut item.payload).len() as u64;
            self.again.remove(&at);
        }
    }

    /// The other has everything before `cumulative`, and allows bytes before `limit`: no word of its makes this end keep more
    /// than its own `largest`.
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

    /// `connection` carries this one no more.
    pub(crate) fn dropped(&mut self, at: u64, connection: u32) {
        if let Some(item) = self.items.get_mut(&at) {
            item.carriers.retain(|carrier| *carrier != connection);
            if item.carriers.is_empty() && !item.arrived {
                self.again.insert(at);
            }
        }
    }

    /// Has this one carried by another connection as well, if it is not there yet.
    pub(crate) fn send_again(&mut self, at: u64) {
        if self.items.get(&at).is_some_and(|item| !item.arrived) {
            self.again.insert(at);
        }
    }

    /// The first one that has not arrived, where all waits for it since nothing else may be sent; when it was sent, and
    /// over which connection last.
    pub(crate) fn waits_for_first(&self) -> Option<(u64, Timestamp, Option<u32>)> {
        if self.queued > 0 && self.packed < self.limit && self.items.len() < MOST_PIECES {
            return None;
        }
        let (at, item) = self.items.iter().find(|(_, item)| !item.arrived)?;
        let carrier = item.carriers.last().copied();
        (!self.again.contains(at)).then_some((*at, item.sent_at, carrier))
    }
}

fn frame(at: u64, payload: &Bytes) -> Frame {
    match payload.is_empty() {
        true => Frame::End(at),
        false => Frame::Data { offset: at, payload: payload.clone() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_that_allows_everything_gets_no_more_than_the_window() {
        let largest = 2 * FIRST_WINDOW;
        let mut sender = Sender::new(100, largest);
        let chunk = 4 << 10;
        for _ in 0..4 {
            sender.confirm(sender.confirmed, u64::MAX).unwrap();
            while sender.room() > 0 {
                sender.write(Bytes::from(vec![7; chunk.min(sender.room() as usize)]));
                assert!(sender.next(0, Timestamp::ZERO, chunk).is_some());
            }
            assert_eq!(sender.held(), largest);
            // Something beyond a gap is no reason for more.
            sender.arrived(sender.packed - chunk as u64);
            sender.confirm(sender.confirmed, u64::MAX).unwrap();
            assert_eq!(sender.room(), 0);
            sender.confirm(sender.packed, u64::MAX).unwrap();
            assert_eq!((sender.held(), sender.room()), (0, largest));
        }
    }
}
