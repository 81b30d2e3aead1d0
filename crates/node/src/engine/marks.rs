//! Congestion marks that conversations of whole packets are owed.
//!
//! A packet that a relay recovered was lost on the Internet, and its sender will not notice: so
//! another packet is marked as having met congestion. It is marked a little later, since a packet
//! that seems lost may only be late: one that comes over the Internet after all cancels its mark.

use std::collections::{BTreeMap, VecDeque};

use tradewind_packet::id::PacketId;
use tradewind_packet::session::PeerId;
use tradewind_units::{Duration, Timestamp};

/// Time that a packet may be late before it counts as lost. Chosen: twice the time that receivers
/// wait for packets out of order; congestion controls learn of losses a round trip late in any
/// case.
const WAIT: Duration = Duration::from_millis(100);
/// Time for which a mark is worth setting. Chosen: some round trips of the slowest paths.
const WORTH: Duration = Duration::from_secs(2);
/// Most marks that a conversation may be owed. Chosen: the losses of an outage say no more than
/// these.
const MAX_OF_ONE: usize = 64;

/// A conversation, by its remote endpoint.
type Key = (PeerId, u32);

/// All marks owed, by conversation, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Marks(BTreeMap<Key, VecDeque<(PacketId, Timestamp)>>);

impl Marks {
    /// Adds a mark for a recovered packet.
    pub(super) fn owe(&mut self, now: Timestamp, key: Key, packet: PacketId) {
        let owed = self.0.entry(key).or_default();
        if owed.len() < MAX_OF_ONE {
            owed.push_back((packet, now));
        }
    }

    /// Cancels the mark of a packet that has come by itself.
    pub(super) fn take_back(&mut self, key: Key, packet: PacketId) {
        if let Some(owed) = self.0.get_mut(&key) {
            owed.retain(|(known, _)| *known != packet);
        }
    }

    /// Returns whether the next packet is to be marked.
    pub(super) fn is_due(&self, now: Timestamp, key: Key) -> bool {
        let owed = self.0.get(&key);
        owed.is_some_and(|owed| owed.front().is_some_and(|(_, at)| now.since(*at) >= WAIT))
    }

    /// Removes a mark that was set.
    pub(super) fn settle(&mut self, key: Key) {
        if let Some(owed) = self.0.get_mut(&key) {
            owed.pop_front();
        }
    }

    /// Drops marks that are too old.
    pub(super) fn expire(&mut self, now: Timestamp) {
        self.0.retain(|_, owed| {
            owed.retain(|(_, at)| now.since(*at) < WORTH);
            !owed.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use tradewind_packet::id::{FlowNumber, Peer};

    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    fn packet(sequence: u64) -> PacketId {
        PacketId { flow: FlowNumber(1), sequence }
    }

    #[test]
    fn loss_marks_later_packets() {
        let (mut marks, key) = (Marks::default(), (PeerId::from(Peer(1)), 7));
        marks.owe(at(0), key, packet(1));
        marks.owe(at(0), key, packet(2));
        assert!(!marks.is_due(at(99), key), "it may be late");
        marks.take_back(key, packet(1));
        assert!(marks.is_due(at(100), key), "the other one was lost");
        assert!(!marks.is_due(at(100), (key.0, 8)), "another conversation");
        marks.settle(key);
        assert!(!marks.is_due(at(100), key));
        marks.owe(at(200), key, packet(3));
        marks.expire(at(2200));
        assert!(!marks.is_due(at(2200), key), "it says nothing about the path of now");
    }
}
