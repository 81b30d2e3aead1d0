//! Periodic work for conversations: those that are over are dropped, and queued datagrams leave.

use super::*;

impl Engine {
    pub(in crate::engine) fn drop_inbound(&mut self, now: Now, id: u32, why: Outcome) {
        // Nothing is delivered once it is not allowed.
        if why != Outcome::Revoked {
            self.deliver_waiting(now, id);
        }
        self.record_inbound(id, why);
        if let Some(mut inbound) = self.inbound.remove(id) {
            inbound.local.flush(&self.context.counts);
            self.inbound_ids.remove(&(inbound.remote, inbound.conversation));
            self.fragments.remove(inbound.remote, inbound.conversation);
            if let Some(from) = inbound.preserved_source {
                self.by_preserved_source.remove(&(from, inbound.to));
            }
            self.ends_are_due |= inbound.end.is_some();
            self.forget_accepted(id, inbound.local);
        }
    }

    /// Drops conversations that are over. One is kept as long as its remote endpoint's session,
    /// however silent it is: what a server sends after an hour arrives, as it would without
    /// gateways. `eviction` bounds how many there are.
    pub(in crate::engine) fn maintain_conversations(&mut self, now: Now) {
        let is_idle = |used: Timestamp| now.steady.since(used) >= IDLE;
        let is_over = |outbound: &Outbound| is_idle(outbound.used) && !self.is_backed(outbound);
        let all = self.outbound.ids().zip(self.outbound.values());
        let over: Vec<u32> = all.filter(|(_, it)| is_over(it)).map(|(id, _)| id).collect();
        for id in over {
            if let Some(mut flow) = self.outbound.remove(id) {
                self.forget_outbound(id, &mut flow, Outcome::Idle);
            }
        }
        // Those of a gateway that is gone went with its session. The last datagrams may still be on
        // their way.
        let is_over = |it: &Inbound| it.is_over && is_idle(it.used);
        let all = self.inbound.ids().zip(self.inbound.values());
        let over: Vec<u32> = all.filter(|(_, it)| is_over(it)).map(|(id, _)| id).collect();
        over.into_iter().for_each(|id| self.drop_inbound(now, id, Outcome::Idle));
        self.record_silent(now);
        if std::mem::take(&mut self.ends_are_due) {
            let ids = self.inbound_ids.values();
            let inbound = ids.filter_map(|id| self.inbound.get(*id)?.end);
            let routes = self.routes.values().filter_map(|route| route.end);
            let used: BTreeSet<FlowNumber> = inbound.chain(routes).collect();
            self.services.forget_ends(|flow| used.contains(&flow));
            self.deliver_ready(now);
        }
    }

    /// Records conversations that have been silent for long, though they are kept: later datagrams
    /// begin another record.
    fn record_silent(&mut self, now: Now) {
        if self.context.journal.is_none() {
            return;
        }
        let is_silent =
            |used: Timestamp, tally: &Tally| tally.has_begun() && now.steady.since(used) >= IDLE;
        let outbound = self.outbound.ids().zip(self.outbound.values());
        let outbound = outbound.filter(|(_, it)| is_silent(it.used, &it.tally));
        let outbound: Vec<u32> = outbound.map(|(id, _)| id).collect();
        let inbound = self.inbound.ids().zip(self.inbound.values());
        let inbound = inbound.filter(|(_, it)| is_silent(it.used, &it.tally));
        let inbound: Vec<u32> = inbound.map(|(id, _)| id).collect();
        outbound.into_iter().for_each(|id| self.record_outbound(id, Outcome::Idle));
        inbound.into_iter().for_each(|id| self.record_inbound(id, Outcome::Idle));
    }

    /// Handles the other endpoint's message on the state of a conversation.
    pub(in crate::engine) fn note_state(&mut self, now: Now, peer: PeerId, message: Message<'_>) {
        match message {
            Message::Known { conversation } => self.note_known(peer, conversation, true),
            Message::Unknown { conversation } => self.note_known(peer, conversation, false),
            Message::Denied { conversation, reason } => {
                self.note_denied(now, peer, conversation, reason);
            }
            Message::Over { conversation } => {
                let id = self.inbound_ids.get(&(peer, conversation));
                if let Some(inbound) = id.and_then(|id| self.inbound.get_mut(*id)) {
                    inbound.is_over = true;
                }
            }
            _ => {}
        }
    }

    /// Notifies the other endpoints of a conversation that it is over.
    pub(in crate::engine) fn report_over(&mut self, now: Now, route: u32, conversation: u32) {
        let members = self.routes.get(route).map(|route| match &route.part {
            Part::Head(group) => group.members().to_vec(),
            Part::Alone | Part::Member => vec![],
        });
        let Some(members) = members else { return };
        for at in members.into_iter().chain([route]) {
            if let Some(remote) = self.routes.get(at).map(|route| route.remote)
                && self.context.sessions.is_open(remote)
            {
                self.send_to_remote(now, remote, &Message::Over { conversation });
            }
        }
    }

    /// Returns whether a session is open over which a conversation may still receive.
    pub(super) fn is_backed(&self, outbound: &Outbound) -> bool {
        let route = self.routes.get(outbound.route);
        route.is_some_and(|route| match route.part {
            Part::Head(_) => self.routes.values().any(|other| {
                matches!(other.part, Part::Member) && self.context.sessions.is_open(other.remote)
            }),
            Part::Alone | Part::Member => self.context.sessions.is_open(route.remote),
        })
    }

    pub(in crate::engine) fn flush_local(&mut self) {
        for route in self.routes.values_mut() {
            route.local.flush(&self.context.counts);
        }
        self.rendezvous.flush(&self.context.counts);
        for id in self.unflushed.drain(..) {
            if let Some(inbound) = self.inbound.get_mut(id) {
                inbound.local.flush(&self.context.counts);
            }
        }
    }
}
