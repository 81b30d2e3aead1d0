//! Sends copies again that got lost on the way to the ingress relay.
//!
//! Most of the packets that coding could not recover in the paper had been lost on the source's
//! access path, 90 % of them single packets; it leaves their retransmission to others [JQ 5.2].
//! Here the relay acknowledges copies by number (`ingress::access`). A copy is sent again when a
//! later one has come, or when it is not acknowledged for a round trip and four deviations (RFC
//! 6298) and the relay's delay, as long as its packet is worth having.

use std::collections::VecDeque;

use tradewind_units::{Duration, Timestamp};

use crate::id::PacketId;
use crate::message::{Acknowledgement, Class, Service, Source};
use crate::round_trip::RoundTrip;

/// The most copies that wait for acknowledgement on one leg; older ones are given up. Chosen: 10 ms
/// of 100,000 packets a second.
const MAX_UNACKNOWLEDGED: usize = 1024;
/// The round trip of an access leg before one is measured. Source: the slowest mobile clients of
/// [JQ 5.5].
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);

/// The most times that the timeout is doubled. Chosen: to two seconds before a round trip is
/// measured, which none exceeds.
const MAX_BACKED_OFF: u32 = 4;

/// The rules for sending copies again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arq {
    /// The most times that a copy is sent again.
    pub most_resends: u8,
    /// The least time for which a copy is worth sending again. It is longer if the packet's latency
    /// budget is longer, or, without a budget, if a distant relay takes longer to report the loss
    /// and to get another copy.
    pub give_up: Duration,
    /// The delay that the relay may add to an acknowledgement.
    pub acknowledged_within: Duration,
}

impl Default for Arq {
    /// Returns the defaults. Chosen: a recovery takes some tens of milliseconds, and budgets are
    /// below 300 ms.
    fn default() -> Self {
        Self {
            most_resends: 2,
            give_up: Duration::from_millis(150),
            acknowledged_within: Duration::from_millis(20),
        }
    }
}

/// One leg.
#[derive(Debug, Clone)]
pub(crate) struct AccessLeg {
    next: u64,
    waiting: VecDeque<Waiting>,
    spare: Vec<Vec<u8>>,
    round_trip: RoundTrip,
    /// The number of times that the timeout is doubled, while the only acknowledgements are of
    /// copies that were sent again, perhaps too soon, or copies are given up.
    backed_off: u32,
    /// One beyond the highest copy that has come.
    highest_seen: u64,
    armed: Option<Timestamp>,
}

#[derive(Debug, Clone)]
struct Waiting {
    number: u64,
    packet: PacketId,
    service: Service,
    class: Class,
    payload: Vec<u8>,
    /// The latency budget of its packet, if there is one.
    worth: Option<Duration>,
    first_sent: Timestamp,
    sent: Timestamp,
    resent: u8,
    is_done: bool,
}

