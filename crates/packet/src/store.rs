//! Packets that are kept for a while: the egress relay's cache, and the packets that a receiver
//! lends to others.
//!
//! Eviction is by owner (`shares`). The memory of an evicted packet is reused by the next.

use tradewind_units::{Bytes, Duration, Timestamp};

use crate::id::{FlowNumber, PacketId, Tenant};
use crate::numbered::Numbered;
use crate::shares::{Bounds, Shares};

/// The limits of kept packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// The longest that a packet is kept.
    pub age: Duration,
    /// The most payload bytes.
    pub bytes: Bytes,
    /// The most packets.
    pub packets: usize,
}

/// The amounts that a machine keeps at a time, to watch its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredAmounts {
    /// Packets.
    pub packets: usize,
    /// Bytes of packets and repair packets.
    pub bytes: u64,
    /// Blocks.
    pub blocks: usize,
    /// Requests of others, or to others.
    pub requests: usize,
}

/// The kept packets.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    shares: Shares<Entry>,
    buffers: Buffers,
}

/// A packet, and the place of its buffer.
#[derive(Debug, Clone, Copy)]
struct Entry {
    packet: PacketId,
    buffer: usize,
}

/// The buffers of packets.
#[derive(Debug, Clone, Default)]
struct Buffers {
    all: Vec<Vec<u8>>,
    free: Vec<usize>,
    /// The capacity of all buffers, and the part of it that is never freed.
    capacity: usize,
    spare: u64,
    /// The arrival times of packets, and the places of their buffers.
    index: Numbered<FlowNumber, (Timestamp, usize)>,
}

impl Store {
    pub(crate) fn new(keep: Keep) -> Self {
        let bytes = keep.bytes.as_u64();
        let shares = Shares::new(Bounds { age: keep.age, bytes, count: keep.packets });
        Self { shares, buffers: Buffers { spare: 2 * bytes, ..Buffers::default() } }
    }

    /// Keeps an owner's packet; returns `false` when it is kept already, or exceeds the limits by
    /// itself.
    pub(crate) fn insert(
        &mut self,
        now: Timestamp,
        owner: Tenant,
        packet: PacketId,
        payload: &[u8],
    ) -> bool {
        let Self { shares, buffers } = self;
        shares.expire_of(owner, now, |entry| buffers.forget(entry));
        let bytes = payload.len() as u64;
        if buffers.find(packet).is_some() || !shares.may_hold(bytes) {
            return false;
        }
        shares.make_room(now, (1, bytes), |entry| buffers.forget(entry));
        let entry = Entry { packet, buffer: buffers.keep(now, packet, payload) };
        shares.add(now, owner, entry, bytes);
        true
    }

    /// Returns the payload, if it is kept and has not expired.
    pub(crate) fn get(&self, now: Timestamp, packet: PacketId) -> Option<&[u8]> {
        let (at, payload) = self.buffers.find(packet)?;
        (now.since(at) <= self.shares.bounds().age).then_some(payload)
    }

    /// Removes expired packets.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        let Self { shares, buffers } = self;
        shares.expire(now, |entry| buffers.forget(entry));
    }

    /// Returns whether no packet is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// Returns how many packets are kept.
    pub(crate) fn len(&self) -> usize {
        self.shares.len()
    }

    /// Returns their bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.shares.bytes()
    }
}

impl Buffers {
    fn find(&self, packet: PacketId) -> Option<(Timestamp, &[u8])> {
        let (at, buffer) = self.index.get(packet.flow, packet.sequence)?;
        Some((*at, &self.all[*buffer][..]))
    }

    /// Keeps a packet; returns the place of its buffer.
    fn keep(&mut self, now: Timestamp, packet: PacketId, payload: &[u8]) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.all.push(Vec::new());
            self.all.len() - 1
        });
        let buffer = &mut self.all[place];
        let before = buffer.capacity();
        buffer.clear();
        buffer.extend_from_slice(payload);
        self.capacity += buffer.capacity() - before;
        self.index.insert(packet.flow, packet.sequence, (now, place));
        place
    }

    /// Forgets a packet; returns its bytes.
    fn forget(&mut self, entry: Entry) -> u64 {
        self.index.remove(entry.packet.flow, entry.packet.sequence);
        let buffer = &mut self.all[entry.buffer];
        let bytes = buffer.len() as u64;
        if self.capacity as u64 > self.spare {
            self.capacity -= std::mem::take(buffer).capacity();
        }
        self.free.push(entry.buffer);
        bytes
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
    fn old_packets_expire() {
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
        assert!(store.is_empty() && store.shares.sizes().next().is_none());
    }

    #[test]
    fn largest_owner_is_evicted_from() {
        let mut store = Store::new(keep(100, 1000));
        for sequence in 0..20 {
            assert!(store.insert(at(0), OWNERS[0], id(0, sequence), &[0; 10]));
        }
        for sequence in 0..1000 {
            assert!(store.insert(at(1), OWNERS[1], id(1, sequence), &[0; 10]));
        }
        let stored = |flow| -> Vec<u64> {
            (0..1000).filter(|sequence| store.get(at(1), id(flow, *sequence)).is_some()).collect()
        };
        assert_eq!(stored(0).len(), 20, "what others sent is still there");
        assert_eq!(stored(1), (920..1000).collect::<Vec<u64>>());
    }

    #[test]
    fn owners_share_bounded_buffers() {
        let mut store = Store::new(keep(1000, 100_000));
        for round in 0..50 {
            for owner in 0..200_u32 {
                let length = 1 + usize::try_from((owner + round) % 5).unwrap() * 300;
                let packet = id(owner.into(), round.into());
                assert!(store.insert(at(1), Tenant(owner), packet, &vec![0; length]));
            }
        }
        let sizes = || store.shares.sizes();
        assert!(sizes().max().unwrap() < 4 * sizes().sum::<u64>() / 200, "{:?}", sizes().max());
        let capacity = store.buffers.capacity;
        assert!(capacity <= 2 * 100_000 + 1500, "{capacity} bytes of room");
    }

    proptest! {
        #[test]
        fn store_agrees_with_model(
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
                model.retain(|(stored, came, _)| of(stored) != owner || !is_old(*came));
                let (packet, payload) = (id(flow, sequence), vec![sequence as u8; length]);
                let is_new = model.iter().all(|(stored, ..)| *stored != packet);
                prop_assert_eq!(store.insert(at(now), owner, packet, &payload), is_new);
                let bytes = |model: &[(PacketId, Timestamp, Vec<u8>)], of_whom: &[Tenant]| {
                    let such = model.iter().filter(|(stored, ..)| of_whom.contains(&of(stored)));
                    such.map(|(.., payload)| payload.len()).sum::<usize>()
                };
                let count = |model: &[(PacketId, Timestamp, Vec<u8>)], whom: Tenant| {
                    model.iter().filter(|(stored, ..)| of(stored) == whom).count()
                };
                let is_tight = model.len() >= 8 || bytes(&model, &OWNERS) + length > 60;
                if is_new && is_tight {
                    model.retain(|(_, came, _)| !is_old(*came));
                }
                while is_new && (model.len() >= 8 || bytes(&model, &OWNERS) + length > 60) {
                    let is_full = model.len() >= 8;
                    let size = |whom: Tenant| {
                        if is_full { count(&model, whom) } else { bytes(&model, &[whom]) }
                    };
                    let largest = OWNERS.into_iter().max_by_key(|whom| size(*whom)).unwrap();
                    let oldest = model.iter().position(|(stored, ..)| of(stored) == largest);
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
