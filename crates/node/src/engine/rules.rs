//! Changes of rules and grants while the node runs: whatever they no longer allow ends at once.

use std::sync::Arc;

use tradewind_grant::Hop;
use tradewind_packet::session::{Now, PeerId};

use super::conversations::Inbound;
use super::routes::Route;
use super::tunnel::whole_packets;
use super::{Engine, identities, trust};
use crate::config::NodeConfig;
use crate::record::Outcome;

impl Engine {
    /// Applies the rules, the identities and the grant of `config` from now on; its other settings
    /// are those already in force.
    pub(super) fn set_rules(&mut self, now: Now, config: Arc<NodeConfig>) {
        self.context.config = config;
        self.context.access.set_policy(self.context.config.known_policy());
        self.forwarding.verifier().set_identities(&identities(&self.context.config));
        self.context.sessions.set_identities(identities(&self.context.config));
        self.rendezvous.set_identities(identities(&self.context.config));
        let known: Vec<Hop> = self.routes.values().flat_map(Route::hops).copied().collect();
        self.know_neighbours(&known);
        self.context.access.add_relays(self.neighbours.members.addresses());
        self.context.trust = Arc::new(trust(&self.context.config));
        self.forwarding.verifier().set_trust(Arc::clone(&self.context.trust));
        self.context
            .sessions
            .set_trust(Arc::clone(&self.context.trust), self.context.config.neighbours.clone());
        if let Some(grant) = &self.context.config.grant
            && self.routes.set_grant(grant)
        {
            self.context.sessions.set_shown(now, grant);
            self.rendezvous.deposit_under_grant(&self.context);
        }
        // Sessions that have ended take their paths and conversations along.
        self.dispatch(now);
        let paths = self.forwarding.drop_refused(&self.context);
        let conversations = self.drop_refused_conversations(now, |_| true);
        self.rendezvous.judge_senders_again(&self.context, now);
        if paths + conversations > 0 {
            tracing::info!(paths, conversations, "packets: ended, since rules allow them no more");
        }
    }

    /// Forbids delivery of packets to the addresses of these relays and remote endpoints.
    pub(super) fn know_neighbours(&mut self, hops: &[Hop]) {
        self.context.access.add_relays(hops.iter().map(|hop| hop.address));
    }

    /// Ends the conversations with some remote endpoints that the rules no longer allow; returns
    /// how many.
    pub(super) fn drop_refused_conversations(
        &mut self,
        now: Now,
        is_of: impl Fn(PeerId) -> bool,
    ) -> usize {
        let is_refused = |id: &u32| {
            let inbound = self.inbound.get(*id);
            inbound.is_some_and(|inbound| is_of(inbound.remote) && !self.may_go_on(inbound))
        };
        let refused: Vec<u32> = self.inbound.ids().filter(is_refused).collect();
        refused.iter().for_each(|id| self.release(now, *id, Outcome::Revoked));
        refused.len()
    }

    /// Returns whether a conversation may still end where it does.
    pub(super) fn may_go_on(&self, inbound: &Inbound) -> bool {
        let to = inbound.to();
        let is_allowed = match whole_packets(inbound.preserved_source, to) {
            Some(from) => self.may_put_out(inbound.remote, from, to.ip()),
            None => self.may_deliver(inbound.remote, to),
        };
        is_allowed.is_ok() && self.may_come_from(inbound.remote, inbound.preserved_source, to)
    }
}

#[cfg(test)]
mod tests;
