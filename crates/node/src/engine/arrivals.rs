//! Packets that arrive for flows and conversations, in their order; what the engine routes between
//! the state machines of services and the conversations.

use tradewind_config::packet::Chosen;
use tradewind_packet::event::{Arrival, Event};
use tradewind_packet::fragment::{Joined, Piece};
use tradewind_packet::id::{FlowNumber, PacketId};
use tradewind_packet::label::LabelEntry;
use tradewind_packet::message::{Carriage, Message};
use tradewind_packet::session::{Now, PeerId};
use tradewind_plan::service::RelayUsage;
use tradewind_units::Duration;

use super::Engine;
use super::accounting::Role;
use super::endpoints::{Carrier, Choice};
use super::long::DEFAULT_WAIT;
use super::paths::Paths;
use super::reports::Reporter;
use super::services::Reopened;
use super::serving::AskedFor;
use crate::counts::add;

/// Time that a packet is waited for before a round trip is measured. Chosen: that of loss
/// detection.
const FIRST_HOLD: Duration = Duration::from_millis(100);

impl Engine {
    /// Handles a neighbour's request to serve a flow along a path, or a relay's report that it
    /// serves one whose path ends here.
    pub(super) fn take_order(&mut self, now: Now, from: PeerId, order: AskedFor) {
        let AskedFor { label, flow, service, .. } = order;
        let Self { context, forwarding, remotes, services, serving, neighbours, .. } = self;
        match forwarding.labels.along(now.steady, from, label) {
            Some(LabelEntry { place, next: Some(next) }) => {
                serving.serve((context, forwarding), now, (from, order), (place, next));
            }
            Some(LabelEntry { place, next: None }) => {
                let around = (&mut Paths { context, forwarding, remotes }, &neighbours.legs);
                services.served_to_here(around, now, (label, flow, service), place);
            }
            None => add(&context.counts.dropped, 1),
        }
    }

    /// Handles a report of a relay on the path of `label` on what it has sent for a flow.
    pub(super) fn bill(
        &mut self,
        now: Now,
        from: PeerId,
        label: u32,
        (flow, is_egress, bytes, nano_usd): (FlowNumber, bool, u64, u64),
    ) {
        match self.forwarding.labels.along(now.steady, from, label) {
            Some(LabelEntry { next: Some((next, label)), .. }) => {
                self.context
                    .send_message(next, &Message::Bill { label, flow, is_egress, bytes, nano_usd });
            }
            Some(LabelEntry { next: None, .. }) => {
                let role = if is_egress { Role::Egress } else { Role::Ingress };
                let bill = (role, RelayUsage { bytes, nano_usd });
                let relay = (from, self.context.sessions.identity_of(from));
                self.services.ends.take_bill(now.steady, relay, flow, bill);
                self.routes.take_bill(&self.remotes, now.steady, (label, flow), bill);
            }
            None => add(&self.context.counts.dropped, 1),
        }
    }

    /// Handles a message between a group's sender and its members.
    pub(super) fn take_group_message(&mut self, now: Now, peer: PeerId, message: &Message<'_>) {
        match *message {
            // The flow is known once a packet of it has come.
            Message::GroupKey { flow, epoch, key }
                if self.services.ends.remote_of(flow) == Some(peer) =>
            {
                let is_served = self.services.learn_key(peer, (flow, epoch, key));
                self.send_to_remote(now, peer, &Message::GroupKnown { flow, epoch, is_served });
            }
            Message::GroupKnown { flow, epoch, is_served } if self.routes.is_member(flow, peer) => {
                if let Some(group) = self.routes.group_of(flow) {
                    group.note_confirmed(now, peer, epoch, is_served);
                }
            }
            _ => add(&self.context.counts.dropped, 1),
        }
    }

    /// Passes a service's message to its state machine.
    pub(super) fn take_service(&mut self, now: Now, from: PeerId, message: Message<'_>) {
        let Self { context, services, serving, conversations, .. } = self;
        let inbound_ids = &conversations.inbound_ids;
        if context.has_waited_long() && services.is_for_relay(&message) {
            add(&context.counts.stale, 1);
        } else if services.takes(&message) {
            services.handle_message(context, inbound_ids, now, (from, message));
        } else {
            serving.handle_message(context, now, from, message);
        }
    }

    /// Handles a duplicate that came over the Internet.
    pub(super) fn note_duplicate(&mut self, now: Now, peer: PeerId, message: &[u8]) {
        if let Ok(Message::Numbered { packet, message }) = Message::parse(message)
            && let Some(conversation) = self.services.note_duplicate(now, peer, (packet, message))
        {
            self.conversations.marks.take_back((peer, conversation), packet);
        }
    }

