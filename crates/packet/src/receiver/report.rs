//! Periodic messages of a receiver: reports on flows, and keepalives.

use tradewind_units::Timestamp;

use super::Receiver;
use super::state::State;
use crate::event::{DropReason, Event};
use crate::id::Peer;
use crate::message::{Feedback, Message};

/// The counts of the next report to the sender.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) in_time: u64,
    pub(super) late: u64,
    pub(super) lost: u64,
    pub(super) lost_by_internet: u64,
    /// Packets that were counted as lost by the Internet, and have come over it after all.
    pub(super) undone: u64,
    /// Recovered from the cache, in-stream, cross-stream.
    pub(super) recovered: [u64; 3],
}

impl Receiver {
    /// Sends reports on flows since the last report to their senders.
    pub(super) fn report(&mut self) {
        for (number, state) in &mut self.flows {
            let Counts { in_time, late, lost, lost_by_internet, undone, recovered } =
                std::mem::take(&mut state.counts);
            // Corrections beyond this interval's losses are subtracted from the next interval.
            state.counts.undone = undone.saturating_sub(lost_by_internet);
            let lost_by_internet = lost_by_internet.saturating_sub(undone);
            let expected = in_time + late + lost;
            if expected > 0 {
                let lost_by_internet = lost_by_internet.min(expected);
                let flow = *number;
                let feedback =
                    Feedback { flow, expected, in_time, late, lost_by_internet, recovered };
                self.outbox.send(state.flow.sender, &Message::Feedback(feedback));
            }
        }
    }

    pub(super) fn send_keepalives(&mut self, now: Timestamp) {
        let mut peers: Vec<Peer> = self.flows.values().filter_map(|s| s.flow.egress).collect();
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            let nonce = now.as_nanos();
            self.outbox.send(peer, &Message::Keepalive { is_answer: false, nonce });
        }
    }

    pub(super) fn take_keepalive(
        &mut self,
        now: Timestamp,
        from: Peer,
        is_answer: bool,
        nonce: u64,
    ) -> Result<(), DropReason> {
        let is_known = |state: &State| state.flow.sender == from || state.flow.egress == Some(from);
        if !self.flows.values().any(is_known) {
            return Err(DropReason::WrongPeer);
        }
        if is_answer {
            let round_trip = now.since(Timestamp::from_nanos(nonce));
            self.outbox.emit(Event::Alive { peer: from, round_trip });
        } else {
            self.outbox.send(from, &Message::Keepalive { is_answer: true, nonce });
        }
        Ok(())
    }
}
