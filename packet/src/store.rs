//! Packets that are kept for a while: the egress relay's cache, what a receiver lends to others, copies without acknowledgement.
//!
//! First in, first out, bounded by age, bytes and packets. The memory of a packet that goes is taken by the next.

use std::collections::VecDeque;

use tradewind_units::{Bytes, Duration, Timestamp};

use crate::id::{FlowNumber, PacketId};
use crate::numbered::Numbered;

/// How much may be kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Longest.
    pub age: Duration,
    /// Most payload.
    pub bytes: Bytes,
    /// Most packets.
    pub packets: usize,
}

/// What a machine keeps at a time, in numbers: for those who watch its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Packets.
    pub packets: usize,
    /// Bytes of packets and repair packets.
    pub bytes: u64,
    /// Blocks.
    pub blocks: usize,
    /// What was asked for, by others or of others.
    pub requests: usize,
}

/// The packets.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    keep: Keep,
    bytes: u64,
    /// In the order in which they came.
    entries: VecDeque<Entry>,
    buffers: Vec<Vec<u8>>,
    free: Vec<usize>,
    /// The places of packets' buffers.
    index: Numbered<FlowNumber, usize>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    packet: PacketId,
    at: Timestamp,
    buffer: usize,
}

impl Store {
    pub(crate) fn new(keep: Keep) -> Self {
        Self {
            keep,
            bytes: 0,
            entries: VecDeque::new(),
            buffers: Vec::new(),
            free: Vec::new(),
            index: Numbered::default(),
        }
    }

    /// Keeps a packet; `false` when it is kept already, or is more than may be kept at all.
    pub(crate) fn insert(&mut self, now: Timestamp, packet: PacketId, payload: &[u8]) -> bool {
        self.expire(now);
        let bytes = payload.len() as u64;
        if bytes > self.keep.bytes.as_u64() || self.keep.packets == 0 {
            return false;
        }
        if self.get(packet).is_some() {
            return false;
        }
        let buffer = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(Vec::new());
            self.buffers.len() - 1
        });
        self.buffers[buffer].clear();
        self.buffers[buffer].extend_from_slice(payload);
        self.index.insert(packet.flow, packet.sequence, buffer);
        self.entries.push_back(Entry { packet, at: now, buffer });
        self.bytes += bytes;
        while self.bytes > self.keep.bytes.as_u64() || self.entries.len() > self.keep.packets {
            self.pop();
        }
        true
    }

    /// The payload, if it is kept.
    pub(crate) fn get(&self, packet: PacketId) -> Option<&[u8]> {
        let buffer = self.index.get(packet.flow, packet.sequence)?;
        Some(&self.buffers[*buffer])
    }

    /// Lets go what is too old.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        while self.entries.front().is_some_and(|entry| now.since(entry.at) > self.keep.age) {
            self.pop();
        }
    }

    /// Whether nothing is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Packets kept.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn pop(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.index.remove(entry.packet.flow, entry.packet.sequence);
        self.bytes -= self.buffers[entry.buffer].len() as u64;
        self.free.push(entry.buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(flow: u64, sequence: u64) -> PacketId {
        PacketId { flow: FlowNumber(flow), sequence }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn keep(packets: usize, bytes: u64) -> Keep {
        Keep { age: Duration::from_millis(100), bytes: Bytes::new(bytes), packets }
    }

    #[test]
    fn what_is_too_old_goes() {
        let mut store = Store::new(keep(10, 100));
        assert!(store.insert(at(0), id(1, 1), b"a"));
        assert!(!store.insert(at(1), id(1, 1), b"b"));
        store.expire(at(100));
        assert_eq!(store.get(id(1, 1)), Some(&b"a"[..]));
        store.expire(at(101));
        assert_eq!(store.get(id(1, 1)), None);
    }

    proptest! {
        #[test]
        fn bounds_hold_and_what_is_kept_is_what_came(
            inserts in prop::collection::vec((0..3_u64, 0..50_u64, 1..20_usize, 0..9_u64), 1..200),
        ) {
            let mut store = Store::new(keep(8, 60));
            let mut model: Vec<(PacketId, Timestamp, Vec<u8>)> = Vec::new();
            let mut now = 0;
            for (flow, sequence, length, passed) in inserts {
                now += passed;
                model.retain(|(_, came, _)| at(now).since(*came) <= Duration::from_millis(100));
                let (packet, payload) = (id(flow, sequence), vec![sequence as u8; length]);
                let is_new = model.iter().all(|(kept, ..)| *kept != packet);
                prop_assert_eq!(store.insert(at(now), packet, &payload), is_new);
                if is_new {
                    model.push((packet, at(now), payload));
                }
                while model.len() > 8 || model.iter().map(|(.., p)| p.len()).sum::<usize>() > 60 {
                    model.remove(0);
                }
                prop_assert_eq!(store.len(), model.len());
                for (packet, _, payload) in &model {
                    prop_assert_eq!(store.get(*packet), Some(&payload[..]));
                }
            }
        }
    }
}
