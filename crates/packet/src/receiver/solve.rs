//! Solves blocks of a flow with its own packets: the egress relay sends a repair packet, the rest
//! has come over the Internet.

use std::collections::VecDeque;

use tradewind_fec::Decoder;
use tradewind_units::Timestamp;

use crate::event::DropReason;
use crate::id::PacketId;
use crate::message::Repair;
use crate::store::Store;

/// The most blocks of a flow that wait for more of their packets; beyond that the oldest is
/// dropped. Chosen: those of half a second at 100 packets a second.
const MAX_BLOCKS: usize = 16;

/// Blocks of one flow that are not solved yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Blocks {
    open: VecDeque<Block>,
}

#[derive(Debug, Clone)]
struct Block {
    number: u64,
    packets: Vec<(usize, PacketId)>,
    decoder: Decoder,
}

impl Blocks {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Adds a packet of the flow to the blocks that hold it; packets of solved blocks go to
    /// `solved`.
    pub(super) fn add_source(
        &mut self,
        packet: PacketId,
        payload: &[u8],
        solved: &mut Vec<(PacketId, Vec<u8>)>,
    ) {
        if self.open.is_empty() {
            return;
        }
        self.open.retain_mut(|block| {
            let Some((column, _)) = block.packets.iter().find(|(_, member)| *member == packet)
            else {
                return true;
            };
            // A packet that contradicts the block is genuine all the same: then the repair packet
            // is wrong.
            block.decoder.add_source(*column, payload).is_ok() && !block.solve(solved)
        });
    }

    /// Adds a repair packet, and the packets of its block that are in `kept`; the packets that this
    /// solves go to `solved`.
    pub(super) fn add_repair(
        &mut self,
        now: Timestamp,
        repair: &Repair<'_>,
        kept: &Store,
        solved: &mut Vec<(PacketId, Vec<u8>)>,
    ) -> Result<(), DropReason> {
        let row = usize::from(repair.row);
        if let Some(place) = self.open.iter().position(|b| b.number == repair.block) {
            let block = &mut self.open[place];
            if !block.packets.iter().copied().eq(repair.members.iter()) {
                return Err(DropReason::Contradiction);
            }
            match block.decoder.add_repair(row, repair.symbol) {
                Ok(true) => {}
                Ok(false) => return Err(DropReason::Duplicate),
                Err(_) => return Err(DropReason::Contradiction),
            }
            if block.solve(solved) {
                self.open.remove(place);
            }
            return Ok(());
        }
        let mut decoder = Decoder::new(repair.members.columns(), usize::from(repair.rows))
            .map_err(|_| DropReason::Malformed)?;
        decoder.add_repair(row, repair.symbol).map_err(|_| DropReason::Malformed)?;
        for (column, packet) in repair.members.iter() {
            if let Some(payload) = kept.get(now, packet) {
                decoder.add_source(column, payload).map_err(|_| DropReason::Contradiction)?;
            }
        }
        let block =
            Block { number: repair.block, packets: repair.members.iter().collect(), decoder };
        if !block.solve(solved) {
            if self.open.len() >= MAX_BLOCKS {
                self.open.pop_front();
            }
            self.open.push_back(block);
        }
        Ok(())
    }
}

impl Block {
    /// Returns whether the block is done: it is solved, or cannot be.
    fn solve(&self, solved: &mut Vec<(PacketId, Vec<u8>)>) -> bool {
        if !self.decoder.is_solvable() {
            return false;
        }
        for (column, payload) in self.decoder.recover().unwrap_or_default() {
            let member = self.packets.iter().find(|(place, _)| *place == column);
            solved.extend(member.map(|(_, packet)| (*packet, payload)));
        }
        true
    }
}
