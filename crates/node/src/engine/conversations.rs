//! Conversations of an endpoint: applications' datagrams in and out, over the paths that are alive.
//!
//! A conversation consists of the datagrams from one address of an application to one destination,
//! and the replies.

mod begin;
mod eviction;
mod upkeep;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tradewind_config::packet::Chosen;
use tradewind_grant::policy;
use tradewind_net::interception::ANSWERED_HOPS;
use tradewind_net::udp::{Arrival, Target};
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Carriage, Class, Message, Refusal};
use tradewind_packet::sender::select::Seen;
use tradewind_packet::session::{Now, PeerId};
use tradewind_units::{Duration, Timestamp};

use super::Engine;
use super::local::{Local, any_like};
use super::mtu::{DATAGRAM_BYTES, FIRST_BYTES, NUMBER_BYTES, SOURCE_BYTES};
use super::records::{Origin, Tally};
use super::refusals::Refused;
use super::remotes::DatagramPaths;
use super::routes::{Part, Route};
use super::tunnel::whole_packets;
use crate::counts::add;
use crate::record::Outcome;
pub(super) use eviction::Released;

/// Most conversations of one worker in either direction, each with a socket at the remote end. One
/// more evicts another (`eviction`). Chosen.
pub(super) const MOST: usize = 1024;
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
    pub(crate) is_vital: bool,
}

impl DatagramMeta {
    pub(crate) fn by(source: SocketAddr) -> Self {
        Self { source, at: None, went_to: None, dscp: None, hops: None, is_vital: false }
    }

    /// Returns where a reply goes, and the address that it leaves from.
    fn answer(self) -> Target {
        Target { to: self.source, from: self.at }
    }

