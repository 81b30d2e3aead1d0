//! Lends packets to the egress relay, which solves a block of another receiver with them.

use std::collections::BTreeMap;

use tradewind_units::Timestamp;

use super::Receiver;
use crate::event::{DropReason, Event};
use crate::id::{PacketId, Peer};
use crate::message::{HelpRequest, Message};
use crate::window::Seen;

/// The most requests for packets that have not come yet. Chosen: those of a second of outage of
/// another flow, in blocks of ten.
const MOST_WAITING: usize = 1024;

/// Requests for packets that are still on their way here: another receiver's path may be shorter.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting {
    requests: BTreeMap<PacketId, (HelpRequest, Timestamp)>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }
}

impl Receiver {
    pub(super) fn take_help_request(
        &mut self,
        now: Timestamp,
        from: Peer,
        request: HelpRequest,
    ) -> Result<(), DropReason> {
        let packet = request.packet;
        let state = self.flows.get(&packet.flow).ok_or(DropReason::UnknownFlow)?;
        if state.flow.egress != Some(from) {
            return Err(DropReason::WrongPeer);
        }
        let (round_trip, seen) = (state.flow.round_trip, state.window.look(packet.sequence));
        if !self.lends.take(now, 1) {
            return Err(DropReason::OverBudget);
        }
        if let Some(payload) = self.lent.get(now, packet) {
            self.outbox.send(from, &Message::HelpAnswer { request, payload });
            self.outbox.emit(Event::Helped(packet));
            return Ok(());
        }
        if seen != Seen::New {
            return Err(DropReason::TooOld);
        }
        if self.waiting.requests.len() >= MOST_WAITING {
            self.waiting.requests.retain(|_, (_, until)| *until > now);
            if self.waiting.requests.len() >= MOST_WAITING {
                return Err(DropReason::TableFull);
            }
        }
        self.waiting.requests.insert(packet, (request, now + round_trip));
        Ok(())
    }

    /// Lends a packet that has come, if it was requested before.
    pub(super) fn lend_if_waiting(&mut self, now: Timestamp, packet: PacketId, payload: &[u8]) {
        if self.waiting.requests.is_empty() {
            return;
        }
        let Some((request, until)) = self.waiting.requests.remove(&packet) else { return };
        let egress = self.flows.get(&packet.flow).and_then(|state| state.flow.egress);
        if let Some(egress) = egress.filter(|_| now <= until) {
            self.outbox.send(egress, &Message::HelpAnswer { request, payload });
            self.outbox.emit(Event::Helped(packet));
        }
    }
}
