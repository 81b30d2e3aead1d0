//! Conversations of an endpoint: applications' datagrams in and out, over the paths that are alive.
//!
//! A conversation consists of the datagrams from one address of an application to one destination,
//! and the replies.

mod eviction;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use tradewind_config::packet::Chosen;
use tradewind_net::udp::{Arrival, Target};
use tradewind_packet::id::{FlowNumber, PacketId};
use tradewind_packet::message::{Carriage, Class, Message, Refusal};
use tradewind_packet::sender::select::Seen;
use tradewind_packet::session::{Now, PeerId, Table};
use tradewind_units::{Duration, Timestamp};

use super::context::Context;
use super::local::Local;
use super::marks::Marks;
use super::records::{Origin, Tally};
use super::routes::{Route, Routes};
use super::tunnel::whole_packets;
use crate::counts::{Counts, add};
use crate::ip;
use eviction::Released;
pub(super) use upkeep::Ids;

/// Most conversations of one worker in either direction, each with a socket at the remote end. One
/// more evicts another (`eviction`). Chosen.
pub(super) const MAX: usize = 1024;
/// Silence after which a conversation is forgotten whose other endpoint is gone, or has ended it.
/// Chosen: as long as NATs keep the state of UDP with replies.
pub(super) const IDLE: Duration = Duration::from_secs(120);
/// Silence after which a conversation is introduced again. Chosen: three such datagrams may be lost
/// before the other side forgets it.
const INTRODUCED_AFTER: Duration = Duration::from_secs(30);

/// The metadata of an application's datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DatagramMeta {
    pub(crate) source: SocketAddr,
    /// The address of this host at which it arrived, where replies must leave from the same.
    pub(crate) at: Option<IpAddr>,
    /// Its original destination, if it was intercepted.
    pub(crate) went_to: Option<SocketAddr>,
    pub(crate) dscp: Option<u8>,
    /// The hops that it had left, where that matters.
    pub(crate) hops: Option<u8>,
    /// Set if the application has marked it as high priority.
    pub(crate) is_high_priority: bool,
}

impl DatagramMeta {
    pub(crate) fn by(source: SocketAddr) -> Self {
        Self { source, at: None, went_to: None, dscp: None, hops: None, is_high_priority: false }
    }

    /// Returns where a reply goes, and the address that it leaves from.
    pub(super) fn answer(self) -> Target {
        Target { to: self.source, from: self.at }
    }

    /// Returns its class in a conversation with `to`; without rules for copies all are alike.
    pub(super) fn class(
        self,
        chosen: Option<&Chosen>,
        (to, is_whole): (SocketAddr, bool),
        payload: &[u8],
    ) -> Class {
        let Some(Chosen { rules, .. }) = chosen else { return Class::Normal };
        rules.class(&Seen {
            is_marked: self.is_high_priority,
            ip: is_whole.then_some(payload),
            datagram: (!is_whole).then_some(payload),
            port: Some(to.port()),
            dscp: self.dscp,
        })
    }
}

impl From<Arrival> for DatagramMeta {
    fn from(arrival: Arrival) -> Self {
        let Arrival { from, at, went_to, dscp, hops, .. } = arrival;
        Self { at, went_to, dscp, hops, ..Self::by(from) }
    }
}

/// A conversation that begins here.
pub(super) struct Outbound {
    route: u32,
    /// The application, and the address of this host that it writes to.
    source: Target,
    to: SocketAddr,
    is_known: bool,
    used: Timestamp,
    pub(super) tally: Tally,
}

impl Outbound {
    /// Returns the application, and the address of this host that it writes to.
    pub(super) fn source(&self) -> Target {
        self.source
    }

    pub(super) fn to(&self) -> SocketAddr {
        self.to
    }

    pub(super) fn route(&self) -> u32 {
        self.route
    }

    /// Counts a datagram of its application; returns whether the remote endpoint knows the
    /// conversation.
    pub(super) fn note_datagram(&mut self, now: Now, bytes: usize) -> bool {
        if now.steady.since(std::mem::replace(&mut self.used, now.steady)) >= INTRODUCED_AFTER {
            // The remote endpoint measures silence by the datagrams that it received, perhaps
            // fewer.
            self.introduce_again();
        }
        self.tally.count_up(now.steady, bytes);
        self.is_known
    }

