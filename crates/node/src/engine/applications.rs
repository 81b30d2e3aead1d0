//! Applications' datagrams: what the engine routes between their sockets, the conversations, and
//! the way to remote endpoints.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use tradewind_config::packet::Chosen;
use tradewind_net::interception::ANSWERED_HOPS;
use tradewind_net::udp::Target;
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Carriage, Class, Message, Refusal};
use tradewind_packet::session::{Now, PeerId};

use super::Engine;
use super::context::Context;
use super::conversations::{DatagramMeta, Delivery, Ids, Inbound, Outbound};
use super::local::{Local, any_like};
use super::mtu::{DATAGRAM_BYTES, FIRST_BYTES, NUMBER_BYTES, SOURCE_BYTES};
use super::paths::Paths;
use super::records::Origin;
use super::refusals::Refused;
use super::remotes::DatagramPaths;
use super::routes::{Part, Route};
use super::rules::Rules;
use super::tunnel::{hand_over, whole, whole_packets};
use crate::counts::add;
use crate::ip;
use crate::record::{Journal, Outcome};

impl Engine {
    /// Delivers a payload to the application of its conversation, unless the rules do not allow it
    /// any more.
    pub(super) fn deliver(&mut self, now: Now, peer: PeerId, conversation: u32, payload: &[u8]) {
        let Self { context, routes, conversations, tunnel, listeners, .. } = self;
        let may_go_on = |context: &Context, inbound: &Inbound| {
            Rules { context, tunnel: tunnel.as_ref(), listeners }.may_go_on(inbound)
        };
        let of_peer = (peer, conversation, payload);
        match conversations.deliver((context, routes), may_go_on, now, of_peer) {
            Delivery::Done => {}
            Delivery::Revoked(id) => {
                self.release(now, id, Outcome::Revoked);
                add(&self.context.counts.dropped, 1);
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
        let tally = self.reporter().tally_of(self.routes.get(at)?.end);
        let around = (&*self.context.counts, &mut self.routes);
        let (conversation, oldest) = self.conversations.begin(around, now, (at, source, to), tally);
        if let Some((id, mut gone)) = oldest {
            self.report_over(now, gone.route(), id);
            self.forget_outbound(id, &mut gone, Outcome::Evicted);
        }
        conversation
    }

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
        let known = route.sources.get(&(meta.answer(), to)).copied();
        let begun = known.or_else(|| self.begin_conversation(now, at, meta.answer(), to));
        let Some(conversation) = begun else {
            return add(&self.context.counts.refused, 1);
        };
        let Some(outbound) = self.conversations.outbound.get_mut(conversation) else { return };
        let is_known = outbound.note_datagram(now, payload.len());
        if is_head {
            return self.send_group(now, at, (conversation, class), payload);
        }
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
            let begin = Message::Begin { conversation, carriage, to, from };
            self.send_remote(now, remote, carriage, &begin);
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
        let Some(inbound) =
            self.conversations.inbound.get_mut(id).filter(|inbound| inbound.to() == source)
        else {
            return add(&self.context.counts.refused, 1);
        };
        if meta.hops.is_some_and(|hops| hops <= ANSWERED_HOPS) {
            return add(&self.context.counts.dropped, 1);
        }
        let conversation = inbound.note_reply(now);
        let (remote, carriage, end) = (inbound.remote, inbound.carriage, inbound.end);
        let is_whole = matches!(inbound.local, Local::Device(_));
        if self.context.is_stale(carriage) {
            return add(&self.context.counts.stale, 1);
        }
        let class =
            meta.class(self.context.config.copying.replies.as_ref(), (source, is_whole), payload);
        if let Some(inbound) = self.conversations.inbound.get_mut(id) {
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

    /// Begins a conversation that ends here, unless it exists; `false` when it is not allowed.
    pub(super) fn begin_inbound(
        &mut self,
        now: Now,
        peer: PeerId,
        (conversation, carriage, to): (u32, Carriage, SocketAddr),
        from: Option<SocketAddr>,
    ) -> bool {
        if !self.conversations.inbound_ids.contains_key(&(peer, conversation)) {
            if !self.rules().may_come_from(peer, from, to) {
                let reason = Refusal::NotGranted;
                self.context.send_message(peer, &Message::Denied { conversation, reason });
                add(&self.context.counts.foreign_sources, 1);
                return false;
            }
            let granted = match whole_packets(from, to) {
                Some(from) => self.rules().may_put_out(peer, from, to.ip()),
                None => self.rules().may_deliver(peer, to),
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
            from.filter(|from| device.is_some() || self.rules().preserves_source(*from, to));
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
        let older = preserved_source
            .and_then(|from| self.conversations.by_preserved_source.get(&(from, to)).copied());
        older.into_iter().for_each(|id| self.drop_inbound(now, id, Outcome::Replaced));
        let ends = (conversation, carriage, to);
        let origin = Origin::of_source(from);
        let mut inbound = Inbound::new(now, local, remote, ends);
        (inbound.preserved_source, inbound.origin) = (preserved_source, origin);
        let id = self.add_inbound(now, inbound)?;
        self.conversations.fresh.push(id);
        Some(())
    }

    pub(super) fn add_inbound(&mut self, now: Now, mut inbound: Inbound) -> Option<u32> {
        if let Some(id) = self.conversations.too_many(&self.context) {
            self.release(now, id, Outcome::Evicted);
        }
        inbound.origin = Origin::of(&self.context, inbound.remote, inbound.origin.source);
        let remote = inbound.remote;
        let id = self.conversations.add(inbound)?;
        self.remotes.add(remote);
        Some(id)
    }

    /// Cleans up after a conversation that began here and is over.
    pub(super) fn forget_outbound(&mut self, id: u32, outbound: &mut Outbound, why: Outcome) {
        if let Some(tally) = outbound.tally.take() {
            self.reporter().journal_outbound(outbound, &tally, why);
        }
        if let Some(route) = self.routes.get_mut(outbound.route()) {
            route.forget(id, (outbound.source(), outbound.to()));
        }
    }

    /// Ends a conversation here and notifies the gateway that began it, whose next datagram begins
    /// it anew.
    pub(super) fn release(&mut self, now: Now, id: u32, why: Outcome) {
        let Some(inbound) = self.conversations.inbound.get(id) else { return };
        let (remote, conversation) = (inbound.remote, inbound.conversation());
        self.drop_inbound(now, id, why);
        self.conversations.note_released(remote, conversation);
        self.context.send_message(remote, &Message::Unknown { conversation });
    }

    pub(super) fn drop_inbound(&mut self, now: Now, id: u32, why: Outcome) {
        // Nothing is delivered once it is not allowed.
        if why != Outcome::Revoked {
            self.deliver_waiting(now, id);
        }
        self.record_inbound(id, why);
        if let Some(inbound) = self.conversations.remove(&self.context.counts, id) {
            self.fragments.remove(inbound.remote, inbound.conversation());
            self.ends_are_due |= inbound.end.is_some();
            self.forget_accepted(id, inbound.local);
        }
    }

    /// Drops conversations that are over, records those that are silent, and forgets the ends of
    /// flows that carry none any more.
    pub(super) fn maintain_conversations(&mut self, now: Now) {
        let Ids { outbound, inbound } = self.conversations.over(now, |it| self.is_backed(it));
        for id in outbound {
            if let Some(mut flow) = self.conversations.outbound.remove(id) {
                self.forget_outbound(id, &mut flow, Outcome::Idle);
            }
        }
        inbound.into_iter().for_each(|id| self.drop_inbound(now, id, Outcome::Idle));
        self.record_silent(now);
        if std::mem::take(&mut self.ends_are_due) {
            let ids = self.conversations.inbound_ids.values();
            let inbound = ids.filter_map(|id| self.conversations.inbound.get(*id)?.end);
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
        let Ids { outbound, inbound } = self.conversations.silent(now);
        outbound.into_iter().for_each(|id| self.record_outbound(id, Outcome::Idle));
        inbound.into_iter().for_each(|id| self.record_inbound(id, Outcome::Idle));
    }

    /// Handles the other endpoint's message on the state of a conversation.
    pub(super) fn note_state(&mut self, now: Now, peer: PeerId, message: Message<'_>) {
        match message {
            Message::Known { conversation } => {
                let of_peer = (peer, conversation);
                if self.conversations.note_known(&mut self.routes, of_peer, true) {
                    self.refusals.clear(peer, Refused::Conversation);
                }
            }
            Message::Unknown { conversation } => {
                let of_peer = (peer, conversation);
                self.conversations.note_known(&mut self.routes, of_peer, false);
            }
            Message::Denied { conversation, reason } => {
                let is_theirs =
                    self.conversations.note_denied(&self.routes, (peer, conversation), reason);
                let by = self.context.sessions.identity_of(peer).filter(|_| is_theirs);
                if let Some(by) = by {
                    let what = (peer, Refused::Conversation);
                    self.refusals.note(&self.context, now, what, (by, reason));
                }
            }
            Message::Over { conversation } => {
                self.conversations.note_over(peer, conversation);
            }
            _ => {}
        }
    }

    /// Notifies the other endpoints of a conversation that it is over.
    pub(super) fn report_over(&mut self, now: Now, route: u32, conversation: u32) {
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
        let route = self.routes.get(outbound.route());
        route.is_some_and(|route| match route.part {
            Part::Head(_) => self.routes.values().any(|other| {
                matches!(other.part, Part::Member) && self.context.sessions.is_open(other.remote)
            }),
            Part::Alone | Part::Member => self.context.sessions.is_open(route.remote),
        })
    }

    pub(super) fn flush_local(&mut self) {
        for route in self.routes.values_mut() {
            route.local.flush(&self.context.counts);
        }
        self.rendezvous.flush(&self.context.counts);
        self.conversations.flush(&self.context.counts);
    }

    /// Sends records to `journal` from now on.
    pub(crate) fn set_journal(&mut self, journal: Arc<dyn Journal>) {
        self.context.journal = Some(journal);
    }

    /// Reports on all flows, and records all conversations, since this node ends.
    pub(crate) fn end(&mut self, now: Now) {
        self.services.receiver.report();
        self.dispatch(now);
        self.flush();
        for id in self.conversations.outbound.ids().collect::<Vec<_>>() {
            self.record_outbound(id, Outcome::Cut);
        }
        for id in self.conversations.inbound.ids().collect::<Vec<_>>() {
            self.record_inbound(id, Outcome::Cut);
        }
    }

    /// Records a conversation that began here and is over, or has been silent for long.
    pub(super) fn record_outbound(&mut self, id: u32, outcome: Outcome) {
        let Some(outbound) = self.conversations.outbound.get_mut(id) else { return };
        let Some(tally) = outbound.tally.take() else { return };
        let at = outbound.route();
        let end = self.routes.get(at).and_then(|route| route.end);
        let next = self.reporter().tally_of(end);
        if let Some(outbound) = self.conversations.outbound.get_mut(id) {
            outbound.tally = next;
        }
        if let Some(outbound) = self.conversations.outbound.get(id) {
            self.reporter().journal_outbound(outbound, &tally, outcome);
        }
    }

    /// Records a conversation that ends here and is over, or has been silent for long.
    pub(super) fn record_inbound(&mut self, id: u32, outcome: Outcome) {
        let Some(inbound) = self.conversations.inbound.get_mut(id) else { return };
        let (tally, end) = (inbound.tally.take(), inbound.end());
        let Some(tally) = tally else { return };
        let next = self.reporter().tally_of(end);
        if let Some(inbound) = self.conversations.inbound.get_mut(id) {
            inbound.tally = next;
        }
        if let Some(inbound) = self.conversations.inbound.get(id) {
            self.reporter().journal_inbound(inbound, &tally, outcome);
        }
    }

    /// Sends a message of a conversation over the paths that this wants. Returns its bytes, `None`
    /// when it could not be sealed.
    pub(super) fn send_remote(
        &mut self,
        now: Now,
        peer: PeerId,
        carriage: Carriage,
        message: &Message<'_>,
    ) -> Option<usize> {
        let Self { context, forwarding, remotes, services, .. } = self;
        let mut paths = Paths { context, forwarding, remotes };
        paths.send_remote((now, &mut services.sender), peer, carriage, message)
    }

    /// Sends a message that is no application's to a remote endpoint over both paths.
    pub(super) fn send_to_remote(&mut self, now: Now, remote: PeerId, message: &Message<'_>) {
        let Self { context, forwarding, remotes, services, .. } = self;
        let mut paths = Paths { context, forwarding, remotes };
        paths.send_to_both((now, &mut services.sender), remote, message);
    }

    /// Numbers a message of a conversation, and sends it with the service of its flow.
    pub(super) fn send_numbered(
        &mut self,
        now: Now,
        flow: (FlowNumber, Class),
        message: &Message<'_>,
    ) {
        let Self { context, forwarding, remotes, services, .. } = self;
        services.send_numbered(&mut Paths { context, forwarding, remotes }, now, flow, message);
    }

    /// Sends a datagram in fragments, if it has to be fragmented and may be; `false` when it is to
    /// go whole.
    pub(super) fn send_cut(
        &mut self,
        now: Now,
        conversation: (PeerId, u32, Carriage),
        flow: (Option<FlowNumber>, Class),
        payload: &[u8],
    ) -> bool {
        let Self { context, forwarding, remotes, services, fragments, .. } = self;
        let paths = &mut Paths { context, forwarding, remotes };
        fragments.send((paths, services), now, conversation, flow, payload)
    }

    /// Sends a datagram of an application to the members of a head's group.
    pub(super) fn send_group(
        &mut self,
        now: Now,
        head: u32,
        conversation: (u32, Class),
        payload: &[u8],
    ) {
        let Some(mut group) = self.routes.take_group(head) else { return };
        let Self { context, forwarding, remotes, services, fragments, routes, .. } = self;
        let paths = &mut Paths { context, forwarding, remotes };
        group.send((paths, services, fragments), routes, now, conversation, payload);
        self.routes.put_group(head, group);
    }

    /// Sends a packet that an application sent into the device of route `at`, or that replies to
    /// one delivered here.
    pub(crate) fn take_packet_of_tunnel(&mut self, now: Now, at: Option<u32>, packet: &[u8]) {
        let Some((from, to)) = ip::ends(packet).map(|(from, to)| (whole(from), whole(to))) else {
            return add(&self.context.counts.refused, 1);
        };
        if let Some(at) = at {
            let meta = DatagramMeta { went_to: Some(to), ..DatagramMeta::by(from) };
            return self.take_application(now, at, meta, packet);
        }
        match self.conversations.by_preserved_source.get(&(to, from)).copied() {
            Some(id) => self.take_reply(now, id, DatagramMeta::by(from), packet),
            None => add(&self.context.counts.refused, 1),
        }
    }

    /// Sends the sender of a packet that is longer than every path takes, from a TUN device, the
    /// error with the MTU: the kernel's own MTU follows soon, and this packet is lost.
    pub(super) fn report_too_long(&mut self, now: Now, at: Option<u32>, packet: &[u8]) {
        let device = match at {
            Some(at) => self.routes.get(at).and_then(|route| route.local.tunnel()),
            None => self.tunnel.as_ref().map(|tunnel| &tunnel.device),
        };
        let device = device.map(Arc::clone);
        let (from, to) = match ip::ends(packet) {
            Some((from, to)) => (whole(from), whole(to)),
            None => return,
        };
        let of_route = |route: &Route| DatagramPaths::of(route.remote, route.carriage(), route.end);
        let of_inbound = |it: &Inbound| DatagramPaths::of(it.remote, it.carriage, it.end);
        let paths = match at {
            Some(at) => self.routes.get(at).map(of_route),
            None => self
                .conversations
                .by_preserved_source
                .get(&(to, from))
                .and_then(|id| self.conversations.inbound.get(*id))
                .map(of_inbound),
        };
        let (Some(device), Some(paths)) = (device, paths) else { return };
        let most =
            self.remotes.longest_to(now, paths).map(|most| most.saturating_sub(NUMBER_BYTES));
        let most = most.and_then(|most| u16::try_from(most).ok());
        if let Some(error) = most.and_then(|most| self.too_long(now, packet, most)) {
            let _lost = hand_over(&device, &error);
        }
    }

    /// Returns the error that reports the MTU to a packet's sender, unless the rate limit is
    /// reached.
    pub(super) fn too_long(&mut self, now: Now, packet: &[u8], most: u16) -> Option<Vec<u8>> {
        let (from, _) = ip::ends(packet)?;
        let error = ip::too_long(packet, most)?;
        self.errors.take(now.steady, from).then_some(error)
    }
}
