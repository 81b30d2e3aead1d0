//! Blocks whose repair packets are kept, and which of them hold a packet.

use std::collections::{BTreeMap, VecDeque};

use tradewind_fec::{Decoder, Members};
use tradewind_units::{Bytes, Duration, Timestamp};

use crate::event::DropReason;
use crate::id::{PacketId, Peer};
use crate::message::{Repair, Scope};

/// How many blocks may be kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepBlocks {
    /// Longest.
    pub age: Duration,
    /// Most bytes of repair packets.
    pub bytes: Bytes,
    /// Most blocks.
    pub blocks: usize,
}

/// A block: who made it, and its number there.
pub(super) type BlockKey = (Peer, u64);

/// A block with the repair packets that have come.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) scope: Scope,
    pub(super) columns: Members,
    /// In the order of the columns.
    pub(super) packets: Vec<PacketId>,
    pub(super) rows: Vec<Option<Vec<u8>>>,
    /// Columns whose receivers ask for them.
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
    /// Repair packets that have come.
    pub(super) fn rows_here(&self) -> usize {
        self.rows.iter().flatten().count()
    }

    /// The column of a packet.
    pub(super) fn column_of(&self, packet: PacketId) -> Option<usize> {
        let place = self.packets.iter().position(|member| *member == packet)?;
        self.columns.iter().nth(place)
    }

    /// Columns with their packets.
    pub(super) fn members(&self) -> impl Iterator<Item = (usize, PacketId)> + '_ {
        self.columns.iter().zip(self.packets.iter().copied())
    }

    fn bytes(&self) -> u64 {
        self.rows.iter().flatten().map(|row| row.len() as u64).sum()
    }
}

/// `set` and one column more.
pub(super) fn with(set: Members, column: usize) -> Members {
    Members::from_bits(set.bits() | 1 << column)
}

/// The blocks that hold a packet: at most one of each scope is remembered, the latest.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cover {
    pub(super) cross_stream: Option<BlockKey>,
    pub(super) in_stream: Option<BlockKey>,
}

/// All blocks, first in, first out.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    keep: KeepBlocks,
    bytes: u64,
    blocks: BTreeMap<BlockKey, Block>,
    order: VecDeque<(Timestamp, BlockKey)>,
    cover: BTreeMap<PacketId, Cover>,
    /// Recoveries of blocks that had to go; taken by [`Blocks::expire`].
    ended: Vec<u64>,
}

impl Blocks {
    pub(super) fn new(keep: KeepBlocks) -> Self {
        Self {
            keep,
            bytes: 0,
            blocks: BTreeMap::new(),
            order: VecDeque::new(),
            cover: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of repair packets.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn covering(&self, packet: PacketId) -> Option<Cover> {
        self.cover.get(&packet).copied()
    }

    pub(super) fn get_mut(&mut self, key: BlockKey) -> Option<&mut Block> {
        self.blocks.get_mut(&key)
    }

    /// A packet is waited for no more.
    pub(super) fn forget_wanted(&mut self, packet: PacketId) {
        let key = self.covering(packet).and_then(|cover| cover.cross_stream);
        let Some(block) = key.and_then(|key| self.blocks.get_mut(&key)) else { return };
        if let Some(column) = block.column_of(packet) {
            block.wanted = Members::from_bits(block.wanted.bits() & !(1 << column));
        }
    }

    /// Keeps a repair packet.
    pub(super) fn insert(
        &mut self,
        now: Timestamp,
        key: BlockKey,
        repair: &Repair<'_>,
    ) -> Result<(), DropReason> {
        let bytes = repair.symbol.len() as u64;
        if bytes > self.keep.bytes.as_u64() || self.keep.blocks == 0 {
            return Err(DropReason::TableFull);
        }
        match self.blocks.get_mut(&key) {
            Some(block) => add_row(block, repair)?,
            None => self.open(now, key, repair),
        }
        self.bytes += bytes;
        while self.bytes > self.keep.bytes.as_u64() || self.blocks.len() > self.keep.blocks {
            self.pop();
        }
        Ok(())
    }

    fn open(&mut self, now: Timestamp, key: BlockKey, repair: &Repair<'_>) {
        let mut rows = vec![None; usize::from(repair.rows)];
        rows[usize::from(repair.row)] = Some(repair.symbol.to_vec());
        let block = Block {
            scope: repair.scope,
            columns: repair.members.columns(),
            packets: repair.members.packets().collect(),
            rows,
            wanted: Members::NONE,
            recovery: None,
        };
        for packet in &block.packets {
            let cover = self.cover.entry(*packet).or_default();
            match block.scope {
                Scope::CrossStream => cover.cross_stream = Some(key),
                Scope::InStream => cover.in_stream = Some(key),
            }
        }
        self.blocks.insert(key, block);
        self.order.push_back((now, key));
    }

    /// Lets go what is too old; the recoveries that end with it.
    pub(super) fn expire(&mut self, now: Timestamp) -> Vec<u64> {
        while self.order.front().is_some_and(|(at, _)| now.since(*at) > self.keep.age) {
            self.pop();
        }
        std::mem::take(&mut self.ended)
    }

    fn pop(&mut self) {
        let Some((_, key)) = self.order.pop_front() else { return };
        let Some(block) = self.blocks.remove(&key) else { return };
        self.bytes -= block.bytes();
        self.ended.extend(block.recovery.map(|recovery| recovery.number));
        for packet in block.packets {
            let Some(cover) = self.cover.get_mut(&packet) else { continue };
            for held in [&mut cover.cross_stream, &mut cover.in_stream] {
                if *held == Some(key) {
                    *held = None;
                }
            }
            if cover.cross_stream.is_none() && cover.in_stream.is_none() {
                self.cover.remove(&packet);
            }
        }
    }
}

/// Another repair packet of a known block, which must agree with the first.
fn add_row(block: &mut Block, repair: &Repair<'_>) -> Result<(), DropReason> {
    let length = block.rows.iter().flatten().next().map(Vec::len);
    let agrees = block.scope == repair.scope
        && block.rows.len() == usize::from(repair.rows)
        && block.columns == repair.members.columns()
        && block.packets.iter().copied().eq(repair.members.packets())
        && length.is_none_or(|length| length == repair.symbol.len());
    if !agrees {
        return Err(DropReason::Contradiction);
    }
    let row = usize::from(repair.row);
    if block.rows[row].is_some() {
        return Err(DropReason::Duplicate);
    }
    if let Some(recovery) = &mut block.recovery {
        recovery.decoder.add_repair(row, repair.symbol).map_err(|_| DropReason::Contradiction)?;
    }
    block.rows[row] = Some(repair.symbol.to_vec());
    Ok(())
}
