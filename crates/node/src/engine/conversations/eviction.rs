//! Eviction of conversations at their limit: the one with the longest silence goes, so that active
//! ones stay however many others begin.
//!
//! At the node where conversations begin, it is chosen from all of them. At the one where they end,
//! each with a socket, it is chosen from the gateway that has most of them, and the gateway is
//! notified: its next datagram introduces the conversation again.

use std::collections::{BTreeMap, VecDeque};

use tradewind_grant::PublicIdentity;
use tradewind_packet::message::Message;
use tradewind_packet::session::{Now, PeerId};

use super::{Inbound, MOST, Outbound};
use crate::counts::add;
use crate::engine::Engine;
use crate::engine::routes::Route;
use crate::record::Outcome;

/// Evicted conversations, the newest last, up to a limit: the notification may be lost.
#[derive(Debug, Default)]
pub(in crate::engine) struct Released(VecDeque<(PeerId, u32)>);

impl Released {
    fn add(&mut self, remote: PeerId, conversation: u32) {
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back((remote, conversation));
    }
}

impl Engine {
    /// Removes the conversation with the longest silence, if there is no room for another one that
    /// begins here. The caller updates its route once the new one exists, which may have the same
    /// destination.
    pub(super) fn evict_outbound(&mut self) -> Option<(u32, Outbound)> {
        if self.outbound.len() < MOST {
            return None;
        }
        let all = self.outbound.ids().zip(self.outbound.values());
        let id = all.min_by_key(|(_, outbound)| outbound.used).map(|(id, _)| id)?;
        add(&self.context.counts.conversations_evicted, 1);
        self.outbound.remove(id).map(|outbound| (id, outbound))
    }

    /// Cleans up after a conversation that began here and is over.
    pub(super) fn forget_outbound(&mut self, id: u32, outbound: &mut Outbound, why: Outcome) {
        if let Some(tally) = outbound.tally.take() {
            self.journal_outbound(outbound, &tally, why);
        }
        if let Some(route) = self.routes.get_mut(outbound.route) {
            route.sources.remove(&(outbound.source, outbound.to));
            route.group().into_iter().for_each(|group| group.forget(id));
            route.leave(outbound.to);
        }
    }

    /// Evicts a conversation that ends here, if there is no room for another one.
    pub(super) fn evict_inbound(&mut self, now: Now) {
        if self.inbound.len() < MOST {
            return;
        }
        let gateway = |inbound: &Inbound| self.context.sessions.identity_of(inbound.remote);
        let mut counts: BTreeMap<Option<PublicIdentity>, usize> = BTreeMap::new();
        for inbound in self.inbound.values() {
            *counts.entry(gateway(inbound)).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(gateway, _)| gateway);
        let all = self.inbound.ids().zip(self.inbound.values());
        let theirs = all.filter(|(_, inbound)| Some(gateway(inbound)) == most);
        let oldest = theirs.min_by_key(|(_, inbound)| inbound.used);
        if let Some(id) = oldest.map(|(id, _)| id) {
            add(&self.context.counts.conversations_evicted, 1);
            self.release(now, id, Outcome::Evicted);
        }
    }

    /// Ends a conversation here and notifies the gateway that began it, whose next datagram begins
    /// it anew.
    pub(in crate::engine) fn release(&mut self, now: Now, id: u32, why: Outcome) {
        let Some(inbound) = self.inbound.get(id) else { return };
        let (remote, conversation) = (inbound.remote, inbound.conversation);
        self.drop_inbound(now, id, why);
        self.released.add(remote, conversation);
        self.context.send_message(remote, &Message::Unknown { conversation });
    }

    /// Notifies a gateway that continues an evicted conversation: the first notification was lost.
    pub(in crate::engine) fn notify_if_released(&mut self, remote: PeerId, conversation: u32) {
        if self.released.0.contains(&(remote, conversation)) {
            self.context.send_message(remote, &Message::Unknown { conversation });
        }
    }
}

impl Route {
    /// Stops taking replies from `to` once no conversation with it is left: one is over, or has not
    /// begun.
    pub(super) fn leave(&mut self, to: std::net::SocketAddr) {
        if !self.sources.keys().any(|(_, known)| *known == to) {
            self.local.end(to);
        }
    }
}
