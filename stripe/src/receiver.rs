//! The receiving half of a direction: puts pieces in order, within a window.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::StripeError;
use crate::frame::{FIRST_WINDOW, MOST_PIECES};
use crate::ready::Ready;

/// The receiving half of a direction.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// Where frames begin; unknown before the other's START.
    start: Option<u64>,
    /// Everything before it has arrived.
    arrived: u64,
    /// Everything before it has been read.
    read: u64,
    /// In order, and not read yet.
    ready: Ready,
    /// Beyond a gap, by offset; none overlaps another.
    pieces: BTreeMap<u64, Bytes>,
    beyond: u64,
    /// What may lie between `read` and `limit`.
    window: u64,
    largest: u64,
    limit: u64,
    /// The limit that stood when the window last grew.
    grown_at: u64,
    /// A sender has used up a limit since.
    was_full: bool,
    total: Option<u64>,
}

impl Receiver {
    /// Expects a START; `largest` bounds the window.
    pub(crate) fn new(largest: u64) -> Self {
        Self {
            start: None,
            arrived: 0,
            read: 0,
            ready: Ready::default(),
            pieces: BTreeMap::new(),
            beyond: 0,
            window: FIRST_WINDOW,
            largest: largest.max(FIRST_WINDOW),
            limit: 0,
            grown_at: 0,
            was_full: false,
            total: None,
        }
    }

    pub(crate) const fn start(&self) -> Option<u64> {
        self.start
    }

    /// Takes the other's START, which comes once on every connection.
    pub(crate) fn begin(&mut self, offset: u64) -> Result<(), StripeError> {
        match self.start {
            None => {
                (self.start, self.arrived, self.read) = (Some(offset), offset, offset);
                self.limit = offset.saturating_add(self.window);
                Ok(())
            }
            Some(known) if known == offset => Ok(()),
            Some(_) => Err(StripeError::Contradiction("start")),
        }
    }

    pub(crate) const fn set_largest(&mut self, largest: u64) {
        self.largest = if largest < FIRST_WINDOW { FIRST_WINDOW } else { largest };
    }