    /// Marks it to be introduced again: the remote endpoint may be another process, which does not
    /// know it.
    pub(super) fn introduce_again(&mut self) {
        self.is_known = false;
    }
}

/// A conversation that ends here.
pub(crate) struct Inbound {
    pub(crate) local: Local,
    to: SocketAddr,
    /// The source address under which datagrams are delivered, if not one of this host's.
    pub(super) preserved_source: Option<SocketAddr>,
    pub(super) remote: PeerId,
    conversation: u32,
    pub(super) carriage: Carriage,
    /// The flow of the replies, when a service carries them.
    pub(super) end: Option<FlowNumber>,
    used: Timestamp,
    /// Set once the side that began it has ended it.
    is_over: bool,
    /// The generation of the host's addresses at the last check of whether it is allowed.
    judged: Option<u64>,
    pub(super) origin: Origin,
    pub(super) tally: Tally,
}

impl Inbound {
    /// Returns one that continues from here to `to`, under an address of this host.
    pub(super) fn new(
        now: Now,
        local: Local,
        remote: PeerId,
        (conversation, carriage, to): (u32, Carriage, SocketAddr),
    ) -> Self {
        let (preserved_source, end, used, is_over) = (None, None, now.steady, false);
        let (judged, origin, tally) = (None, Origin::default(), Tally::default());
        Self {
            local,
            to,
            preserved_source,
            remote,
            conversation,
            carriage,
            end,
            used,
            is_over,
            judged,
            origin,
            tally,
        }
    }

    /// Returns the application, or its stand-in.
    pub(super) fn to(&self) -> SocketAddr {
        self.to
    }

    /// Returns its number at the remote endpoint.
    pub(super) fn conversation(&self) -> u32 {
        self.conversation
    }

    /// Records that its application has replied; returns its number at the remote endpoint.
    pub(super) fn note_reply(&mut self, now: Now) -> u32 {
        self.used = now.steady;
        self.conversation
    }

    /// Returns the flow of the replies, when a service carries them.
    pub(super) fn end(&self) -> Option<FlowNumber> {
        self.end
    }
}

/// All conversations that begin or end here: which application each is of, and what carries it.
pub(crate) struct Conversations {
    pub(super) outbound: Table<Outbound>,
    pub(crate) inbound: Table<Inbound>,
    pub(super) inbound_ids: BTreeMap<(PeerId, u32), u32>,
    /// Those that end here and have datagrams in their send queues.
    unflushed: Vec<u32>,
    released: Released,
    /// Those whose datagrams are delivered under a preserved source, by source and destination.
    pub(super) by_preserved_source: BTreeMap<(SocketAddr, SocketAddr), u32>,
    /// Local ports that the worker has to poll from now on.
    pub(crate) fresh: Vec<u32>,
    /// Congestion marks that they are owed.
    pub(super) marks: Marks,
    salt: u16,
}

/// The outcome of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// It was delivered, or dropped.
    Done,
    /// The rules do not allow it any more at this conversation that ends here.
    Revoked(u32),
}

impl Conversations {
    pub(super) fn new() -> Self {
        Self {
            outbound: Table::new(MAX),
            inbound: Table::new(MAX),
            inbound_ids: BTreeMap::new(),
            unflushed: Vec::new(),
            released: Released::default(),
            by_preserved_source: BTreeMap::new(),
            fresh: Vec::new(),
            marks: Marks::default(),
            salt: 0,
        }
    }

    fn next_salt(&mut self) -> u16 {
        self.salt = self.salt.wrapping_add(1);
        self.salt
    }

