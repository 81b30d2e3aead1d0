//! The output of a machine: datagrams to be sent, events to be counted.
//!
//! Both queues are bounded, and neither allocates once it has grown to its usual size.

use std::collections::VecDeque;

use crate::event::{DropReason, Event};
use crate::id::Peer;
use crate::message::Message;

/// The most bytes that wait to be sent. Chosen: 3 ms of 10 Gbit/s; the caller of a machine sends
/// after each batch.
pub const MAX_QUEUED_BYTES: usize = 4 << 20;
/// The most events that wait. Chosen: those of some batches of datagrams.
pub const MAX_EVENTS: usize = 16_384;
/// Spent bytes at the front beyond which the waiting bytes are moved there. Chosen: moves stay
/// rare.
const SPENT_BYTES: usize = 1 << 16;

/// A datagram to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit<'a> {
    /// The receiver.
    pub to: Peer,
    /// The message.
    pub bytes: &'a [u8],
}

/// A queue of byte strings with a note each, in one piece of memory.
#[derive(Debug, Clone)]
pub(crate) struct Arena<T> {
    bytes: Vec<u8>,
    /// The end of the byte strings that were taken.
    spent: usize,
    queued: VecDeque<(T, usize)>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { bytes: Vec::new(), spent: 0, queued: VecDeque::new() }
    }
}

impl<T> Arena<T> {
    /// Adds the bytes that `write` appends; returns their length, or `None` when too much waits and
    /// nothing is added.
    pub(crate) fn push(&mut self, note: T, write: impl FnOnce(&mut Vec<u8>)) -> Option<usize> {
        if self.queued.is_empty() {
            self.bytes.clear();
            self.spent = 0;
        } else if self.spent > SPENT_BYTES && self.spent > self.bytes.len() / 2 {
            self.bytes.drain(..self.spent);
            for (_, end) in &mut self.queued {
                *end -= self.spent;
            }
            self.spent = 0;
        }
        let start = self.bytes.len();
        write(&mut self.bytes);
        if self.bytes.len() - self.spent > MAX_QUEUED_BYTES {
            self.bytes.truncate(start);
            return None;
        }
        self.queued.push_back((note, self.bytes.len()));
        Some(self.bytes.len() - start)
    }

    /// Takes the first byte string.
    pub(crate) fn pop(&mut self) -> Option<(T, &[u8])> {
        let (note, end) = self.queued.pop_front()?;
        let start = std::mem::replace(&mut self.spent, end);
        Some((note, &self.bytes[start..end]))
    }
}

/// The datagrams and events of one machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outbox {
    datagrams: Arena<Peer>,
    events: VecDeque<Event>,
    events_lost: u64,
}

impl Outbox {
    /// Queues a message; returns its length. When too much waits it is dropped, and counted.
    pub(crate) fn send(&mut self, to: Peer, message: &Message<'_>) -> Option<usize> {
        let sent = self.datagrams.push(to, |bytes| message.write(bytes));
        if sent.is_none() {
            self.drop(DropReason::QueueFull);
        }
        sent
    }

    /// Returns the next datagram.
    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        self.datagrams.pop().map(|(to, bytes)| Transmit { to, bytes })
    }

    /// Counts a drop.
    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.emit(Event::Dropped(reason));
    }

    /// Queues an event.
    pub(crate) fn emit(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        } else {
            self.events_lost += 1;
        }
    }

    /// Returns the next event.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        let lost = std::mem::take(&mut self.events_lost);
        (lost > 0).then_some(Event::EventsLost(lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ping(nonce: u64) -> Message<'static> {
        Message::Keepalive { is_answer: false, nonce }
    }

    #[test]
    fn outbox_keeps_order() {
        let mut outbox = Outbox::default();
        let mut expected = 0;
        for round in 0..20_000_u64 {
            outbox.send(Peer(1), &ping(round));
            // Two in, one out, so that the queue is never empty.
            if round % 2 == 0 {
                let sent = outbox.poll_transmit().unwrap();
                assert_eq!(Message::parse(sent.bytes).unwrap(), ping(expected));
                expected += 1;
            }
        }
        while let Some(sent) = outbox.poll_transmit() {
            assert_eq!(Message::parse(sent.bytes).unwrap(), ping(expected));
            expected += 1;
        }
        assert_eq!(expected, 20_000);
    }

    #[test]
    fn unread_output_is_bounded() {
        let mut outbox = Outbox::default();
        let most = MAX_QUEUED_BYTES / 10 + 10;
        for round in 0..most {
            outbox.send(Peer(1), &ping(round as u64));
        }
        assert_eq!(outbox.poll_event(), Some(Event::Dropped(DropReason::QueueFull)));
        for _ in 0..MAX_EVENTS + 3 {
            outbox.drop(DropReason::Malformed);
        }
        let events = std::iter::from_fn(|| outbox.poll_event()).collect::<Vec<_>>();
        assert!(matches!(events.last(), Some(Event::EventsLost(lost)) if *lost > 0));
    }
}