    /// Returns its class in a conversation with `to`; without rules for copies all are alike.
    fn class(
        self,
        chosen: Option<&Chosen>,
        (to, is_whole): (SocketAddr, bool),
        payload: &[u8],
    ) -> Class {
        let Some(Chosen { rules, .. }) = chosen else { return Class::Normal };
        rules.class(&Seen {
            is_marked: self.is_vital,
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

    /// Returns the flow of the replies, when a service carries them.
    pub(super) fn end(&self) -> Option<FlowNumber> {
        self.end
    }
}

impl Engine {
    /// Sends a datagram that an application wrote to route `at`.
    pub(crate) fn take_application(
        &mut self,
        now: Now,
        at: u32,
        meta: DatagramMeta,
        payload: &[u8],
    ) {
        let Some(route) = self.routes.get(at) else { return };
        if self.context.is_stale(route.carriage()) {
            return add(&self.context.counts.stale, 1);
        }
        let (remote, carriage, end, source) =
            (route.remote, route.carriage(), route.end, meta.source);
        let from = route.to.is_none().then_some(source);
        let is_head = matches!(route.part, Part::Head(_));
        let Some(to) = route.to.or(meta.went_to.filter(|to| route.local.takes(*to))) else {
            return add(&self.context.counts.refused, 1);
        };
        let is_whole = route.local.tunnel().is_some();
        let class = meta.class(route.delivery.copies.as_ref(), (to, is_whole), payload);
        let conversation = match route.sources.get(&(meta.answer(), to)) {
            Some(conversation) => *conversation,
            None => match self.begin_conversation(now, at, meta.answer(), to) {
                Some(conversation) => conversation,
                None => return add(&self.context.counts.refused, 1),
            },
        };
        let Some(outbound) = self.outbound.get_mut(conversation) else { return };
        if now.steady.since(std::mem::replace(&mut outbound.used, now.steady)) >= INTRODUCED_AFTER {
            // The remote endpoint measures silence by the datagrams that it received, perhaps
            // fewer.
            outbound.introduce_again();
        }
        outbound.tally.count_up(now.steady, payload.len());
        if is_head {
            return self.send_group(now, at, (conversation, class), payload);
        }
        let is_known = outbound.is_known;
        let around = if end.is_some() { NUMBER_BYTES } else { 0 };
        let first_bytes = FIRST_BYTES + if from.is_some() { SOURCE_BYTES } else { 0 };
        let paths = DatagramPaths::of(remote, carriage, end);
        let fits = |bytes: usize| self.remotes.fits(now, paths, around + bytes + payload.len());
        let is_cut = self.remotes.has_to_be_cut(now, (paths, carriage), around + payload.len());
        let needs_begin = is_cut || (!fits(first_bytes) && fits(DATAGRAM_BYTES));
        let message = if is_known || needs_begin {
            Message::Datagram { conversation, payload }
        } else {
            Message::First { conversation, carriage, to, from, payload }
        };
        if !is_known && matches!(message, Message::Datagram { .. }) {
            // With the header of a first message it would be too long, so the conversation is begun
            // by a message of its own.
            self.send_remote(
                now,
                remote,
                carriage,
                &Message::Begin { conversation, carriage, to, from },
            );
        }
        if self.send_cut(now, (remote, conversation, carriage), (end, class), payload) {
            return;
        }
        let is_too_long = self.fragments.note_if_too_long(
            (&self.context, &self.remotes),
            now,
            (paths, to),
            (around, payload.len()),
        );
        if is_too_long && is_whole {
            return self.report_too_long(now, Some(at), payload);
        }
        match end {
            Some(flow) => self.send_numbered(now, (flow, class), &message),
            None => {
                let sealed = self.send_remote(now, remote, carriage, &message);
                if let (Some(bytes), Some(route)) = (sealed, self.routes.get_mut(at)) {
                    route.sent = [route.sent[0] + 1, route.sent[1] + bytes as u64];
                }
            }
        }
    }

    /// Sends a datagram of the application at which conversation `id` ends.
    pub(crate) fn take_reply(&mut self, now: Now, id: u32, meta: DatagramMeta, payload: &[u8]) {
        let source = meta.source;
        let Some(inbound) = self.inbound.get_mut(id).filter(|inbound| inbound.to == source) else {
            return add(&self.context.counts.refused, 1);
        };
        if meta.hops.is_some_and(|hops| hops <= ANSWERED_HOPS) {
            return add(&self.context.counts.dropped, 1);
        }
        inbound.used = now.steady;
        let (remote, carriage, end) = (inbound.remote, inbound.carriage, inbound.end);
        let is_whole = matches!(inbound.local, Local::Device(_));
        let conversation = inbound.conversation;
        if self.context.is_stale(carriage) {
            return add(&self.context.counts.stale, 1);
        }
        let class =
            meta.class(self.context.config.copying.replies.as_ref(), (source, is_whole), payload);
        if let Some(inbound) = self.inbound.get_mut(id) {
            inbound.tally.count_down(now.steady, payload.len());
        }
        if self.send_cut(now, (remote, conversation, carriage), (end, class), payload) {
            return;
        }
        let around = if end.is_some() { NUMBER_BYTES } else { 0 };
        let paths = DatagramPaths::of(remote, carriage, end);
        let is_too_long = self.fragments.note_if_too_long(
            (&self.context, &self.remotes),
            now,
            (paths, source),
            (around, payload.len()),
        );
        if is_too_long && is_whole {
            return self.report_too_long(now, None, payload);
        }
        let message = Message::Datagram { conversation, payload };
        match end {
            Some(flow) => self.send_numbered(now, (flow, class), &message),
            None => {
                self.send_remote(now, remote, carriage, &message);
            }
        }
    }

    fn begin_conversation(
        &mut self,
        now: Now,
        at: u32,
        source: Target,
        to: SocketAddr,
    ) -> Option<u32> {
        let salt = self.next_salt();
        self.routes.get_mut(at)?.local.begin(to)?;
        let oldest = self.evict_outbound();
        let tally = self.tally_of(self.routes.get(at)?.end);
        let (is_known, used) = (false, now.steady);
        let outbound = Outbound { route: at, source, to, is_known, used, tally };
        let conversation = self.outbound.insert(salt, outbound);
        if let Some(route) = self.routes.get_mut(at) {
            match conversation {
                Some(conversation) => drop(route.sources.insert((source, to), conversation)),
                None => route.leave(to),
            }
            if to.port() != 0 {
                route.known = to;
            }
        }
        if let Some((id, mut gone)) = oldest {
            self.report_over(now, gone.route, id);
            self.forget_outbound(id, &mut gone, Outcome::Evicted);
        }
        conversation
    }

    /// Delivers a payload to the application of its conversation: at its end, or back at its
    /// beginning.
    pub(super) fn deliver(&mut self, now: Now, peer: PeerId, conversation: u32, payload: &[u8]) {
        let marked = self.marked(now, (peer, conversation), payload);
        let payload = marked.as_deref().unwrap_or(payload);
        if let Some(id) = self.inbound_ids.get(&(peer, conversation)).copied() {
            let carriage = self.inbound.get(id).map(|inbound| inbound.carriage);
            if carriage.is_some_and(|carriage| self.context.is_stale(carriage)) {
                return add(&self.context.counts.stale, 1);
            }
            if !self.judge_again(id) {
                self.release(now, id, Outcome::Revoked);
                return add(&self.context.counts.dropped, 1);
            }
            if let Some(inbound) = self.inbound.get_mut(id) {
                inbound.used = now.steady;
                inbound.tally.count_up(now.steady, payload.len());
                inbound.local.push(
                    &self.context.counts,
                    inbound.preserved_source,
                    inbound.to.into(),
                    payload,
                );
                if self.unflushed.last() != Some(&id) {
                    self.unflushed.push(id);
                }
            }
            return;
        }
        let at = self.outbound.get(conversation).map(|outbound| outbound.route);
        let is_theirs = at.is_some_and(|at| self.routes.leading_to(at, peer).is_some());
        let Some(outbound) = self.outbound.get_mut(conversation).filter(|_| is_theirs) else {
            self.notify_if_released(peer, conversation);
            return add(&self.context.counts.dropped, 1);
        };
        let carriage = self.routes.get(outbound.route).map(Route::carriage);
        if carriage
            .is_some_and(|carriage| carriage.worth().is_some_and(|worth| self.context.age > worth))
        {
            return add(&self.context.counts.stale, 1);
        }
        if let Some(route) = self.routes.get_mut(outbound.route) {
            outbound.used = now.steady;
            outbound.tally.count_down(now.steady, payload.len());
            route.local.push(&self.context.counts, Some(outbound.to), outbound.source, payload);
        }
    }

    /// Does the same for a conversation that may be new here: grant and policy must allow it.
    pub(super) fn deliver_first(
        &mut self,
        now: Now,
        peer: PeerId,
        (conversation, carriage, to): (u32, Carriage, SocketAddr),
        from: Option<SocketAddr>,
        payload: &[u8],
    ) {
        if self.begin_inbound(now, peer, (conversation, carriage, to), from) {
            self.deliver(now, peer, conversation, payload);
        }
    }

    /// Returns whether a conversation with `peer` carries whole packets, for a TUN device.
    pub(super) fn is_of_whole_packets(&self, peer: PeerId, conversation: u32) -> bool {
        if let Some(id) = self.inbound_ids.get(&(peer, conversation)) {
            let local = self.inbound.get(*id).map(|inbound| &inbound.local);
            return matches!(local, Some(Local::Device(_)));
        }
        let outbound = self.outbound.get(conversation);
        let route = outbound.and_then(|outbound| self.routes.leading_to(outbound.route, peer));
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
    pub(super) fn end_of(&self, peer: PeerId, conversation: u32) -> Option<FlowNumber> {
        if let Some(id) = self.inbound_ids.get(&(peer, conversation)) {
            return self.inbound.get(*id)?.end;
        }
        self.routes.leading_to(self.outbound.get(conversation)?.route, peer)?.end
    }

    pub(super) fn carry_replies_by(
        &mut self,
        peer: PeerId,
        conversation: u32,
        end: Option<FlowNumber>,
    ) {
        let id = self.inbound_ids.get(&(peer, conversation));
        let Some(inbound) = id.and_then(|id| self.inbound.get_mut(*id)) else { return };
        if inbound.end == end {
            return;
        }
        inbound.end = end;
        let begun = self.tally_of(end);
        let inbound = self.inbound_ids.get(&(peer, conversation));
        if let Some(inbound) = inbound.and_then(|id| self.inbound.get_mut(*id)) {
            inbound.tally.begin_flow(begun);
        }
    }

    /// Records that a remote endpoint refuses a conversation that begins here.
    pub(super) fn note_denied(
        &mut self,
        now: Now,
        peer: PeerId,
        conversation: u32,
        reason: Refusal,
    ) {
        let route = self.outbound.get(conversation).map(Outbound::route);
        let is_theirs = route.is_some_and(|route| self.routes.leading_to(route, peer).is_some());
        if let Some(outbound) = self.outbound.get_mut(conversation).filter(|_| is_theirs) {
            outbound.tally.refused = Some(reason);
        }
        if let Some(by) = self.context.sessions.identity_of(peer).filter(|_| is_theirs) {
            let what = (peer, Refused::Conversation);
            self.refusals.note(&self.context, now, what, (by, reason));
        }
    }

    /// Records that a remote endpoint knows a conversation, or has dropped it.
    pub(super) fn note_known(&mut self, peer: PeerId, conversation: u32, is_known: bool) {
        let Some(at) = self.outbound.get(conversation).map(|outbound| outbound.route) else {
            return;
        };
        if self.routes.leading_to(at, peer).is_none() {
            return;
        }
        if is_known {
            self.refusals.clear(peer, Refused::Conversation);
        }
        match self.routes.get_mut(at).and_then(Route::group) {
            Some(group) if is_known => group.note_known(conversation, peer),
            Some(group) => group.note_unknown(conversation, peer),
            None => {
                if let Some(outbound) = self.outbound.get_mut(conversation) {
                    outbound.is_known = is_known;
                    if is_known {
                        outbound.tally.refused = None;
                    }
                }
            }
        }
    }

    /// Introduces all conversations with a remote endpoint again after a new handshake: it may be
    /// another process, which knows none.
    pub(super) fn introduce_again(&mut self, peer: PeerId) {
        for group in self.routes.values_mut().filter_map(Route::group) {
            group.introduce_again(peer);
        }
        for route in self.routes.values().filter(|route| route.remote == peer) {
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