    /// Begins a conversation of a route, after evicting another if there is no room; returns its
    /// id, and the evicted one, which the caller forgets.
    pub(super) fn begin(
        &mut self,
        (counts, routes): (&Counts, &mut Routes),
        now: Now,
        (at, source, to): (u32, Target, SocketAddr),
        tally: Tally,
    ) -> (Option<u32>, Option<(u32, Outbound)>) {
        let salt = self.next_salt();
        if routes.get_mut(at).and_then(|route| route.local.begin(to)).is_none() {
            return (None, None);
        }
        let oldest = self.evict_outbound(counts);
        let (is_known, used) = (false, now.steady);
        let outbound = Outbound { route: at, source, to, is_known, used, tally };
        let conversation = self.outbound.insert(salt, outbound);
        if let Some(route) = routes.get_mut(at) {
            match conversation {
                Some(conversation) => drop(route.sources.insert((source, to), conversation)),
                None => route.leave(to),
            }
            if to.port() != 0 {
                route.known = to;
            }
        }
        (conversation, oldest)
    }

    /// Delivers a payload to the application of its conversation: at its end, or back at its
    /// beginning.
    pub(super) fn deliver(
        &mut self,
        (context, routes): (&mut Context, &mut Routes),
        may_go_on: impl FnOnce(&Context, &Inbound) -> bool,
        now: Now,
        (peer, conversation, payload): (PeerId, u32, &[u8]),
    ) -> Delivery {
        let marked = self.marked(routes, now, (peer, conversation), payload);
        let payload = marked.as_deref().unwrap_or(payload);
        if let Some(id) = self.inbound_ids.get(&(peer, conversation)).copied() {
            let carriage = self.inbound.get(id).map(|inbound| inbound.carriage);
            if carriage.is_some_and(|carriage| context.is_stale(carriage)) {
                add(&context.counts.stale, 1);
                return Delivery::Done;
            }
            if !self.judge_again(context, may_go_on, id) {
                return Delivery::Revoked(id);
            }
            if let Some(inbound) = self.inbound.get_mut(id) {
                inbound.used = now.steady;
                inbound.tally.count_up(now.steady, payload.len());
                let (source, to) = (inbound.preserved_source, inbound.to.into());
                inbound.local.push(&context.counts, source, to, payload);
                if self.unflushed.last() != Some(&id) {
                    self.unflushed.push(id);
                }
            }
            return Delivery::Done;
        }
        let at = self.outbound.get(conversation).map(|outbound| outbound.route);
        let is_theirs = at.is_some_and(|at| routes.leading_to(at, peer).is_some());
        let Some(outbound) = self.outbound.get_mut(conversation).filter(|_| is_theirs) else {
            self.notify_if_released(context, peer, conversation);
            add(&context.counts.dropped, 1);
            return Delivery::Done;
        };
        let Some(route) = routes.get_mut(outbound.route) else { return Delivery::Done };
        if context.is_stale(route.carriage()) {
            add(&context.counts.stale, 1);
            return Delivery::Done;
        }
        outbound.used = now.steady;
        outbound.tally.count_down(now.steady, payload.len());
        route.local.push(&context.counts, Some(outbound.to), outbound.source, payload);
        Delivery::Done
    }

    /// Checks again whether a conversation may end here, if addresses of the host have changed
    /// since the last check: its destination may have become one of them, and its socket would
    /// reach that. One check serves for all that is delivered at once.
    fn judge_again(
        &mut self,
        context: &mut Context,
        may_go_on: impl FnOnce(&Context, &Inbound) -> bool,
        id: u32,
    ) -> bool {
        if self.unflushed.is_empty() {
            context.access.look();
        }
        let generation = context.access.generation();
        let Some(inbound) = self.inbound.get_mut(id) else { return false };
        if inbound.judged == Some(generation) {
            return true;
        }
        inbound.judged = Some(generation);
        may_go_on(context, inbound)
    }

    /// Records that a remote endpoint refuses a conversation that begins here; `false` when it is
    /// not with that one.
    pub(super) fn note_denied(
        &mut self,
        routes: &Routes,
        (peer, conversation): (PeerId, u32),
        reason: Refusal,
    ) -> bool {
        let Some(outbound) = self.outbound.get_mut(conversation) else { return false };
        if routes.leading_to(outbound.route, peer).is_none() {
            return false;
        }
        outbound.tally.refused = Some(reason);
        true
    }

