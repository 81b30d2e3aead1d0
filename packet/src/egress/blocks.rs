//! Blocks whose repair packets are kept, and which of them hold a packet. The memory of a block that goes is taken by the next.

use std::collections::VecDeque;

use tradewind_fec::{Decoder, MOST_REPAIRS, Members};
use tradewind_units::{Bytes, Duration, Timestamp};

use crate::event::DropReason;
use crate::id::{FlowNumber, PacketId, Peer};
use crate::message::{Repair, Scope};
use crate::numbered::Numbered;

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
    /// Repair packets that it has in all.
    pub(super) rows: u8,
    /// Those that have come, by row; what is in the others' places is of blocks before.
    symbols: [Vec<u8>; MOST_REPAIRS],
    /// A bit for each row that has come.
    here: u8,
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
    /// One to be opened.
    const fn empty() -> Self {
        Self {
            scope: Scope::CrossStream,
            columns: Members::NONE,
            packets: Vec::new(),
            rows: 0,
            symbols: [const { Vec::new() }; MOST_REPAIRS],
            here: 0,
            wanted: Members::NONE,
            recovery: None,
        }
    }

    /// Begins anew, without repair packets.
    fn open(&mut self, repair: &Repair<'_>) {
        self.scope = repair.scope;
        self.columns = repair.members.columns();
        self.packets.clear();
        self.packets.extend(repair.members.packets());
        self.rows = repair.rows;
        self.here = 0;
        self.wanted = Members::NONE;
        self.recovery = None;
    }

    /// Repair packets that have come.
    pub(super) fn rows_here(&self) -> usize {
        self.here.count_ones() as usize
    }

    /// The same with their rows, in the order of these.
    pub(super) fn symbols(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let all = self.symbols.iter().enumerate();
        all.filter(|(row, _)| self.here >> row & 1 == 1).map(|(row, symbol)| (row, &symbol[..]))
    }

    /// Keeps a repair packet; by how many bytes more room is taken.
    fn keep(&mut self, row: usize, symbol: &[u8]) -> usize {
        self.here |= 1 << row;
        let before = self.symbols[row].capacity();
        self.symbols[row].clear();
        self.symbols[row].extend_from_slice(symbol);
        self.symbols[row].capacity() - before
    }

    /// Gives the room of repair packets back; how much that was.
    fn give_back(&mut self) -> usize {
        let all = std::mem::replace(&mut self.symbols, [const { Vec::new() }; MOST_REPAIRS]);
        all.iter().map(Vec::capacity).sum()
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
        self.symbols().map(|(_, symbol)| symbol.len() as u64).sum()
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

impl Cover {
    fn by(&mut self, scope: Scope) -> &mut Option<BlockKey> {
        match scope {
            Scope::CrossStream => &mut self.cross_stream,
            Scope::InStream => &mut self.in_stream,
        }
    }
}

/// All blocks, first in, first out.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    keep: KeepBlocks,
    bytes: u64,
    /// Room for repair packets, those of blocks that have gone included.
    room: usize,
    blocks: Vec<Block>,
    /// Places of `blocks` that are to be taken.
    free: Vec<usize>,
    /// The places of blocks.
    index: Numbered<Peer, usize>,
    order: VecDeque<(Timestamp, BlockKey)>,
    cover: Numbered<FlowNumber, Cover>,
    /// Recoveries of blocks that had to go; taken by [`Blocks::expire`].
    ended: Vec<u64>,
}

impl Blocks {
    pub(super) fn new(keep: KeepBlocks) -> Self {
        Self {
            keep,
            bytes: 0,
            room: 0,
            blocks: Vec::new(),
            free: Vec::new(),
            index: Numbered::default(),
            order: VecDeque::new(),
            cover: Numbered::default(),
            ended: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Bytes of repair packets.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn covering(&self, packet: PacketId) -> Option<Cover> {
        self.cover.get(packet.flow, packet.sequence).copied()
    }

    pub(super) fn get_mut(&mut self, key: BlockKey) -> Option<&mut Block> {
        let place = *self.index.get(key.0, key.1)?;
        self.blocks.get_mut(place)
    }

    /// A packet is waited for no more.
    pub(super) fn forget_wanted(&mut self, packet: PacketId) {
        let key = self.covering(packet).and_then(|cover| cover.cross_stream);
        let Some(block) = key.and_then(|key| self.get_mut(key)) else { return };
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
        self.room += match self.get_mut(key) {
            Some(block) => add_row(block, repair)?,
            None => self.open(now, key, repair),
        };
        self.bytes += bytes;
        while self.bytes > self.keep.bytes.as_u64() || self.order.len() > self.keep.blocks {
            self.pop();
        }
        Ok(())
    }

    fn open(&mut self, now: Timestamp, key: BlockKey, repair: &Repair<'_>) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(Block::empty());
            self.blocks.len() - 1
        });
        let block = &mut self.blocks[place];
        block.open(repair);
        let room = block.keep(usize::from(repair.row), repair.symbol);
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
        self.order.push_back((now, key));
        room
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
        let Some(place) = self.index.remove(key.0, key.1) else { return };
        self.free.push(place);
        let block = &mut self.blocks[place];
        self.bytes -= block.bytes();
        if self.room as u64 > 2 * self.keep.bytes.as_u64() {
            self.room -= block.give_back();
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
    }
}

/// Another repair packet of a known block, which must agree with the first; how much more room it takes.
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
