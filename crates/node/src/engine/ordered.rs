//! In-order delivery of flows: packets that come early wait here.

use tradewind_packet::id::PacketId;
use tradewind_packet::message::Message;
use tradewind_packet::session::{Now, PeerId};
use tradewind_units::Duration;

use super::Engine;

/// Time that a packet is waited for before a round trip is measured. Chosen: that of loss
/// detection.
const FIRST_HOLD: Duration = Duration::from_millis(100);

impl Engine {
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
            && self.carriage_of_any(peer, *conversation).is_some_and(|it| it.in_order);
        let key = (peer, packet.flow);
        if !has_order || self.order.pass(key, packet.sequence) {
            return self.deliver_message(now, peer, message);
        }
        let remote = self.remotes.get(&peer);
        let recovery_deadline = remote
            .and_then(|remote| self.services.ends.recovery_deadline(now, packet.flow, remote));
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        message.write(&mut bytes);
        let recovery_deadline = recovery_deadline.unwrap_or(FIRST_HOLD);
        self.order.add(now.steady, key, (packet.sequence, &bytes), recovery_deadline);
        self.scratch = bytes;
        self.deliver_ready(now);
    }

    /// Delivers packets that no longer wait for others.
    pub(super) fn deliver_ready(&mut self, now: Now) {
        for released in self.order.take_ready() {
            if let Ok(message) = Message::parse(&released.packet) {
                self.deliver_message(now, released.owner, &message);
            }
        }
        let waited = self.order.waited();
        self.counts.reordered.store(waited, std::sync::atomic::Ordering::Relaxed);
    }

    /// Delivers packets that wait for their turn in the flow of a conversation that ends here, and
    /// is over.
    pub(super) fn deliver_waiting(&mut self, now: Now, id: u32) {
        let Some(inbound) = self.inbound.get(id).filter(|it| it.carriage.in_order) else { return };
        let remote = inbound.remote;
        let incoming = inbound.end.and_then(|end| self.services.ends.incoming_of(end));
        if let Some(incoming) = incoming {
            self.order.end_flow(remote, incoming);
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
}

#[cfg(test)]
mod tests;
