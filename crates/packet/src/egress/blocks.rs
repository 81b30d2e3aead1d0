//! Blocks whose repair packets are kept, and an index of the blocks that hold a packet. Eviction is
//! by owner ([`shares`](crate::shares)), the tenant of a block's first packet. The memory of an
//! evicted block is reused by the next.

use tradewind_fec::{Decoder, MAX_REPAIRS, Members};
use tradewind_units::{Bytes, Duration, Timestamp};

use crate::event::DropReason;
use crate::id::{FlowNumber, PacketId, Peer, Tenant};
use crate::message::{Repair, Scope};
use crate::numbered::Numbered;
use crate::shares::{Bounds, Shares};

/// Limits of the kept blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepBlocks {
    /// Longest that a block is kept.
    pub age: Duration,
    /// Most bytes of repair packets.
    pub bytes: Bytes,
    /// Most blocks.
    pub blocks: usize,
}

/// A block: the ingress relay that made it, and its number there.
pub(super) type BlockKey = (Peer, u64);

/// A block with the repair packets that have arrived.
#[derive(Debug, Clone)]
pub(super) struct Block {
    owner: Tenant,
    pub(super) scope: Scope,
    pub(super) columns: Members,
    /// The packets in the order of the columns.
    pub(super) packets: Vec<PacketId>,
    /// The number of repair packets of the block.
    pub(super) rows: u8,
    /// The repair packets by row. The rows that have not arrived hold leftovers of earlier blocks.
    symbols: [Vec<u8>; MAX_REPAIRS],
    /// A bit for each row that has arrived.
    here: u8,
    /// Columns whose packets are requested by their receivers.
    pub(super) wanted: Members,
    pub(super) recovery: Option<Recovery>,
}

/// The attempt to solve a cross-stream block.
#[derive(Debug, Clone)]
pub(super) struct Recovery {
    pub(super) number: u64,
    pub(super) decoder: Decoder,
    /// Columns whose receivers were asked to lend them.
    pub(super) asked: Members,
    pub(super) deadline: Timestamp,
}

impl Block {
    /// Returns a block that is not open yet.
    const fn empty() -> Self {
        Self {
            owner: Tenant(0),
            scope: Scope::CrossStream,
            columns: Members::NONE,
            packets: Vec::new(),
            rows: 0,
            symbols: [const { Vec::new() }; MAX_REPAIRS],
            here: 0,
            wanted: Members::NONE,
            recovery: None,
        }
    }

    /// Opens the block anew, without repair packets.
    fn open(&mut self, owner: Tenant, repair: &Repair<'_>) {
        self.owner = owner;
        self.scope = repair.scope;
        self.columns = repair.members.columns();
        self.packets.clear();
        self.packets.extend(repair.members.packets());
        self.rows = repair.rows;
        self.here = 0;
        self.wanted = Members::NONE;
        self.recovery = None;
    }

    /// Returns how many repair packets have arrived.
    pub(super) fn rows_here(&self) -> usize {
        self.here.count_ones() as usize
    }

    /// Returns the repair packets that have arrived with their rows, in row order.
    pub(super) fn symbols(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let all = self.symbols.iter().enumerate();
        all.filter(|(row, _)| self.here >> row & 1 == 1).map(|(row, symbol)| (row, &symbol[..]))
    }

    /// Keeps a repair packet; returns by how many bytes the allocated memory grew.
    fn keep(&mut self, row: usize, symbol: &[u8]) -> usize {
        self.here |= 1 << row;
        let before = self.symbols[row].capacity();
        self.symbols[row].clear();
        self.symbols[row].extend_from_slice(symbol);
        self.symbols[row].capacity() - before
    }

    /// Frees the memory of repair packets; returns how much that was.
    fn give_back(&mut self) -> usize {
        let all = std::mem::replace(&mut self.symbols, [const { Vec::new() }; MAX_REPAIRS]);
        all.iter().map(Vec::capacity).sum()
    }

    /// Returns the column of a packet.
    pub(super) fn column_of(&self, packet: PacketId) -> Option<usize> {
        let place = self.packets.iter().position(|member| *member == packet)?;
        self.columns.iter().nth(place)
    }

    /// Returns the columns with their packets.
    pub(super) fn members(&self) -> impl Iterator<Item = (usize, PacketId)> + '_ {
        self.columns.iter().zip(self.packets.iter().copied())
    }

    fn bytes(&self) -> u64 {
        self.symbols().map(|(_, symbol)| symbol.len() as u64).sum()
    }
}

/// Returns `set` with one column added.
pub(super) fn with(set: Members, column: usize) -> Members {
    Members::from_bits(set.bits() | 1 << column)
}

/// The blocks that hold a packet: at most the latest of each scope is remembered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cover {
    pub(super) cross_stream: Option<BlockKey>,
    pub(super) in_stream: Option<BlockKey>,
}

impl Cover {
    fn by(&mut self, scope: Scope) -> &mut Option<BlockKey> {
        match scope {
            Scope::CrossStream => &mut self.cross_stream,
            Scope::InStream => &mut self.in_stream,
        }
    }
}

