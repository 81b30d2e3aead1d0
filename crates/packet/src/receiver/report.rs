//! Periodic messages of a receiver: reports on flows, and keepalives.

use tradewind_units::Timestamp;

use super::Receiver;
use super::state::State;
use crate::event::{DropReason, Event};
use crate::id::{FlowNumber, Peer};
use crate::message::{Feedback, Message, Report};
use crate::outbox::Outbox;

/// The counts since the last report to the sender.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) in_time: u64,
    pub(super) late: u64,
    pub(super) lost: u64,
    pub(super) lost_by_internet: u64,
    /// Packets that were counted as lost, and have come after all.
    pub(super) found: u64,
    /// Packets that were counted as lost by the Internet, and have come over it after all.
    pub(super) undone: u64,
    /// Recovered from the cache, in-stream, cross-stream.
    pub(super) recovered: [u64; 3],
}

/// Reports without news that follow one with news, so that its loss matters less. Chosen: of four
/// at a loss of 10 %, one in ten thousand loses all.
const REPEATS: u32 = 3;

/// The state of a flow's reports to its sender.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reported {
    /// The time of the first packet.
    pub(super) begun: Option<Timestamp>,
    /// The sums of the newest report.
    sums: Option<Feedback>,
    /// Repetitions of it that are left.
    repeats: u32,
}

impl Counts {
    /// Returns what has been counted since the last call.
    fn take(&mut self, flow: FlowNumber) -> Feedback {
        let Self { in_time, late, lost, lost_by_internet, found, undone, recovered } =
            std::mem::take(self);
        // Corrections beyond this interval's losses are subtracted from the next interval.
        self.found = found.saturating_sub(lost);
        self.undone = undone.saturating_sub(lost_by_internet);
        let expected = in_time + late + lost.saturating_sub(found);
        let lost_by_internet = lost_by_internet.saturating_sub(undone).min(expected);
        Feedback { flow, expected, in_time, late, lost_by_internet, recovered }
    }
}

impl State {
    /// Sends a report to the flow's sender; an event if it has news.
    pub(super) fn report(&mut self, flow: FlowNumber, outbox: &mut Outbox) {
        let news = self.counts.take(flow);
        let reported = &mut self.reported;
        if news.expected > 0 {
            let sums = reported.sums.map_or(news, |sums| sums.plus(&news));
            (reported.sums, reported.repeats) = (Some(sums), REPEATS);
            outbox.emit(Event::Feedback(news));
        } else if let Some(repeats) = reported.repeats.checked_sub(1) {
            reported.repeats = repeats;
        } else {
            return;
        }
        if let (Some(begun), Some(sums)) = (reported.begun, reported.sums) {
            let report = Report { begun: begun.as_nanos(), sums };
            outbox.send(self.flow.sender, &Message::Feedback(report));
        }
    }
}

impl Receiver {
    /// Sends reports on all flows to their senders: at intervals, and before the receiver ends.
    pub fn report(&mut self) {
        for (number, state) in &mut self.flows {
            state.report(*number, &mut self.outbox);
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
