//! The receiving half of a direction: puts pieces in order, within a window.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::StripeError;
use crate::frame::{INITIAL_WINDOW, MAX_PIECES};
use crate::ready::Ready;

/// The receiving half of a direction.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// Offset where frames begin; unknown before the peer's START.
    start: Option<u64>,
    /// Offset before which everything has arrived.
    arrived: u64,
    /// Offset before which everything has been read.
    read: u64,
    /// The bytes in order that have not been read.
    ready: Ready,
    /// The pieces beyond a gap, by offset; they do not overlap.
    pieces: BTreeMap<u64, Bytes>,
    beyond: u64,
    /// Most bytes between `read` and `limit`.
    window: u64,
    largest: u64,
    limit: u64,
    /// The limit at the time when the window last grew.
    grown_at: u64,
    /// True once the sender has used up a limit since.
    was_full: bool,
    total: Option<u64>,
}

impl Receiver {
    /// Creates a receiver that waits for START; `largest` bounds the window.
    pub(crate) fn new(largest: u64) -> Self {
        Self {
            start: None,
            arrived: 0,
            read: 0,
            ready: Ready::default(),
            pieces: BTreeMap::new(),
            beyond: 0,
            window: INITIAL_WINDOW,
            largest: largest.max(INITIAL_WINDOW),
            limit: 0,
            grown_at: 0,
            was_full: false,
            total: None,
        }
    }

    pub(crate) const fn start(&self) -> Option<u64> {
        self.start
    }

    /// Handles the peer's START, which arrives once on every connection.
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
        self.largest = if largest < INITIAL_WINDOW { INITIAL_WINDOW } else { largest };
    }

    /// Returns the cumulative offset for ACK; the end of the stream counts as one more.
    pub(crate) fn cumulative(&self) -> u64 {
        self.arrived + u64::from(self.total == Some(self.arrived))
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the number of bytes held.
    pub(crate) const fn held(&self) -> u64 {
        self.beyond + (self.arrived - self.read)
    }

    /// Returns the number of bytes held beyond a gap.
    pub(crate) const fn beyond_a_gap(&self) -> u64 {
        self.beyond
    }

    /// Returns the number of pieces held beyond a gap.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Returns whether all of the direction has arrived and was read.
    pub(crate) fn is_over(&self) -> bool {
        self.total == Some(self.read)
    }

    /// Returns whether all of the direction has arrived.
    pub(crate) fn has_all(&self) -> bool {
        self.total == Some(self.arrived)
    }

    /// Takes the bytes of `payload` that are new.
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
        if self.pieces.len() > MAX_PIECES {
            return Err(StripeError::TooManyPieces);
        }
        while let Some(piece) = self.pieces.remove(&self.arrived) {
            self.arrived += piece.len() as u64;
            self.beyond -= piece.len() as u64;
            self.ready.push(piece);
        }
        Ok(())
    }

    /// Keeps the new bytes from `from` to `end` of a payload that begins at `offset`.
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
            // A small part of a payload is copied, so that it does not keep all of it in memory.
            let piece = if new.len() < payload.len() / 2 {
                Bytes::copy_from_slice(&payload[new])
            } else {
                payload.slice(new)
            };
            self.beyond += until - from;
            self.pieces.insert(from, piece);
            from = until;
        }
    }

    /// Handles FULL: the sender has used up `limit` before it received a higher one. Returns
    /// whether the limit has moved.
    pub(crate) fn full(&mut self, limit: u64) -> bool {
        if limit > self.limit {
            return false;
        }
        self.was_full |= limit > self.grown_at;
        self.grow()
    }

    /// Doubles the window if the sender has used up a limit while the reader keeps up: then the
    /// window holds the stream back. It is checked at each read, since FULL arrives right behind
    /// the bytes that used up the limit. Returns whether the limit has moved.
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

    /// Handles END with the direction's total; every END must name the same.
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

    /// Returns the next bytes in order, and whether the limit has moved far enough to be sent.
    pub(crate) fn read(&mut self) -> Option<(Bytes, bool)> {
        let bytes = self.ready.pop()?;
        self.read += bytes.len() as u64;
        let has_grown = self.grow();
        // While memory is short, the window is bounded by the smaller `largest`.
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
    fn contradicting_peer_is_refused() {
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
    fn number_of_pieces_is_bounded() {
        let mut receiver = receiver();
        let take = |receiver: &mut Receiver, index: usize| {
            receiver.take(101 + 2 * index as u64, &Bytes::from_static(b"x"))
        };
        for index in 0..MAX_PIECES {
            take(&mut receiver, index).unwrap();
        }
        assert_eq!(take(&mut receiver, MAX_PIECES), Err(StripeError::TooManyPieces));
    }

    #[test]
    fn window_grows_up_to_its_limit_while_the_reader_keeps_up() {
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
            // Once the reader has caught up, the window grows without another FULL; once for each
            // limit.
            while receiver.read().is_some() {}
            assert!(!receiver.full(limit));
        }
        assert_eq!(receiver.window, 1 << 20);
        // Now nothing is read: the window fills and stays as it is.
        while receiver.take(at, &chunk).is_ok() {
            at += chunk.len() as u64;
        }
        assert!(receiver.held() <= 1 << 20, "{}", receiver.held());
    }

    #[test]
    fn shrunk_window_still_moves() {
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
        assert_eq!(receiver.limit(), at + INITIAL_WINDOW);
    }

    #[test]
    fn small_new_part_is_copied() {
        let mut receiver = receiver();
        let payload = Bytes::from(vec![7; 64 << 10]);
        receiver.take(100, &payload.slice(..)).unwrap();
        let overlap = Bytes::from(vec![7; 64 << 10]);
        receiver.take(101, &overlap).unwrap();
        assert!(overlap.is_unique(), "one byte of it is kept");
        assert_eq!(text(&mut receiver).len(), (64 << 10) + 1);
    }
}