/// All blocks.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    shares: Shares<BlockKey>,
    known: Known,
}

/// The storage of blocks, and the indices over it.
#[derive(Debug, Clone, Default)]
struct Known {
    blocks: Vec<Block>,
    /// Free places of `blocks`.
    free: Vec<usize>,
    /// Memory allocated for repair packets, those of evicted blocks included, and the part of it
    /// that is never freed.
    capacity: usize,
    spare: u64,
    /// The places of blocks in `blocks`.
    index: Numbered<Peer, usize>,
    cover: Numbered<FlowNumber, Cover>,
    /// Recoveries of evicted blocks; taken by [`Blocks::expire`].
    ended: Vec<u64>,
}

impl Blocks {
    pub(super) fn new(keep: KeepBlocks) -> Self {
        let bytes = keep.bytes.as_u64();
        let shares = Shares::new(Bounds { age: keep.age, bytes, count: keep.blocks });
        Self { shares, known: Known { spare: 2 * bytes, ..Known::default() } }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.shares.len()
    }

    /// Returns the bytes of repair packets.
    pub(super) fn bytes(&self) -> u64 {
        self.shares.bytes()
    }

    pub(super) fn covering(&self, packet: PacketId) -> Option<Cover> {
        self.known.cover.get(packet.flow, packet.sequence).copied()
    }

    pub(super) fn get_mut(&mut self, key: BlockKey) -> Option<&mut Block> {
        self.known.get_mut(key)
    }

    /// Forgets that a packet is requested.
    pub(super) fn forget_wanted(&mut self, packet: PacketId) {
        let key = self.covering(packet).and_then(|cover| cover.cross_stream);
        let Some(block) = key.and_then(|key| self.get_mut(key)) else { return };
        if let Some(column) = block.column_of(packet) {
            block.wanted = Members::from_bits(block.wanted.bits() & !(1 << column));
        }
    }

    /// Keeps a repair packet of one of `owner`'s blocks.
    pub(super) fn insert(
        &mut self,
        now: Timestamp,
        owner: Tenant,
        key: BlockKey,
        repair: &Repair<'_>,
    ) -> Result<(), DropReason> {
        let Self { shares, known } = self;
        let bytes = repair.symbol.len() as u64;
        if !shares.may_hold(bytes) {
            return Err(DropReason::TableFull);
        }
        if let Some(block) = known.get_mut(key) {
            let (owner, capacity) = (block.owner, add_row(block, repair)?);
            known.capacity += capacity;
            shares.lengthen(owner, bytes);
            shares.make_room(now, (0, 0), |key| known.forget(key));
        } else {
            shares.make_room(now, (1, bytes), |key| known.forget(key));
            known.open(owner, key, repair);
            shares.add(now, owner, key, bytes);
        }
        Ok(())
    }

    /// Expires old blocks of the owners of the blocks that hold a packet, so that an expired block
    /// does not recover it.
    pub(super) fn expire_covering(&mut self, now: Timestamp, packet: PacketId) {
        let Self { shares, known } = self;
        let Some(cover) = known.cover.get(packet.flow, packet.sequence).copied() else { return };
        for key in [cover.cross_stream, cover.in_stream].into_iter().flatten() {
            if let Some(owner) = known.get_mut(key).map(|block| block.owner) {
                shares.expire_of(owner, now, |key| known.forget(key));
            }
        }
    }

    /// Expires old blocks; returns the recoveries that ended with evicted blocks since the last
    /// call.
    pub(super) fn expire(&mut self, now: Timestamp) -> Vec<u64> {
        let Self { shares, known } = self;
        shares.expire(now, |key| known.forget(key));
        std::mem::take(&mut known.ended)
    }
}

impl Known {
    fn get_mut(&mut self, key: BlockKey) -> Option<&mut Block> {
        let place = *self.index.get(key.0, key.1)?;
        self.blocks.get_mut(place)
    }

    fn open(&mut self, owner: Tenant, key: BlockKey, repair: &Repair<'_>) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(Block::empty());
            self.blocks.len() - 1
        });
        let block = &mut self.blocks[place];
        block.open(owner, repair);
        self.capacity += block.keep(usize::from(repair.row), repair.symbol);
        for packet in &block.packets {
            let (flow, sequence) = (packet.flow, packet.sequence);
            if self.cover.get(flow, sequence).is_none() {
                self.cover.insert(flow, sequence, Cover::default());
            }
            if let Some(cover) = self.cover.get_mut(flow, sequence) {
                *cover.by(block.scope) = Some(key);
            }
        }
        self.index.insert(key.0, key.1, place);
    }

    /// Forgets a block; returns the bytes of its repair packets.
    fn forget(&mut self, key: BlockKey) -> u64 {
        let Some(place) = self.index.remove(key.0, key.1) else { return 0 };
        self.free.push(place);
        let block = &mut self.blocks[place];
        let bytes = block.bytes();
        if self.capacity as u64 > self.spare {
            self.capacity -= block.give_back();
        }
        self.ended.extend(block.recovery.take().map(|recovery| recovery.number));
        for packet in &block.packets {
            let Some(cover) = self.cover.get_mut(packet.flow, packet.sequence) else { continue };
            let held = cover.by(block.scope);
            if *held == Some(key) {
                *held = None;
            }
            if cover.cross_stream.is_none() && cover.in_stream.is_none() {
                self.cover.remove(packet.flow, packet.sequence);
            }
        }
        bytes
    }
}

