//! The rules for deliveries: which conversations may end here, and with which source.

use std::net::{IpAddr, SocketAddr};

use tradewind_grant::Target;
use tradewind_packet::message::Refusal;
use tradewind_packet::session::PeerId;

use super::context::Context;
use super::conversations::Inbound;
use super::flows::Listeners;
use super::tunnel::{TunnelEnd, whole_packets};

/// The rules for deliveries here, borrowed for one call.
pub(super) struct Rules<'a> {
    pub(super) context: &'a Context,
    pub(super) tunnel: Option<&'a TunnelEnd>,
    pub(super) listeners: &'a Listeners,
}

impl Rules<'_> {
    /// Returns whether datagrams of `from` are delivered to `to` under that address.
    pub(super) fn preserves_source(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let mut rules = self.context.config.preserve_source.iter();
        from.is_ipv4() == to.is_ipv4() && rules.any(|rule| rule.covers_address(from))
    }

    /// Returns whether packets of `peer` may have this source: delivery under an address takes a
    /// grant for it.
    pub(super) fn may_come_from(
        &self,
        peer: PeerId,
        from: Option<SocketAddr>,
        to: SocketAddr,
    ) -> bool {
        let Some(from) = from else { return true };
        let is_preserved = match whole_packets(Some(from), to) {
            Some(ip) => self.tunnel.is_some_and(|tunnel| tunnel.covers(ip)),
            None => self.preserves_source(from, to),
        };
        let grant = self.context.sessions.grant_of(peer);
        !is_preserved || grant.is_some_and(|grant| grant.covers_source(from.ip()))
    }

    pub(super) fn may_deliver(&self, peer: PeerId, to: SocketAddr) -> Result<(), Refusal> {
        let grant = Some(self.context.sessions.grant_of(peer).ok_or(Refusal::Grant)?);
        let target = Target::Address(to);
        let checked = if self.listeners.contains_key(&to) {
            self.context.access.allows_inside(grant, target)
        } else {
            self.context.access.allows(grant, target)
        };
        checked.map_err(|error| Refusal::from(&error))
    }

    /// Checks whether packets from one address to another may be delivered here for `peer`.
    pub(super) fn may_put_out(
        &self,
        peer: PeerId,
        from: IpAddr,
        to: IpAddr,
    ) -> Result<(), Refusal> {
        let grant = self.context.sessions.grant_of(peer).ok_or(Refusal::Grant)?;
        let checked = self.context.access.allows(Some(grant), Target::Host(to));
        checked.map_err(|error| Refusal::from(&error))?;
        let is_theirs = self.tunnel.is_some_and(|tunnel| tunnel.covers(from));
        if is_theirs && from.is_ipv4() == to.is_ipv4() {
            return Ok(());
        }
        Err(Refusal::NotAllowed)
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
