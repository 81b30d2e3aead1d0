//! Packets of flows that are not served yet.
//!
//! The message that has a flow served ([`Serve`](crate::message::Message::Serve) or
//! [`Join`](crate::message::Message::Join)) leaves just before its first packets. It may be lost,
//! and is repeated a second later; or the packets overtake it. They are kept for that long, and
//! handled once the flow is served.

use std::collections::BTreeMap;

use tradewind_units::{Duration, Timestamp};

use crate::id::{FlowNumber, PacketId, Peer, Tenant};
use crate::message::{Class, Service, Source};
use crate::shares::{Bounds, Shares};

/// Longest that a packet is kept. Chosen: a lost [`Serve`](crate::message::Message::Serve) is
/// repeated after a second.
const AGE: Duration = Duration::from_millis(1200);
/// Most payload bytes of all neighbours; beyond that the oldest packet of the neighbour with most
/// bytes is evicted. Chosen: little beside the cache.
const BYTES: u64 = 4 << 20;
/// Most packets. Chosen: a second of the first packets of some hundred calls.
const PACKETS: usize = 4096;

/// The packets that came too early.
#[derive(Debug, Clone)]
pub(crate) struct Early {
    /// Shares by neighbour. A packet that was taken counts until it expires.
    shares: Shares<KeptPacket>,
    /// Packets by flow, in order of arrival.
    packets: BTreeMap<(FlowNumber, u64), EarlyPacket>,
    next: u64,
}

/// The key of a kept packet, and its bytes.
#[derive(Debug, Clone, Copy)]
struct KeptPacket {
    key: (FlowNumber, u64),
    bytes: u64,
}

/// A packet that came too early.
#[derive(Debug, Clone)]
pub(crate) struct EarlyPacket {
    came: Timestamp,
    /// The sender of the copy.
    pub(crate) from: Peer,
    /// The number as a copy, if it is one.
    pub(crate) number: u64,
    packet: PacketId,
    service: Service,
    class: Class,
    payload: Vec<u8>,
}

impl EarlyPacket {
    pub(crate) fn source(&self) -> Source<'_> {
        let Self { packet, service, class, payload, .. } = self;
        Source { packet: *packet, service: *service, class: *class, payload }
    }
}

impl Early {
    pub(crate) fn new() -> Self {
        let bounds = Bounds { age: AGE, bytes: BYTES, count: PACKETS };
        Self { shares: Shares::new(bounds), packets: BTreeMap::new(), next: 0 }
    }

    /// Keeps a packet; returns how many others expired or were evicted without being taken.
    pub(crate) fn keep(
        &mut self,
        now: Timestamp,
        (from, number): (Peer, u64),
        source: Source<'_>,
    ) -> usize {
        let Self { shares, packets, next } = self;
        let (owner, bytes) = (Tenant(from.0), source.payload.len() as u64);
        let mut gone = 0;
        let mut forget = |place: KeptPacket| {
            gone += usize::from(packets.remove(&place.key).is_some());
            place.bytes
        };
        shares.expire_of(owner, now, &mut forget);
        shares.make_room(now, (1, bytes), &mut forget);
        let key = (source.packet.flow, *next);
        *next += 1;
        shares.add(now, owner, KeptPacket { key, bytes }, bytes);
        let Source { packet, service, class, payload } = source;
        let payload = payload.to_vec();
        packets
            .insert(key, EarlyPacket { came: now, from, number, packet, service, class, payload });
        gone
    }

    /// Takes the packets of a flow that are not too old, in order of arrival.
    pub(crate) fn take(&mut self, now: Timestamp, flow: FlowNumber) -> Vec<EarlyPacket> {
        let of_flow = self.packets.range((flow, 0)..=(flow, u64::MAX));
        let keys: Vec<(FlowNumber, u64)> = of_flow.map(|(key, _)| *key).collect();
        let removed = keys.into_iter().filter_map(|key| self.packets.remove(&key));
        removed.filter(|it| now.since(it.came) <= AGE).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn keep(early: &mut Early, now: Timestamp, from: u32, (flow, sequence): (u64, u64)) -> usize {
        let packet = PacketId { flow: FlowNumber(flow), sequence };
        let (service, class) = (Service::Caching, Class::Normal);
        let source = Source { packet, service, class, payload: &[7; 100] };
        early.keep(now, (Peer(from), sequence), source)
    }

    fn sequences(packets: &[EarlyPacket]) -> Vec<u64> {
        packets.iter().map(|it| it.source().packet.sequence).collect()
    }

    #[test]
    fn early_packets_are_removed_once_in_order() {
        let mut early = Early::new();
        for sequence in 0..3 {
            keep(&mut early, at(sequence), 1, (5, sequence));
            keep(&mut early, at(sequence), 1, (6, sequence));
        }
        assert_eq!(sequences(&early.take(at(10), FlowNumber(5))), [0, 1, 2]);
        assert!(early.take(at(10), FlowNumber(5)).is_empty());
        assert_eq!(sequences(&early.take(at(1201), FlowNumber(6))), [1, 2], "one is too old");
    }

    #[test]
    fn flooding_neighbour_evicts_own_packets() {
        let mut early = Early::new();
        keep(&mut early, at(0), 2, (9, 0));
        let gone: usize = (0..PACKETS as u64 * 2)
            .map(|sequence| keep(&mut early, at(1), 1, (sequence, sequence)))
            .sum();
        assert_eq!(gone, PACKETS + 1);
        assert_eq!(early.packets.len(), PACKETS);
        assert_eq!(sequences(&early.take(at(1), FlowNumber(9))), [0]);
        // Packets that nobody takes expire when the same neighbour sends the next.
        assert_eq!(keep(&mut early, at(2000), 1, (1, 0)), PACKETS - 1);
    }
}
