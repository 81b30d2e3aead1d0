//! A group at its members: the keys that its sender announces, and packets that are opened with
//! them.

use tradewind_packet::group::{MemberKeys, Secret};
use tradewind_packet::id::{FlowNumber, PacketId};
use tradewind_packet::session::PeerId;

/// An incoming flow of a group.
#[derive(Debug)]
pub(in super::super) struct Joined {
    remote: PeerId,
    keys: MemberKeys,
}

impl Joined {
    pub(in super::super) fn new(remote: PeerId) -> Self {
        Self { remote, keys: MemberKeys::default() }
    }

    /// Learns a key that the sender announces.
    pub(in super::super) fn learn(&mut self, flow: FlowNumber, epoch: u8, key: Secret<'_>) {
        self.keys.learn(flow, epoch, key);
    }

    pub(in super::super) fn is_of(&self, remote: PeerId) -> bool {
        self.remote == remote
    }

    /// Opens a packet from relays; returns its sender and content.
    pub(in super::super) fn open<'a>(
        &self,
        packet: PacketId,
        sealed: &[u8],
        buffer: &'a mut Vec<u8>,
    ) -> Option<(PeerId, &'a [u8])> {
        Some((self.remote, self.keys.open(packet, sealed, buffer)?))
    }
}
