//! Conversations that begin elsewhere and end here: whether they are allowed, and where they are
//! delivered.

use super::*;

impl Engine {
    /// Begins a conversation that ends here, unless it exists; `false` when it is not allowed.
    pub(in crate::engine) fn begin_inbound(
        &mut self,
        now: Now,
        peer: PeerId,
        (conversation, carriage, to): (u32, Carriage, SocketAddr),
        from: Option<SocketAddr>,
    ) -> bool {
        if !self.inbound_ids.contains_key(&(peer, conversation)) {
            if !self.may_come_from(peer, from, to) {
                let reason = Refusal::NotGranted;
                self.context.send_message(peer, &Message::Denied { conversation, reason });
                add(&self.context.counts.foreign_sources, 1);
                return false;
            }
            let granted = match whole_packets(from, to) {
                Some(from) => self.may_put_out(peer, from, to.ip()),
                None => self.may_deliver(peer, to),
            };
            let ends = (conversation, carriage, to);
            let begun = granted.and_then(|()| {
                let begun = if self.listeners.contains_key(&to) {
                    self.accept(now, peer, ends)
                } else {
                    self.end_here(now, peer, ends, from)
                };
                begun.ok_or(Refusal::Other)
            });
            if let Err(reason) = begun {
                self.context.send_message(peer, &Message::Denied { conversation, reason });
                add(&self.context.counts.dropped, 1);
                return false;
            }
        }
        self.context.send_message(peer, &Message::Known { conversation });
        true
    }

    /// Returns whether datagrams of `from` are delivered to `to` under that address.
    fn preserves_source(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let mut rules = self.context.config.preserve_source.iter();
        from.is_ipv4() == to.is_ipv4() && rules.any(|rule| rule.covers_address(from))
    }

    /// Returns whether packets of `peer` may have this source: delivery under an address takes a
    /// grant for it.
    pub(in crate::engine) fn may_come_from(
        &self,
        peer: PeerId,
        from: Option<SocketAddr>,
        to: SocketAddr,
    ) -> bool {
        let Some(from) = from else { return true };
        let is_preserved = match whole_packets(Some(from), to) {
            Some(ip) => self.tunnel.as_ref().is_some_and(|tunnel| tunnel.covers(ip)),
            None => self.preserves_source(from, to),
        };
        let grant = self.context.sessions.grant_of(peer);
        !is_preserved || grant.is_some_and(|grant| grant.covers_source(from.ip()))
    }

    pub(in crate::engine) fn may_deliver(
        &self,
        peer: PeerId,
        to: SocketAddr,
    ) -> Result<(), Refusal> {
        let grant = Some(self.context.sessions.grant_of(peer).ok_or(Refusal::Grant)?);
        let target = policy::Target::Address(to);
        let checked = if self.listeners.contains_key(&to) {
            self.context.access.allows_inside(grant, target)
        } else {
            self.context.access.allows(grant, target)
        };
        checked.map_err(|error| Refusal::from(&error))
    }

    /// Checks again whether a conversation may end here, if addresses of the host have changed
    /// since the last check: its destination may have become one of them, and its socket would
    /// reach that. One check serves for all that is delivered at once.
    pub(super) fn judge_again(&mut self, id: u32) -> bool {
        if self.unflushed.is_empty() {
            self.context.access.look();
        }
        let generation = self.context.access.generation();
        let Some(inbound) = self.inbound.get(id) else { return false };
        if inbound.judged == Some(generation) {
            return true;
        }
        let may_go_on = self.may_go_on(inbound);
        if let Some(inbound) = self.inbound.get_mut(id) {
            inbound.judged = Some(generation);
        }
        may_go_on
    }

    fn end_here(
        &mut self,
        now: Now,
        remote: PeerId,
        (conversation, carriage, to): (u32, Carriage, SocketAddr),
        from: Option<SocketAddr>,
    ) -> Option<()> {
        let device = whole_packets(from, to).and(self.tunnel.as_ref());
        let device = device.map(|tunnel| Arc::clone(&tunnel.device));
        let preserved_source =
            from.filter(|from| device.is_some() || self.preserves_source(*from, to));
        let mark = self.context.config.delivery_mark();
        let own = match device {
            Some(device) => preserved_source.map(|from| (from, Local::Device(device))),
            None => {
                preserved_source.and_then(|from| Some((from, Local::bind_as(from, to, mark).ok()?)))
            }
        };
        let (preserved_source, local) = match own {
            Some((from, local)) => (Some(from), local),
            None => {
                let tells_dscp =
                    Chosen::looks_at_dscp(self.context.config.copying.replies.as_ref());
                (None, Local::bind(any_like(to), tells_dscp, mark).ok()?)
            }
        };
        // A client whose gateway has restarted, or which uses another one: replies must go to the
        // newest.
        let older =
            preserved_source.and_then(|from| self.by_preserved_source.get(&(from, to)).copied());
        older.into_iter().for_each(|id| self.drop_inbound(now, id, Outcome::Replaced));
        let ends = (conversation, carriage, to);
        let origin = Origin::of_source(from);
        let inbound =
            Inbound { preserved_source, origin, ..Inbound::new(now, local, remote, ends) };
        let id = self.add_inbound(now, inbound)?;
        self.fresh.push(id);
        Some(())
    }

    pub(in crate::engine) fn add_inbound(&mut self, now: Now, mut inbound: Inbound) -> Option<u32> {
        self.evict_inbound(now);
        inbound.origin = self.origin_of(inbound.remote, inbound.origin.source);
        let salt = self.next_salt();
        let (remote, conversation) = (inbound.remote, inbound.conversation);
        let preserved_source = inbound.preserved_source.map(|from| (from, inbound.to));
        let id = self.inbound.insert(salt, inbound)?;
        self.by_preserved_source.extend(preserved_source.map(|ends| (ends, id)));
        self.inbound_ids.insert((remote, conversation), id);
        self.remotes.add(remote);
        Some(id)
    }
}