    /// Runs the state machines' timers.
    pub(crate) fn time_out(&mut self, now: Now) {
        self.serving.handle_timeout(now);
        if self.services.handle_timeout(now) {
            self.deliver_ready(now);
        }
    }

    /// Sends the output of the state machines, delivers recovered packets, and counts.
    pub(super) fn drive(&mut self, now: Now) {
        self.services.send_packets(&mut self.context, now);
        self.serving.drive(&mut self.context, now);
        self.services.send_reports(&mut self.context);
        self.hand_over_recovered(now);
        while let Some(event) = self.services.poll_event(&self.context) {
            if let Event::CopySent { packet, resent } = event
                && let Some(group) = self.routes.group_of(packet.flow)
            {
                group.note_copy(resent);
            }
        }
    }

    /// Delivers recovered packets to their applications.
    fn hand_over_recovered(&mut self, now: Now) {
        let mut opened = std::mem::take(&mut self.original);
        while let Some(reopened) = self.services.poll_recovered(&mut self.context, now, &mut opened)
        {
            match reopened {
                Reopened::OfPeer { remote, packet, message } => {
                    let recovered = (remote, packet, message);
                    self.conversations.owe_mark(&self.routes, now, recovered);
                    self.converse(now, remote, packet, message);
                }
                Reopened::OfGroup { remote, packet, message } => {
                    self.converse(now, remote, packet, message);
                }
                Reopened::Useless => {}
            }
        }
        self.original = opened;
    }

    /// Handles a numbered message.
    pub(super) fn take_numbered(
        &mut self,
        now: Now,
        peer: PeerId,
        (packet, message): (PacketId, &[u8]),
        arrival: Arrival,
    ) {
        if self.services.has_come(peer, packet) {
            return add(&self.context.counts.dropped, 1);
        }
        let Some((conversation, carriage)) = self.converse(now, peer, packet, message) else {
            return add(&self.context.counts.dropped, 1);
        };
        match self.services.ends.remote_of(packet.flow) {
            Some(remote) if remote == peer => {}
            Some(_) => return add(&self.context.counts.dropped, 1),
            None if self.bind(now, peer, conversation, carriage, packet.flow) => {}
            None => return,
        }
        if carriage.is_some() {
            let outgoing = self.services.ends.outgoing_of(packet.flow);
            let Self { context, forwarding, remotes, routes, services, conversations, .. } = self;
            let ends = &services.ends;
            let reporter = Reporter { context, forwarding, remotes, routes, ends };
            let begun = || reporter.tally_of(outgoing);
            conversations.carry_replies_by((peer, conversation), outgoing, begun);
        }
        if !self.original.is_empty() {
            let at = (&self.context, &self.conversations.inbound_ids);
            self.services.note_arrival(at, now, (packet, arrival), &self.original);
        }
    }

    /// Delivers the content of a numbered message to its application. Returns its conversation, and
    /// the carriage if the message names it.
    pub(super) fn converse(
        &mut self,
        now: Now,
        peer: PeerId,
        packet: PacketId,
        message: &[u8],
    ) -> Option<(u32, Option<Carriage>)> {
        match Message::parse(message) {
            Ok(
                message @ (Message::Datagram { conversation, .. }
                | Message::Fragment { conversation, .. }),
            ) => {
                self.deliver_ordered(now, peer, packet, &message);
                Some((conversation, None))
            }
            Ok(Message::First { conversation, carriage, to, from, payload }) => {
                if self.begin_inbound(now, peer, (conversation, carriage, to), from) {
                    let message = Message::Datagram { conversation, payload };
                    self.deliver_ordered(now, peer, packet, &message);
                }
                Some((conversation, Some(carriage)))
            }
            _ => None,
        }
    }

