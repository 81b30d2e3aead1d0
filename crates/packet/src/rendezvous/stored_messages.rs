//! A queue of stored messages, with the stored header that the first of them needs.

use std::collections::VecDeque;

use tradewind_units::Timestamp;

use super::is_header;

/// The bytes that a stored message costs beside its own. Chosen: more than its share of the tables.
pub(super) const COST: u64 = 96;

/// A stored message that waits, with its keeper's note.
#[derive(Debug, Clone)]
pub(super) struct Stored<N> {
    /// Its position in a mailbox; ascending.
    pub(super) number: u64,
    /// The time at which it expires.
    pub(super) until: Timestamp,
    pub(super) note: N,
    pub(super) bytes: Vec<u8>,
}

impl<N> Stored<N> {
    pub(super) fn is_header(&self) -> bool {
        is_header(&self.bytes)
    }

    pub(super) fn cost(&self) -> u64 {
        cost(&self.bytes)
    }
}

/// Returns the bytes that keeping a stored message costs.
pub(super) fn cost(stored_message: &[u8]) -> u64 {
    stored_message.len() as u64 + COST
}

/// A queue of stored messages.
#[derive(Debug, Clone)]
pub(super) struct StoredMessages<N> {
    /// The last stored header that has left the queue.
    stored_header: Option<Stored<N>>,
    waiting: VecDeque<Stored<N>>,
    cost: u64,
}

impl<N> Default for StoredMessages<N> {
    fn default() -> Self {
        Self { stored_header: None, waiting: VecDeque::new(), cost: 0 }
    }
}

impl<N> StoredMessages<N> {
    pub(super) fn push(&mut self, stored_message: Stored<N>) {
        self.cost += stored_message.cost();
        self.waiting.push_back(stored_message);
    }

    /// Removes the first message; returns whether it was a packet. A stored header is kept until
    /// another one has left.
    pub(super) fn pop(&mut self) -> Option<bool> {
        let first = self.waiting.pop_front()?;
        let is_packet = !first.is_header();
        let gone = if is_packet { Some(first) } else { self.stored_header.replace(first) };
        self.cost -= gone.map_or(0, |gone| gone.cost());
        Some(is_packet)
    }

    /// Removes the oldest packet behind the first `sent` messages, if `is_to_go`, or a stored
    /// header there that no packet needs; returns whether it was a packet. Another stored header
    /// there stays: packets that come later need it.
    pub(super) fn release_behind(
        &mut self,
        sent: usize,
        is_to_go: impl Fn(&Stored<N>) -> bool,
    ) -> Option<bool> {
        let is_header = |at: usize| self.waiting.get(at).is_some_and(Stored::is_header);
        let at = sent + usize::from(is_header(sent) && !is_header(sent + 1));
        if !is_to_go(self.waiting.get(at)?) {
            return None;
        }
        let gone = self.waiting.remove(at)?;
        self.cost -= gone.cost();
        Some(!gone.is_header())
    }

    /// Puts the stored header that the first packet needs before it again.
    pub(super) fn put_header_back(&mut self) {
        let Some(first) = self.waiting.front().filter(|first| !first.is_header()) else { return };
        let until = first.until;
        if let Some(stored_header) = self.stored_header.take() {
            self.waiting.push_front(Stored { until, ..stored_header });
        }
    }

    /// Returns the bytes that keeping all messages costs.
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    pub(super) fn front(&self) -> Option<&Stored<N>> {
        self.waiting.front()
    }

    pub(super) fn waiting(&self) -> &VecDeque<Stored<N>> {
        &self.waiting
    }

    pub(super) fn waiting_mut(&mut self) -> &mut VecDeque<Stored<N>> {
        &mut self.waiting
    }

    /// Returns the stored header that the first packet needs, and all waiting messages.
    pub(super) fn all(&self) -> impl Iterator<Item = &Stored<N>> {
        self.stored_header.iter().chain(&self.waiting)
    }
}
