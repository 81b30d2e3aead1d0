//! Packets that are kept for a while: the egress relay's cache, what a receiver lends to others, copies without acknowledgement.
//!
//! Bounded by age, bytes and packets. Where there is no room, whoever has most gives it: of its packets the oldest goes, so that nobody who sends much has others' packets forgotten.
//! The memory of a packet that goes is taken by the next.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use tradewind_units::{Bytes, Duration, Timestamp};

use crate::id::{FlowNumber, PacketId, Tenant};
use crate::numbered::Numbered;

/// Owners that a look at all of them counts for one packet. Chosen: about what keeping it costs.
const PACKETS_OF_A_LOOK: usize = 8;

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
    packets: usize,
    shares: BTreeMap<Tenant, Share>,
    /// Who had most when that was looked at last, and how many packets of his may go before it is looked at again.
    largest: (Tenant, usize),
    buffers: Vec<Vec<u8>>,
    free: Vec<usize>,
    /// Room of all buffers.
    room: usize,
    /// When packets came, and the places of their buffers.
    index: Numbered<FlowNumber, (Timestamp, usize)>,
}

/// One owner's packets, in the order in which they came.
#[derive(Debug, Clone, Default)]
struct Share {
    bytes: u64,
    entries: VecDeque<Entry>,
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
            packets: 0,
            shares: BTreeMap::new(),
            largest: (Tenant(0), 0),
            buffers: Vec::new(),
            free: Vec::new(),
            room: 0,
            index: Numbered::default(),
        }
    }

    /// Keeps an owner's packet; `false` when it is kept already, or is more than may be kept at all.
    pub(crate) fn insert(
        &mut self,
        now: Timestamp,
        owner: Tenant,
        packet: PacketId,
        payload: &[u8],
    ) -> bool {
        self.expire_of(owner, now);
        let bytes = payload.len() as u64;
        let is_known = self.index.get(packet.flow, packet.sequence).is_some();
        if is_known || bytes > self.keep.bytes.as_u64() || self.keep.packets == 0 {
            return false;
        }
        while !self.has_room(bytes) {
            self.make_room(now, bytes);
        }
        let buffer = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(Vec::new());
            self.buffers.len() - 1
        });
        let before = self.buffers[buffer].capacity();
        self.buffers[buffer].clear();
        self.buffers[buffer].extend_from_slice(payload);
        self.room += self.buffers[buffer].capacity() - before;
        self.index.insert(packet.flow, packet.sequence, (now, buffer));
        let share = self.shares.entry(owner).or_default();
        share.entries.push_back(Entry { packet, at: now, buffer });
        share.bytes += bytes;
        self.bytes += bytes;
        self.packets += 1;
        true
    }

    /// The payload, if it is kept and not too old.
    pub(crate) fn get(&self, now: Timestamp, packet: PacketId) -> Option<&[u8]> {
        let (at, buffer) = self.index.get(packet.flow, packet.sequence)?;
        (now.since(*at) <= self.keep.age).then(|| &self.buffers[*buffer][..])
    }

    /// Lets go what is too old.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        let mut next = self.shares.keys().next().copied();
        while let Some(owner) = next {
            self.expire_of(owner, now);
            let later = (Bound::Excluded(owner), Bound::Unbounded);
            next = self.shares.range(later).next().map(|(owner, _)| *owner);
        }
        self.shares.retain(|_, share| !share.entries.is_empty());
    }

    /// Whether nothing is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Packets kept.
    pub(crate) fn len(&self) -> usize {
        self.packets
    }

    /// Bytes of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn expire_of(&mut self, owner: Tenant, now: Timestamp) {
        let Some(share) = self.shares.get(&owner) else { return };
        let is_old = |entry: &&Entry| now.since(entry.at) > self.keep.age;
        let many = share.entries.iter().take_while(is_old).count();
        (0..many).for_each(|_| self.pop(owner));
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.bytes + bytes <= self.keep.bytes.as_u64() && self.packets < self.keep.packets
    }

    /// Takes what is too old, or the oldest packet of whoever has most of what there is too much of. All owners are looked at once for so many packets that a look costs none of these much.
    fn make_room(&mut self, now: Timestamp, bytes: u64) {
        let (owner, left) = self.largest;
        let is_there = self.shares.get(&owner).is_some_and(|share| !share.entries.is_empty());
        if left > 0 && is_there {
            self.largest.1 -= 1;
            return self.pop(owner);
        }
        self.expire(now);
        if self.has_room(bytes) {
            return;
        }
        let size = |share: &Share| match self.packets >= self.keep.packets {
            true => share.entries.len() as u64,
            false => share.bytes,
        };
        let largest = self.shares.iter().max_by_key(|(_, share)| size(share));
        if let Some(owner) = largest.map(|(owner, _)| *owner) {
            self.largest = (owner, self.shares.len() / PACKETS_OF_A_LOOK);
            self.pop(owner);
        }
    }

    fn pop(&mut self, owner: Tenant) {
        let Some(share) = self.shares.get_mut(&owner) else { return };
        let Some(entry) = share.entries.pop_front() else { return };
        self.index.remove(entry.packet.flow, entry.packet.sequence);
        let buffer = &mut self.buffers[entry.buffer];
        let bytes = buffer.len() as u64;
        share.bytes -= bytes;
        self.bytes -= bytes;
        self.packets -= 1;
        if self.room as u64 > 2 * self.keep.bytes.as_u64() {
            self.room -= std::mem::take(buffer).capacity();
        }
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

    const OWNERS: [Tenant; 2] = [Tenant(0), Tenant(1)];

    #[test]
    fn what_is_too_old_goes() {
        let mut store = Store::new(keep(10, 100));
        for owner in OWNERS {
            assert!(store.insert(at(0), owner, id(owner.0.into(), 1), b"a"));
        }
        assert!(!store.insert(at(1), OWNERS[0], id(1, 1), b"b"));
        store.expire(at(100));
        assert_eq!(store.get(at(100), id(1, 1)), Some(&b"a"[..]));
        assert_eq!(store.get(at(101), id(1, 1)), None);
        store.expire(at(101));
        assert_eq!((store.get(at(100), id(0, 1)), store.get(at(100), id(1, 1))), (None, None));
        assert!(store.is_empty() && store.shares.is_empty());
    }

    #[test]
    fn who_has_most_makes_room() {
        let mut store = Store::new(keep(100, 1000));
        for sequence in 0..20 {
            assert!(store.insert(at(0), OWNERS[0], id(0, sequence), &[0; 10]));
        }
        for sequence in 0..1000 {
            assert!(store.insert(at(1), OWNERS[1], id(1, sequence), &[0; 10]));
        }
        let kept = |flow| -> Vec<u64> {
            (0..1000).filter(|sequence| store.get(at(1), id(flow, *sequence)).is_some()).collect()
        };
        assert_eq!(kept(0).len(), 20, "what others sent is still there");
        assert_eq!(kept(1), (920..1000).collect::<Vec<u64>>());
    }

    #[test]
    fn many_owners_share_what_there_is_and_buffers_are_bounded() {
        let mut store = Store::new(keep(1000, 100_000));
        for round in 0..50 {
            for owner in 0..200_u32 {
                let length = 1 + usize::try_from((owner + round) % 5).unwrap() * 300;
                let packet = id(owner.into(), round.into());
                assert!(store.insert(at(1), Tenant(owner), packet, &vec![0; length]));
            }
        }
        let sizes = || store.shares.values().map(|share| share.bytes);
        assert!(sizes().max().unwrap() < 4 * sizes().sum::<u64>() / 200, "{:?}", sizes().max());
        assert!(store.room <= 2 * 100_000 + 1500, "{} bytes of room", store.room);
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
                let owner = Tenant(flow as u32 / 2);
                let of = |packet: &PacketId| Tenant(packet.flow.0 as u32 / 2);
                let is_old = |came: Timestamp| at(now).since(came) > Duration::from_millis(100);
                model.retain(|(kept, came, _)| of(kept) != owner || !is_old(*came));
                let (packet, payload) = (id(flow, sequence), vec![sequence as u8; length]);
                let is_new = model.iter().all(|(kept, ..)| *kept != packet);
                prop_assert_eq!(store.insert(at(now), owner, packet, &payload), is_new);
                let bytes = |model: &[(PacketId, Timestamp, Vec<u8>)], of_whom: &[Tenant]| {
                    let such = model.iter().filter(|(kept, ..)| of_whom.contains(&of(kept)));
                    such.map(|(.., payload)| payload.len()).sum::<usize>()
                };
                let count = |model: &[(PacketId, Timestamp, Vec<u8>)], whom: Tenant| {
                    model.iter().filter(|(kept, ..)| of(kept) == whom).count()
                };
                let is_tight = model.len() >= 8 || bytes(&model, &OWNERS) + length > 60;
                if is_new && is_tight {
                    model.retain(|(_, came, _)| !is_old(*came));
                }
                while is_new && (model.len() >= 8 || bytes(&model, &OWNERS) + length > 60) {
                    let size = |whom: Tenant| match model.len() >= 8 {
                        true => count(&model, whom),
                        false => bytes(&model, &[whom]),
                    };
                    let largest = OWNERS.into_iter().max_by_key(|whom| size(*whom)).unwrap();
                    let oldest = model.iter().position(|(kept, ..)| of(kept) == largest);
                    model.remove(oldest.unwrap());
                }
                if is_new {
                    model.push((packet, at(now), payload));
                }
                prop_assert_eq!(store.len(), model.len());
                prop_assert_eq!(store.bytes() as usize, bytes(&model, &OWNERS));
                for (packet, came, payload) in &model {
                    let expected = (!is_old(*came)).then_some(&payload[..]);
                    prop_assert_eq!(store.get(at(now), *packet), expected);
                }
            }
        }
    }
}
