//! Eviction of conversations at their limit: the one with the longest silence goes, so that active
//! ones stay however many others begin.
//!
//! At the node where conversations begin, it is chosen from all of them. At the one where they end,
//! each with a socket, it is chosen from the gateway that has most of them, and the gateway is
//! notified: its next datagram introduces the conversation again.

use std::collections::{BTreeMap, VecDeque};

use tradewind_grant::PublicIdentity;
use tradewind_packet::message::Message;
use tradewind_packet::session::PeerId;

use super::{Conversations, Inbound, MAX};
use crate::counts::add;
use crate::engine::context::Context;

/// Evicted conversations, the newest last, up to a limit: the notification may be lost.
#[derive(Debug, Default)]
pub(in crate::engine) struct Released(VecDeque<(PeerId, u32)>);

impl Released {
    fn add(&mut self, remote: PeerId, conversation: u32) {
        if self.0.len() >= MAX {
            self.0.pop_front();
        }
        self.0.push_back((remote, conversation));
    }
}

impl Conversations {
    /// Records that a conversation was ended here, in case that its notification is lost.
    pub(in crate::engine) fn note_released(&mut self, remote: PeerId, conversation: u32) {
        self.released.add(remote, conversation);
    }

    /// Notifies a gateway that continues an evicted conversation: the first notification was lost.
    pub(in crate::engine) fn notify_if_released(
        &self,
        context: &mut Context,
        remote: PeerId,
        conversation: u32,
    ) {
        if self.released.0.contains(&(remote, conversation)) {
            context.send_message(remote, &Message::Unknown { conversation });
        }
    }

    /// Returns the conversation that ends here and has to go, if there is no room for another one.
    pub(in crate::engine) fn too_many(&self, context: &Context) -> Option<u32> {
        if self.inbound.len() < MAX {
            return None;
        }
        let gateway = |inbound: &Inbound| context.sessions.identity_of(inbound.remote);
        let mut counts: BTreeMap<Option<PublicIdentity>, usize> = BTreeMap::new();
        for inbound in self.inbound.values() {
            *counts.entry(gateway(inbound)).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(gateway, _)| gateway);
        let all = self.inbound.ids().zip(self.inbound.values());
        let theirs = all.filter(|(_, inbound)| Some(gateway(inbound)) == most);
        let oldest = theirs.min_by_key(|(_, inbound)| inbound.used);
        let (id, _) = oldest?;
        add(&context.counts.conversations_evicted, 1);
        Some(id)
    }
}
