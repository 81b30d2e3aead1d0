//! The packets of a block, as a repair packet lists them.

use tradewind_fec::Members;

use crate::id::{FlowNumber, PacketId};

/// Bytes of each entry: flow and sequence.
pub(crate) const MEMBER_BYTES: usize = 16;

/// A block's packets in the order of their columns; borrowed from the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberList<'a> {
    columns: Members,
    bytes: &'a [u8],
}

impl<'a> MemberList<'a> {
    /// Returns a list of `bytes`, which must hold one entry for each column; the parser checks
    /// that.
    pub(crate) fn new(columns: Members, bytes: &'a [u8]) -> Self {
        debug_assert_eq!(bytes.len(), columns.len() * MEMBER_BYTES);
        Self { columns, bytes }
    }

    /// Writes a list's entries, given the packets in the order of their columns.
    pub fn write(packets: impl Iterator<Item = PacketId>, out: &mut Vec<u8>) {
        for packet in packets {
            out.extend_from_slice(&packet.flow.0.to_be_bytes());
            out.extend_from_slice(&packet.sequence.to_be_bytes());
        }
    }

    /// Returns a list of entries that [`MemberList::write`] wrote; `None` when their number is not
    /// that of the columns.
    #[must_use]
    pub fn of(columns: Members, entries: &'a [u8]) -> Option<Self> {
        (entries.len() == columns.len() * MEMBER_BYTES).then_some(Self { columns, bytes: entries })
    }

    /// Returns the columns in use.
    #[must_use]
    pub fn columns(&self) -> Members {
        self.columns
    }

    pub(crate) fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns columns and packets, in the columns' order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, PacketId)> + use<'a> {
        self.columns.iter().zip(self.packets())
    }

    /// Returns the packets alone.
    pub fn packets(&self) -> impl Iterator<Item = PacketId> + Clone + use<'a> {
        self.bytes.chunks_exact(MEMBER_BYTES).map(|entry| {
            let number = |at: usize| {
                u64::from_be_bytes(entry[at..at + 8].try_into().expect("8 of 16 bytes"))
            };
            PacketId { flow: FlowNumber(number(0)), sequence: number(8) }
        })
    }
}