/// Adds a repair packet to a known block, with which it must agree; returns by how many bytes the
/// allocated memory grew.
fn add_row(block: &mut Block, repair: &Repair<'_>) -> Result<usize, DropReason> {
    let length = block.symbols().next().map(|(_, symbol)| symbol.len());
    let agrees = block.scope == repair.scope
        && block.rows == repair.rows
        && block.columns == repair.members.columns()
        && block.packets.iter().copied().eq(repair.members.packets())
        && length.is_none_or(|length| length == repair.symbol.len());
    if !agrees {
        return Err(DropReason::Contradiction);
    }
    let row = usize::from(repair.row);
    if block.symbols().any(|(known, _)| known == row) {
        return Err(DropReason::Duplicate);
    }
    if let Some(recovery) = &mut block.recovery {
        recovery.decoder.add_repair(row, repair.symbol).map_err(|_| DropReason::Contradiction)?;
    }
    Ok(block.keep(row, repair.symbol))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::MemberList;

    const AGE: Duration = Duration::from_millis(100);
    const OWNERS: u32 = 3;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    /// Inserts a repair packet of a block of two packets of its owner's flow.
    fn insert(blocks: &mut Blocks, now: u64, (owner, block, row): (u32, u64, u8)) -> bool {
        let flow = FlowNumber(owner.into());
        let packets = [0, 1].map(|place| PacketId { flow, sequence: 2 * block + place });
        let mut entries = Vec::new();
        MemberList::write(packets.into_iter(), &mut entries);
        let members = MemberList::of(Members::first(2), &entries).unwrap();
        let symbol = vec![row; 10 + block as usize % 7];
        let repair =
            Repair { scope: Scope::InStream, row, rows: 3, block, members, symbol: &symbol };
        blocks.insert(at(now), Tenant(owner), (Peer(owner), block), &repair).is_ok()
    }

    proptest! {
        #[test]
        fn block_counts_agree_with_contents(
            inserts in prop::collection::vec((0..OWNERS, 0..30_u64, 0..3_u8, 0..20_u64), 1..200),
        ) {
            let keep = KeepBlocks { age: AGE, bytes: Bytes::new(150), blocks: 8 };
            let (mut blocks, mut now) = (Blocks::new(keep), 0);
            for (owner, block, row, passed) in inserts {
                now += passed;
                insert(&mut blocks, now, (owner, block, row));
                if passed == 0 {
                    let (flow, sequence) = (FlowNumber(owner.into()), 2 * block);
                    blocks.expire_covering(at(now), PacketId { flow, sequence });
                }
                let keys = (0..OWNERS)
                    .flat_map(|owner| (0..30).map(move |block| (Peer(owner), block)));
                let stored: Vec<BlockKey> = keys.filter(|key| blocks.get_mut(*key).is_some())
                    .collect();
                let bytes = |key: &BlockKey| blocks.get_mut(*key).unwrap().bytes();
                let bytes: u64 = stored.iter().map(bytes).sum();
                prop_assert_eq!((blocks.len(), blocks.bytes()), (stored.len(), bytes));
                prop_assert!(stored.len() <= 8 && bytes <= 150);
                for (peer, block) in stored {
                    let packet = PacketId { flow: FlowNumber(peer.0.into()),
                        sequence: 2 * block + 1 };
                    prop_assert_eq!(blocks.covering(packet).unwrap().in_stream,
                        Some((peer, block)));
                }
            }
            blocks.expire(at(now + 101));
            prop_assert_eq!((blocks.len(), blocks.bytes(), blocks.is_empty()), (0, 0, true));
            for (owner, sequence) in (0..OWNERS)
                .flat_map(|owner| (0..60).map(move |at| (owner, at))) {
                let packet = PacketId { flow: FlowNumber(owner.into()), sequence };
                prop_assert!(blocks.covering(packet).is_none());
            }
        }
    }

    #[test]
    fn expired_blocks_recover_nothing() {
        let keep = KeepBlocks { age: AGE, bytes: Bytes::new(1000), blocks: 8 };
        let mut blocks = Blocks::new(keep);
        let packet = |owner: u64| PacketId { flow: FlowNumber(owner), sequence: 2 };
        assert!(insert(&mut blocks, 0, (1, 1, 0)) && insert(&mut blocks, 0, (2, 1, 0)));
        blocks.expire_covering(at(100), packet(1));
        assert!(blocks.covering(packet(1)).is_some());
        blocks.expire_covering(at(101), packet(1));
        assert!(blocks.covering(packet(1)).is_none());
        assert!(blocks.covering(packet(2)).is_some(), "others are not looked at");
    }
}