    /// What ACK reports: the end takes a number of its own.
    pub(crate) fn cumulative(&self) -> u64 {
        self.arrived + u64::from(self.total == Some(self.arrived))
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that it holds.
    pub(crate) const fn held(&self) -> u64 {
        self.beyond + (self.arrived - self.read)
    }

    /// Of these, bytes beyond a gap.
    pub(crate) const fn beyond_a_gap(&self) -> u64 {
        self.beyond
    }

    /// Pieces that it keeps beyond a gap.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Whether all of the direction has arrived and was read.
    pub(crate) fn is_over(&self) -> bool {
        self.total == Some(self.read)
    }

    /// Whether all of the direction has arrived.
    pub(crate) fn has_all(&self) -> bool {
        self.total == Some(self.arrived)
    }

    /// Takes bytes of the stream, whatever of them is new.
    pub(crate) fn take(&mut self, offset: u64, payload: &Bytes) -> Result<(), StripeError> {
        let end = offset + payload.len() as u64;
        let start = self.start.ok_or(StripeError::BeforeStart)?;
        if offset < start {
            return Err(StripeError::Contradiction("data before the start"));
        }
        if end > self.limit || self.total.is_some_and(|total| end > total) {
            return Err(StripeError::BeyondLimit { end, limit: self.limit });
        }
        self.keep(offset.max(self.arrived), end, offset, payload);
        if self.pieces.len() > MOST_PIECES {
            return Err(StripeError::TooManyPieces);
        }
        while let Some(piece) = self.pieces.remove(&self.arrived) {
            self.arrived += piece.len() as u64;
            self.beyond -= piece.len() as u64;
            self.ready.push(piece);
        }
        Ok(())
    }

    /// Keeps what is new from `from` to `end` of a payload that begins at `offset`.
    fn keep(&mut self, mut from: u64, end: u64, offset: u64, payload: &Bytes) {
        while from < end {
            let before = self.pieces.range(..=from).next_back();
            let covered = before.map_or(0, |(at, piece)| at + piece.len() as u64);
            if covered > from {
                from = covered;
                continue;
            }
            let until = self.pieces.range(from..).next().map_or(end, |(at, _)| end.min(*at));
            let new = (from - offset) as usize..(until - offset) as usize;
            // What is little of a payload does not hold all of it.
            let piece = match new.len() < payload.len() / 2 {
                true => Bytes::copy_from_slice(&payload[new]),
                false => payload.slice(new),
            };
            self.beyond += until - from;
            self.pieces.insert(from, piece);
            from = until;
        }
    }

    /// A sender has used up what `limit` allowed before it heard of more. True when the limit has moved.
    pub(crate) fn full(&mut self, limit: u64) -> bool {
        if limit > self.limit {
            return false;
        }
        self.was_full |= limit > self.grown_at;
        self.grow()
    }

    /// While the reader keeps up with a sender that uses up its limits, it is the window that holds the stream back, and it doubles. That
    /// is looked at with each read: what tells of a used limit comes right behind the bytes that used it. True when the limit has moved.
    fn grow(&mut self) -> bool {
        let keeps_up = self.arrived - self.read <= self.window / 4;
        if !self.was_full || !keeps_up || self.window >= self.largest {
            return false;
        }
        (self.was_full, self.grown_at) = (false, self.limit);
        self.window = (2 * self.window).min(self.largest);
        self.move_limit()
    }

    fn move_limit(&mut self) -> bool {
        let target = self.read.saturating_add(self.window.min(self.largest));
        let moves = target > self.limit;
        self.limit = self.limit.max(target);
        moves
    }

    /// Takes the direction's total. Every END must say the same.
    pub(crate) fn end(&mut self, total: u64) -> Result<(), StripeError> {
        let farthest = self.pieces.last_key_value().map(|(at, piece)| at + piece.len() as u64);
        let least = farthest.unwrap_or(0).max(self.arrived);
        let start = self.start.ok_or(StripeError::BeforeStart)?;
        if total < least.max(start) || total == u64::MAX {
            return Err(StripeError::Contradiction("end before the data"));
        }
        if self.total.is_some_and(|known| known != total) {
            return Err(StripeError::Contradiction("end"));
        }
        self.total = Some(total);
        Ok(())
    }

    /// The next bytes in order, and whether the limit has moved so far that it is worth telling.
    pub(crate) fn read(&mut self) -> Option<(Bytes, bool)> {
        let bytes = self.ready.pop()?;
        self.read += bytes.len() as u64;
        let has_grown = self.grow();
        // The window that counts is the one that is left where memory has become short.
        let window = self.window.min(self.largest);
        let room = self.read.saturating_add(window);
        let worth = !self.has_all() && room.saturating_sub(self.limit) >= window / 4;
        let moves = worth && self.move_limit();
        Some((bytes, has_grown || moves))
    }

    pub(crate) fn has_bytes(&self) -> bool {
        !self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver() -> Receiver {
        let mut receiver = Receiver::new(1 << 20);
        receiver.begin(100).unwrap();
        receiver
    }

    fn text(receiver: &mut Receiver) -> Vec<u8> {
        std::iter::from_fn(|| receiver.read()).flat_map(|(bytes, _)| bytes.to_vec()).collect()
    }

    #[test]
    fn overlapping_pieces_are_put_in_order_once() {
        let mut receiver = receiver();
        for (offset, bytes) in
            [(104, "efg"), (102, "cdefgh"), (103, "d"), (100, "ab"), (100, "abc")]
        {
            receiver.take(offset, &Bytes::copy_from_slice(bytes.as_bytes())).unwrap();
        }
        assert_eq!(receiver.beyond_a_gap(), 0);
        assert_eq!(text(&mut receiver), b"abcdefgh");
        assert_eq!(receiver.cumulative(), 108);
        receiver.end(108).unwrap();
        assert_eq!(receiver.cumulative(), 109, "the end has a number of its own");
        assert!(receiver.is_over());
    }

    #[test]
    fn a_neighbour_that_contradicts_itself_is_refused() {
        let byte = Bytes::from_static(b"x");
        assert_eq!(Receiver::new(0).take(0, &byte), Err(StripeError::BeforeStart));
        let refused = receiver().take(99, &byte);
        assert_eq!(refused, Err(StripeError::Contradiction("data before the start")));
        let limit = receiver().limit();
        let refused = receiver().take(limit, &byte);
        assert_eq!(refused, Err(StripeError::BeyondLimit { end: limit + 1, limit }));
        let mut ended = receiver();
        ended.take(110, &byte).unwrap();
        assert!(ended.end(110).is_err(), "before what has arrived");
        ended.end(111).unwrap();
        assert!(ended.end(112).is_err());
        assert!(ended.take(111, &byte).is_err(), "behind the end");
        assert!(ended.begin(101).is_err());
    }

    #[test]
    fn pieces_are_bounded_in_number_however_small() {
        let mut receiver = receiver();
        let take = |receiver: &mut Receiver, index: usize| {
            receiver.take(101 + 2 * index as u64, &Bytes::from_static(b"x"))
        };
        for index in 0..MOST_PIECES {
            take(&mut receiver, index).unwrap();
        }
        assert_eq!(take(&mut receiver, MOST_PIECES), Err(StripeError::TooManyPieces));
    }

    #[test]
    fn the_window_grows_while_the_reader_keeps_up_and_no_further_than_allowed() {
        let mut receiver = receiver();
        let chunk = Bytes::from(vec![7; 64 << 10]);
        let mut at = 100;
        for _ in 0..10 {
            let limit = receiver.limit();
            while at + chunk.len() as u64 <= limit {
                receiver.take(at, &chunk).unwrap();
                at += chunk.len() as u64;
            }
            assert!(!receiver.full(limit), "the reader is behind");
            // Once it has caught up, the window grows without another word; once for each limit.
            while receiver.read().is_some() {}
            assert!(!receiver.full(limit));
        }
        assert_eq!(receiver.window, 1 << 20);
        // Now nobody reads: the window fills and holds.
        while receiver.take(at, &chunk).is_ok() {
            at += chunk.len() as u64;
        }
        assert!(receiver.held() <= 1 << 20, "{}", receiver.held());
    }

    #[test]
    fn a_window_that_had_to_shrink_still_moves_on() {
        let mut receiver = Receiver::new(8 << 20);
        receiver.begin(100).unwrap();
        let chunk = Bytes::from(vec![7; 64 << 10]);
        let mut at = 100;
        for turn in 0..40 {
            if turn == 20 {
                assert_eq!(receiver.window, 8 << 20);
                receiver.set_largest(0);
            }
            let limit = receiver.limit();
            while at < limit {
                let count = (limit - at).min(chunk.len() as u64);
                receiver.take(at, &chunk.slice(..count as usize)).unwrap();
                at += count;
            }
            while receiver.read().is_some() {}
            receiver.full(limit);
            assert!(receiver.limit() > at, "turn {turn}: the sender may send no more, for ever");
        }
        assert_eq!(receiver.limit(), at + FIRST_WINDOW);
    }

    #[test]
    fn a_piece_that_is_new_by_one_byte_does_not_hold_its_payload() {
        let mut receiver = receiver();
        let payload = Bytes::from(vec![7; 64 << 10]);
        receiver.take(100, &payload.slice(..)).unwrap();
        let overlap = Bytes::from(vec![7; 64 << 10]);
        receiver.take(101, &overlap).unwrap();
        assert!(overlap.is_unique(), "one byte of it is kept");
        assert_eq!(text(&mut receiver).len(), (64 << 10) + 1);
    }
}