impl AccessLeg {
    pub(crate) fn new() -> Self {
        Self {
            next: 0,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            round_trip: RoundTrip::default(),
            backed_off: 0,
            highest_seen: 0,
            armed: None,
        }
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Keeps a copy to be sent again; returns a timer to set.
    pub(crate) fn remember(
        &mut self,
        now: Timestamp,
        number: u64,
        (source, worth): (Source<'_>, Option<Duration>),
        arq: &Arq,
    ) -> Option<Timestamp> {
        if self.waiting.len() >= MAX_UNACKNOWLEDGED {
            self.pop();
        }
        let mut payload = self.spare.pop().unwrap_or_default();
        payload.clear();
        payload.extend_from_slice(source.payload);
        self.waiting.push_back(Waiting {
            number,
            packet: source.packet,
            service: source.service,
            class: source.class,
            payload,
            worth,
            first_sent: now,
            sent: now,
            resent: 0,
            is_done: false,
        });
        self.rearm(arq)
    }

    /// Handles an acknowledgement; returns `false` when it covers copies that were never sent.
    pub(crate) fn acknowledge(&mut self, now: Timestamp, seen: Acknowledgement) -> bool {
        let highest = seen.end();
        if highest > self.next {
            return false;
        }
        let (mut sample, mut is_again) = (None, false);
        for copy in self.waiting.iter_mut().filter(|copy| !copy.is_done) {
            if seen.has(copy.number) {
                copy.is_done = true;
                // Karn: a copy that was sent twice is no measurement.
                sample = (copy.resent == 0).then(|| now.since(copy.sent)).or(sample);
                is_again |= copy.resent > 0;
            }
        }
        // RFC 6298, 5.5: without backoff, a timeout below the round trip has all copies sent twice,
        // none of which ever measures it.
        match sample {
            Some(sample) => {
                self.round_trip.learn(sample);
                self.backed_off = 0;
            }
            None if is_again => self.back_off(),
            None => {}
        }
        self.highest_seen = self.highest_seen.max(highest);
        self.clean();
        true
    }

    fn back_off(&mut self) {
        self.backed_off = (self.backed_off + 1).min(MAX_BACKED_OFF);
    }

    fn reply_timeout(&self, arq: &Arq) -> Duration {
        let usual = self.round_trip.reply_timeout(FIRST_ROUND_TRIP) + arq.acknowledged_within;
        usual * (1 << self.backed_off)
    }

    /// Calls `send` for each copy that is lost.
    pub(crate) fn resend(
        &mut self,
        now: Timestamp,
        arq: &Arq,
        mut send: impl FnMut(u64, Source<'_>, u8),
    ) {
        let (reply_timeout, mut gives_up) = (self.reply_timeout(arq), false);
        for copy in self.waiting.iter_mut().filter(|copy| !copy.is_done) {
            let worth = copy.worth.unwrap_or(reply_timeout * 2).max(arq.give_up);
            if now.since(copy.first_sent) > worth || copy.resent >= arq.most_resends {
                copy.is_done = now.since(copy.sent) >= reply_timeout;
                gives_up |= copy.is_done;
                continue;
            }
            let is_overtaken = copy.resent == 0 && copy.number < self.highest_seen;
            if !is_overtaken && now.since(copy.sent) < reply_timeout {
                continue;
            }
            copy.resent += 1;
            copy.sent = now;
            let source = Source {
                packet: copy.packet,
                service: copy.service,
                class: copy.class,
                payload: &copy.payload,
            };
            send(copy.number, source, copy.resent);
        }
        if gives_up {
            self.back_off();
        }
        self.clean();
    }

    /// Notes that a timer has fired.
    pub(crate) fn disarm(&mut self, at: Timestamp) {
        if self.armed == Some(at) {
            self.armed = None;
        }
    }

    /// Returns a timer to set, unless one is set.
    pub(crate) fn rearm(&mut self, arq: &Arq) -> Option<Timestamp> {
        if self.armed.is_some() {
            return None;
        }
        let reply_timeout = self.reply_timeout(arq);
        let due = self.waiting.iter().filter(|copy| !copy.is_done).map(|copy| copy.sent).min()?;
        self.armed = Some(due + reply_timeout);
        self.armed
    }

    fn clean(&mut self) {
        while self.waiting.front().is_some_and(|copy| copy.is_done) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(copy) = self.waiting.pop_front() {
            self.spare.push(copy.payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::FlowNumber;

    /// Sends a copy whose packet is worth having for `worth`.
    fn send(leg: &mut AccessLeg, now: Timestamp, worth: Option<Duration>) {
        let number = leg.next_number();
        let packet = PacketId { flow: FlowNumber(1), sequence: number };
        let (service, class) = (Service::Caching, Class::Normal);
        let source = Source { packet, service, class, payload: b"copy" };
        leg.remember(now, number, (source, worth), &Arq::default());
    }

    /// Returns how often one lost copy is sent again at this round trip to the relay, which
    /// acknowledges the others.
    fn lost_one_sent_again(round_trip: u64, worth: Option<Duration>) -> usize {
        let (mut leg, arq, mut again) = (AccessLeg::new(), Arq::default(), 0);
        for ms in (0..4000).step_by(10) {
            let now = Timestamp::from_nanos(ms * 1_000_000);
            send(&mut leg, now, worth);
            let come = ms.checked_sub(round_trip).map_or(0, |sent| sent / 10 + 1);
            let seen = match come {
                ..=200 => Acknowledgement::of(come, []),
                _ => Acknowledgement::of(200, (201..come).take(64)),
            };
            assert!(leg.acknowledge(now, seen));
            leg.resend(now, &arq, |lost, _, _| again += usize::from(lost == 200));
        }
        again
    }

    #[test]
    fn lost_copy_is_resent_within_budget() {
        let budget = |ms| Some(Duration::from_millis(ms));
        for round_trip in [20, 90, 150, 300] {
            assert!(lost_one_sent_again(round_trip, None) > 0, "{round_trip} ms");
        }
        assert!(lost_one_sent_again(150, budget(500)) > 0);
        assert_eq!(lost_one_sent_again(300, budget(200)), 0, "it could not come in time");
    }

    /// Returns how many copies are sent again within seconds `from` to `from + 1` of 100 a second,
    /// with the given round trips.
    fn sent_again(from: u64, round_trip: impl Fn(u64) -> u64) -> usize {
        let (mut leg, arq, mut again) = (AccessLeg::new(), Arq::default(), 0);
        for ms in (0..(from + 1) * 1000).step_by(10) {
            let now = Timestamp::from_nanos(ms * 1_000_000);
            send(&mut leg, now, None);
            // Copies sent a round trip ago are acknowledged now.
            let come = ms.checked_sub(round_trip(ms)).map_or(0, |sent| sent / 10 + 1);
            assert!(leg.acknowledge(now, Acknowledgement::of(come, [])));
            leg.resend(now, &arq, |_, _, _| again += usize::from(ms >= from * 1000));
        }
        again
    }

    #[test]
    fn longer_round_trip_is_learned() {
        for round_trip in [20, 90, 150, 300, 700] {
            assert_eq!(sent_again(4, |_| round_trip), 0, "{round_trip} ms");
        }
        assert_eq!(sent_again(8, |ms| if ms < 3000 { 20 } else { 400 }), 0, "a longer one");
        assert!(sent_again(0, |_| 150) > 0, "the first ones are");
    }
}
