//! Lends packets to the egress relay, which solves a block of another receiver with them.

use std::collections::BTreeMap;

use tradewind_units::Timestamp;

use super::config::ReceiverConfig;
use super::state::State;
use crate::budget::Budget;
use crate::event::{DropReason, Event};
use crate::id::{PacketId, Peer, Tenant};
use crate::message::{HelpRequest, Message};
use crate::outbox::Outbox;
use crate::store::Store;
use crate::window::Seen;

/// The most requests for packets that have not come yet. Chosen: those of a second of outage of
/// another flow, in blocks of ten.
const MAX_WAITING: usize = 1024;
/// The one owner of all that a receiver keeps.
const OWN: Tenant = Tenant(0);

/// The packets to lend, and the requests for them.
#[derive(Debug, Clone)]
pub(super) struct Lender {
    pub(super) packets: Store,
    lends: Budget,
    /// Requests for packets that are still on their way here: another receiver's path may be
    /// shorter. They wait until the time beside them.
    waiting: BTreeMap<PacketId, (HelpRequest, Timestamp)>,
}

impl Lender {
    pub(super) fn new(config: &ReceiverConfig) -> Self {
        let (packets, lends) = (Store::new(config.lend), Budget::new(config.lends));
        Self { packets, lends, waiting: BTreeMap::new() }
    }

    /// Returns how many requests wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Handles a request of `egress` for a packet of the flow of `state`.
    pub(super) fn take_request(
        &mut self,
        now: Timestamp,
        state: &State,
        (egress, request): (Peer, HelpRequest),
        outbox: &mut Outbox,
    ) -> Result<(), DropReason> {
        let packet = request.packet;
        if !self.lends.take(now, 1) {
            return Err(DropReason::OverBudget);
        }
        if let Some(payload) = self.packets.get(now, packet) {
            outbox.send(egress, &Message::HelpAnswer { request, payload });
            outbox.emit(Event::Helped(packet));
            return Ok(());
        }
        if state.window.look(packet.sequence) != Seen::New {
            return Err(DropReason::TooOld);
        }
        if self.waiting.len() >= MAX_WAITING {
            self.waiting.retain(|_, (_, until)| *until > now);
            if self.waiting.len() >= MAX_WAITING {
                return Err(DropReason::TableFull);
            }
        }
        self.waiting.insert(packet, (request, now + state.flow.round_trip));
        Ok(())
    }

    /// Keeps a packet that has come, and lends it to `egress` if that has requested it before.
    pub(super) fn keep(
        &mut self,
        now: Timestamp,
        (packet, payload): (PacketId, &[u8]),
        egress: Option<Peer>,
        outbox: &mut Outbox,
    ) {
        self.packets.insert(now, OWN, packet, payload);
        if self.waiting.is_empty() {
            return;
        }
        let Some((request, until)) = self.waiting.remove(&packet) else { return };
        if let Some(egress) = egress.filter(|_| now <= until) {
            outbox.send(egress, &Message::HelpAnswer { request, payload });
            outbox.emit(Event::Helped(packet));
        }
    }
}