    /// Records that a remote endpoint knows a conversation, or has dropped it; `false` when it is
    /// not with that one.
    pub(super) fn note_known(
        &mut self,
        routes: &mut Routes,
        (peer, conversation): (PeerId, u32),
        is_known: bool,
    ) -> bool {
        let Some(outbound) = self.outbound.get_mut(conversation) else { return false };
        if routes.leading_to(outbound.route, peer).is_none() {
            return false;
        }
        match routes.get_mut(outbound.route).and_then(Route::group) {
            Some(group) if is_known => group.note_known(conversation, peer),
            Some(group) => group.note_unknown(conversation, peer),
            None => {
                outbound.is_known = is_known;
                if is_known {
                    outbound.tally.refused = None;
                }
            }
        }
        true
    }

    /// Records that the side that began a conversation has ended it.
    pub(super) fn note_over(&mut self, peer: PeerId, conversation: u32) {
        let id = self.inbound_ids.get(&(peer, conversation));
        if let Some(inbound) = id.and_then(|id| self.inbound.get_mut(*id)) {
            inbound.is_over = true;
        }
    }

    /// Returns the conversations of a remote endpoint that end here.
    pub(super) fn inbound_of(&self, remote: PeerId) -> Vec<u32> {
        self.inbound_ids.range((remote, 0)..=(remote, u32::MAX)).map(|(_, id)| *id).collect()
    }

    /// Adds a conversation that ends here, for which there is room.
    pub(super) fn add(&mut self, inbound: Inbound) -> Option<u32> {
        let salt = self.next_salt();
        let (remote, conversation) = (inbound.remote, inbound.conversation);
        let preserved_source = inbound.preserved_source.map(|from| (from, inbound.to));
        let id = self.inbound.insert(salt, inbound)?;
        self.by_preserved_source.extend(preserved_source.map(|ends| (ends, id)));
        self.inbound_ids.insert((remote, conversation), id);
        Some(id)
    }

    /// Removes a conversation that ended here.
    pub(super) fn remove(&mut self, counts: &Counts, id: u32) -> Option<Inbound> {
        let mut inbound = self.inbound.remove(id)?;
        inbound.local.flush(counts);
        self.inbound_ids.remove(&(inbound.remote, inbound.conversation));
        if let Some(from) = inbound.preserved_source {
            self.by_preserved_source.remove(&(from, inbound.to));
        }
        Some(inbound)
    }

    /// Sends queued datagrams to the applications at which conversations end.
    pub(super) fn flush(&mut self, counts: &Counts) {
        for id in self.unflushed.drain(..) {
            if let Some(inbound) = self.inbound.get_mut(id) {
                inbound.local.flush(counts);
            }
        }
    }

    /// Returns whether a conversation with `peer` carries whole packets, for a TUN device.
    pub(super) fn is_of_whole_packets(
        &self,
        routes: &Routes,
        peer: PeerId,
        conversation: u32,
    ) -> bool {
        if let Some(id) = self.inbound_ids.get(&(peer, conversation)) {
            let local = self.inbound.get(*id).map(|inbound| &inbound.local);
            return matches!(local, Some(Local::Device(_)));
        }
        let outbound = self.outbound.get(conversation);
        let route = outbound.and_then(|outbound| routes.leading_to(outbound.route, peer));
        route.is_some_and(|route| route.local.tunnel().is_some())
    }

    /// Returns whether a conversation with `peer` ends here.
    pub(super) fn ends_here(&self, peer: PeerId, conversation: u32) -> bool {
        self.inbound_ids.contains_key(&(peer, conversation))
    }

    /// Returns the carriage of a conversation with `peer` that ends here.
    pub(super) fn carriage_of(&self, peer: PeerId, conversation: u32) -> Option<Carriage> {
        let id = self.inbound_ids.get(&(peer, conversation))?;
        self.inbound.get(*id).map(|inbound| inbound.carriage)
    }

    /// Returns the flow of this side of a conversation with `peer`, if a service carries it.
    pub(super) fn end_of(
        &self,
        routes: &Routes,
        peer: PeerId,
        conversation: u32,
    ) -> Option<FlowNumber> {
        if let Some(id) = self.inbound_ids.get(&(peer, conversation)) {
            return self.inbound.get(*id)?.end;
        }
        routes.leading_to(self.outbound.get(conversation)?.route, peer)?.end
    }

