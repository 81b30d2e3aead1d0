//! A group at its members: the keys that its sender announces, and packets that are opened with
//! them.

use tradewind_packet::group::MemberKeys;
use tradewind_packet::id::{FlowNumber, PacketId};
use tradewind_packet::message::Message;
use tradewind_packet::session::{Now, PeerId};

use super::super::Engine;
use crate::counts::add;

/// An incoming flow of a group.
#[derive(Debug)]
pub(in super::super) struct Joined {
    remote: PeerId,
    keys: MemberKeys,
}

impl Joined {
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

impl Engine {
    /// Handles a message between a group's sender and its members.
    pub(in super::super) fn take_group_message(
        &mut self,
        now: Now,
        peer: PeerId,
        message: &Message<'_>,
    ) {
        match *message {
            // The flow is known once a packet of it has come.
            Message::GroupKey { flow, epoch, key }
                if self.services.ends.remote_of(flow) == Some(peer) =>
            {
                let fresh = || Joined { remote: peer, keys: MemberKeys::default() };
                let joined = self.services.joined.entry(flow).or_insert_with(fresh);
                joined.keys.learn(flow, epoch, key);
                let is_served = self.services.ends.is_served(flow);
                self.send_to_remote(now, peer, &Message::GroupKnown { flow, epoch, is_served });
            }
            Message::GroupKnown { flow, epoch, is_served } if self.is_member(flow, peer) => {
                if let Some(group) = self.group_of(flow) {
                    let member_state = group.member_states.entry(peer).or_default();
                    member_state.epoch = Some(epoch);
                    member_state.served = is_served.then_some(now.steady);
                }
            }
            _ => add(&self.context.counts.dropped, 1),
        }
    }

    fn is_member(&self, flow: FlowNumber, peer: PeerId) -> bool {
        let head = self.groups.get(&flow);
        head.is_some_and(|head| self.leading_to(*head, peer).is_some())
    }
}
