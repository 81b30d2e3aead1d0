//! Errors of encoding and decoding a block.

use crate::code::{MAX_REPAIRS, MAX_SOURCES};
use crate::symbol::MAX_PACKET_BYTES;

/// The reason why a packet was refused, or why a block cannot be solved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FecError {
    /// No such column.
    #[error("column {0} of a block: there are {MAX_SOURCES}, from 0")]
    Column(usize),
    /// No such repair packet.
    #[error("repair packet {0}: a block has at most {MAX_REPAIRS}, from 0")]
    Repair(usize),
    /// A block without repair packets, or with too many.
    #[error("{0} repair packets: 1 to {MAX_REPAIRS} are possible")]
    Repairs(usize),
    /// The column already holds a packet, or never was part of the block.
    #[error("column {0} is not free in this block")]
    ColumnInUse(usize),
    /// The packet is too long for its length field.
    #[error("a packet of {0} bytes: {MAX_PACKET_BYTES} at most")]
    TooLong(usize),
    /// A repair packet whose length differs from the others', or that is too short for the block's
    /// packets.
    #[error("a repair packet of {found} bytes in a block whose others need {needed}")]
    Length {
        /// Bytes of the repair packet.
        found: usize,
        /// Required length: of the other repair packets, or the least for the block's packets.
        needed: usize,
    },
    /// More packets are missing than repair packets have arrived.
    #[error("{missing} packets are missing, and {repairs} repair packets have arrived")]
    TooFew {
        /// Packets of the block that have not arrived.
        missing: usize,
        /// Repair packets that have arrived.
        repairs: usize,
    },
    /// The solution is not a valid packet: some packet that was added is corrupt or belongs to
    /// another block.
    #[error("the packets and repair packets of this block contradict each other")]
    Contradiction,
}