    /// Has a flow carry the replies of a conversation that ends here; `begun` returns a tally that
    /// begins with that flow.
    pub(super) fn carry_replies_by(
        &mut self,
        (peer, conversation): (PeerId, u32),
        end: Option<FlowNumber>,
        begun: impl FnOnce() -> Tally,
    ) {
        let id = self.inbound_ids.get(&(peer, conversation));
        let Some(inbound) = id.and_then(|id| self.inbound.get_mut(*id)) else { return };
        if inbound.end != end {
            inbound.end = end;
            inbound.tally.begin_flow(begun());
        }
    }

    /// Returns the carriage of a conversation with `peer`, whichever side began it.
    pub(super) fn carriage_of_any(
        &self,
        routes: &Routes,
        peer: PeerId,
        conversation: u32,
    ) -> Option<Carriage> {
        let here = self.carriage_of(peer, conversation);
        let began = || {
            let outbound = self.outbound.get(conversation)?;
            Some(routes.leading_to(outbound.route(), peer)?.carriage())
        };
        here.or_else(began)
    }

    /// Records a recovered packet, for which another of its conversation has to carry a congestion
    /// mark, if the conversation is one of whole packets.
    pub(super) fn owe_mark(
        &mut self,
        routes: &Routes,
        now: Now,
        (peer, packet, message): (PeerId, PacketId, &[u8]),
    ) {
        let (conversation, is_whole) = match Message::parse(message) {
            Ok(Message::Datagram { conversation, .. }) => {
                (conversation, self.is_of_whole_packets(routes, peer, conversation))
            }
            Ok(Message::First { conversation, to, from, .. }) => {
                (conversation, whole_packets(from, to).is_some())
            }
            _ => return,
        };
        if is_whole {
            self.marks.owe(now.steady, (peer, conversation), packet);
        }
    }

    /// Returns the packet with a congestion mark, if one is due for its conversation and its ends
    /// support them.
    fn marked(
        &mut self,
        routes: &Routes,
        now: Now,
        (peer, conversation): (PeerId, u32),
        packet: &[u8],
    ) -> Option<Vec<u8>> {
        let key = (peer, conversation);
        if !self.marks.is_due(now.steady, key)
            || !self.is_of_whole_packets(routes, peer, conversation)
        {
            return None;
        }
        let mut packet = packet.to_vec();
        if !ip::mark_congestion(&mut packet) {
            return None;
        }
        self.marks.settle(key);
        Some(packet)
    }

    /// Returns the endpoints whose packets are delivered here; these are pinged.
    pub(super) fn tunnelled_fars(&self) -> BTreeSet<PeerId> {
        self.tunnelled().map(|inbound| inbound.remote).collect()
    }

    pub(super) fn tunnelled(&self) -> impl Iterator<Item = &Inbound> {
        let all = self.by_preserved_source.values().filter_map(|id| self.inbound.get(*id));
        all.filter(|inbound| matches!(inbound.local, Local::Device(_)))
    }

    /// Removes the conversation with the longest silence, if there is no room for another one that
    /// begins here. The caller updates its route once the new one exists, which may have the same
    /// destination.
    pub(super) fn evict_outbound(&mut self, counts: &Counts) -> Option<(u32, Outbound)> {
        if self.outbound.len() < MAX {
            return None;
        }
        let all = self.outbound.ids().zip(self.outbound.values());
        let id = all.min_by_key(|(_, outbound)| outbound.used).map(|(id, _)| id)?;
        add(&counts.conversations_evicted, 1);
        self.outbound.remove(id).map(|outbound| (id, outbound))
    }

    /// Introduces all conversations with a remote endpoint again after a new handshake: it may be
    /// another process, which knows none.
    pub(super) fn introduce_again(&mut self, routes: &mut Routes, peer: PeerId) {
        for group in routes.values_mut().filter_map(Route::group) {
            group.introduce_again(peer);
        }
        for route in routes.values().filter(|route| route.remote == peer) {
            for conversation in route.sources.values() {
                if let Some(outbound) = self.outbound.get_mut(*conversation) {
                    outbound.introduce_again();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
