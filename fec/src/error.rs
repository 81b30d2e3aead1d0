//! What can be wrong with a block.

use crate::code::{MOST_REPAIRS, MOST_SOURCES};
use crate::symbol::MOST_PACKET_BYTES;

/// Why a packet was not taken, or a block cannot be solved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FecError {
    /// No such column.
    #[error("column {0} of a block: there are {MOST_SOURCES}, from 0")]
    Column(usize),
    /// No such repair packet.
    #[error("repair packet {0}: a block has at most {MOST_REPAIRS}, from 0")]
    Repair(usize),
    /// A block without repair packets, or with too many.
    #[error("{0} repair packets: 1 to {MOST_REPAIRS} are possible")]
    Repairs(usize),
    /// The column is taken, or was never part of the block.
    #[error("column {0} is not free in this block")]
    Taken(usize),
    /// The packet is longer than its length field can tell.
    #[error("a packet of {0} bytes: {MOST_PACKET_BYTES} at most")]
    TooLong(usize),
    /// Repair packets of one block have one length, and no packet of the block is longer.
    #[error("a repair packet of {found} bytes in a block whose others need {needed}")]
    Length {
        /// Bytes of the repair packet.
        found: usize,
        /// Bytes that it should have, or at least have.
        needed: usize,
    },
    /// More packets are missing than repair packets have arrived.
    #[error("{missing} packets are missing, and {repairs} repair packets have arrived")]
    TooFew {
        /// Packets of the block that have not arrived.
        missing: usize,
        /// Repair packets that have.
        repairs: usize,
    },
    /// What was solved is no packet: something that was added does not belong to this block, or was altered.
    #[error("the packets and repair packets of this block contradict each other")]
    Contradiction,
}