    /// Binds a new incoming flow to the end of its conversation.
    fn bind(
        &mut self,
        now: Now,
        peer: PeerId,
        conversation: u32,
        carriage: Option<Carriage>,
        incoming: FlowNumber,
    ) -> bool {
        let carriage = carriage.or_else(|| self.conversations.carriage_of(peer, conversation));
        let end = self.conversations.end_of(&self.routes, peer, conversation);
        let ends_here = self.conversations.ends_here(peer, conversation);
        let Self { context, forwarding, remotes, services, neighbours, .. } = self;
        let (paths, legs) = (&mut Paths { context, forwarding, remotes }, &neighbours.legs);
        let outgoing = match (end, carriage) {
            (Some(outgoing), _) => Some(outgoing),
            (None, Some(carriage)) if ends_here => {
                let chosen = paths.context.config.copying.replies.as_ref();
                let carrier = match chosen {
                    None => Carrier::of(carriage.service),
                    Some(_) => Carrier::Machines,
                };
                let carried = (peer, carriage, Chosen::copies(chosen), carrier);
                services.new_end((paths, legs), now, carried, Choice::Followed)
            }
            _ => None,
        };
        let Some(outgoing) = outgoing else { return false };
        if !services.bind(paths, peer, (incoming, outgoing)) {
            return false;
        }
        // The packets that still waited of the previous flow.
        self.deliver_ready(now);
        let Self { context, forwarding, remotes, services, neighbours, .. } = self;
        let around = (&mut Paths { context, forwarding, remotes }, &neighbours.legs);
        services.take_expected(around, now, peer, (incoming, outgoing));
        true
    }

    /// Delivers the datagram, or the fragment, of a conversation, in its turn where its flow is in
    /// order.
    pub(super) fn deliver_ordered(
        &mut self,
        now: Now,
        peer: PeerId,
        packet: PacketId,
        message: &Message<'_>,
    ) {
        let (Message::Datagram { conversation, .. } | Message::Fragment { conversation, .. }) =
            message
        else {
            return;
        };
        let has_order = self.services.ends.remote_of(packet.flow) == Some(peer)
            && self
                .conversations
                .carriage_of_any(&self.routes, peer, *conversation)
                .is_some_and(|it| it.in_order);
        let key = (peer, packet.flow);
        if !has_order || self.services.order.pass(key, packet.sequence) {
            return self.deliver_message(now, peer, message);
        }
        let remote = self.remotes.get(&peer);
        let recovery_deadline = remote
            .and_then(|remote| self.services.ends.recovery_deadline(now, packet.flow, remote));
        let mut bytes = std::mem::take(&mut self.context.scratch);
        bytes.clear();
        message.write(&mut bytes);
        let recovery_deadline = recovery_deadline.unwrap_or(FIRST_HOLD);
        self.services.order.add(now.steady, key, (packet.sequence, &bytes), recovery_deadline);
        self.context.scratch = bytes;
        self.deliver_ready(now);
    }

    /// Delivers packets that no longer wait for others.
    pub(super) fn deliver_ready(&mut self, now: Now) {
        for released in self.services.order.take_ready() {
            if let Ok(message) = Message::parse(&released.packet) {
                self.deliver_message(now, released.owner, &message);
            }
        }
        let waited = self.services.order.waited();
        self.context.counts.reordered.store(waited, std::sync::atomic::Ordering::Relaxed);
    }

    /// Delivers packets that wait for their turn in the flow of a conversation that ends here, and
    /// is over.
    pub(super) fn deliver_waiting(&mut self, now: Now, id: u32) {
        let Some(inbound) = self.conversations.inbound.get(id).filter(|it| it.carriage.in_order)
        else {
            return;
        };
        let remote = inbound.remote;
        let incoming = inbound.end.and_then(|end| self.services.ends.incoming_of(end));
        if let Some(incoming) = incoming {
            self.services.order.end_flow(remote, incoming);
            self.deliver_ready(now);
        }
    }

    fn deliver_message(&mut self, now: Now, peer: PeerId, message: &Message<'_>) {
        match message {
            Message::Datagram { conversation, payload } => {
                self.deliver(now, peer, *conversation, payload);
            }
            Message::Fragment { conversation, piece } => {
                self.take_piece(now, peer, *conversation, *piece);
            }
            _ => {}
        }
    }

    /// Handles a fragment, and delivers its datagram once it is complete.
    pub(super) fn take_piece(
        &mut self,
        now: Now,
        peer: PeerId,
        conversation: u32,
        piece: Piece<'_>,
    ) {
        let Some(carriage) = self.conversations.carriage_of_any(&self.routes, peer, conversation)
        else {
            self.conversations.notify_if_released(&mut self.context, peer, conversation);
            return add(&self.context.counts.dropped, 1);
        };
        let wait = carriage.worth().unwrap_or(DEFAULT_WAIT);
        match self.fragments.add(now.steady, (peer, conversation), piece, wait) {
            Joined::Whole(datagram) => {
                add(&self.context.counts.joined, 1);
                self.deliver(now, peer, conversation, &datagram);
            }
            Joined::Waits => {}
            Joined::Useless => add(&self.context.counts.dropped, 1),
        }
    }
}

#[cfg(test)]
mod tests;
