//! Helpers that answer late or not at all: the paper's stragglers, for whose answers a recovery may
//! wait for seconds [JQ 5.2].

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tradewind_packet::id::{PacketId, Peer};
use tradewind_packet::message::Message;
use tradewind_units::{Duration, Timestamp};

use crate::harness::Random;

/// Behaviour of helpers; by default they answer at once.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Helpers {
    /// Share of answers that are late or never sent.
    pub(super) straggling: f64,
    /// Share of these that are never sent.
    pub(super) silent: f64,
    /// Delays of the others, in milliseconds: the least and the largest, equal factors equally
    /// likely.
    pub(super) late_ms: [f64; 2],
}

impl Helpers {
    /// Returns the delay of an answer with this packet; `None` when it is never sent. It depends on
    /// the seed and the packet alone, so that the same answers are late however many repair packets
    /// there are.
    fn delay(self, seed: u64, packet: PacketId) -> Option<Duration> {
        let flow = packet.flow.0.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = Random::new(seed ^ flow ^ packet.sequence.rotate_left(20));
        if random.fraction() >= self.straggling {
            return Some(Duration::ZERO);
        }
        if random.fraction() < self.silent {
            return None;
        }
        let [least, most] = self.late_ms;
        Some(Duration::from_secs_f64(random.log_uniform(least, most) / 1e3))
    }
}

/// A delayed answer: its time, its order among those of the same time, its host, its receiver, and
/// its bytes.
type Held = Reverse<(Timestamp, u64, usize, Peer, Vec<u8>)>;

/// Answers that are held back.
pub(super) struct Stragglers {
    helpers: Helpers,
    seed: u64,
    count: u64,
    held: BinaryHeap<Held>,
}

impl Stragglers {
    pub(super) fn new(helpers: Helpers, seed: u64) -> Self {
        Self { helpers, seed, count: 0, held: BinaryHeap::new() }
    }

    /// Holds back a helper's answer that is not to be sent now; returns whether it did.
    pub(super) fn hold_back(
        &mut self,
        now: Timestamp,
        host: usize,
        to: Peer,
        bytes: &[u8],
    ) -> bool {
        if self.helpers.straggling <= 0.0 {
            return false;
        }
        let Ok(Message::HelpAnswer { request, .. }) = Message::parse(bytes) else { return false };
        match self.helpers.delay(self.seed, request.packet) {
            Some(Duration::ZERO) => false,
            Some(delay) => {
                self.count += 1;
                self.held.push(Reverse((now + delay, self.count, host, to, bytes.to_vec())));
                true
            }
            None => true,
        }
    }

    /// Returns the time of the next one.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.held.peek().map(|Reverse((at, ..))| *at)
    }

    /// Returns an answer that is due by `now`: its host, its receiver, and its bytes.
    pub(super) fn pop(&mut self, now: Timestamp) -> Option<(usize, Peer, Vec<u8>)> {
        self.due().filter(|at| *at <= now)?;
        let Reverse((_, _, host, to, bytes)) = self.held.pop()?;
        Some((host, to, bytes))
    }
}

#[cfg(test)]
mod tests {
    use tradewind_packet::id::FlowNumber;

    use super::*;

    #[test]
    fn stated_shares_of_answers_are_late_or_never_sent() {
        let helpers = Helpers { straggling: 0.3, silent: 0.5, late_ms: [20.0, 2000.0] };
        let packet = |sequence| PacketId { flow: FlowNumber(sequence % 7), sequence };
        let delays: Vec<_> = (0..10_000).map(|n| helpers.delay(3, packet(n))).collect();
        let share = |is_such: &dyn Fn(&Option<Duration>) -> bool| {
            delays.iter().filter(|delay| is_such(delay)).count() as f64 / delays.len() as f64
        };
        let silent = share(&|delay| delay.is_none());
        let prompt = share(&|delay| *delay == Some(Duration::ZERO));
        assert!((0.13..0.17).contains(&silent) && (0.67..0.73).contains(&prompt), "{silent}");
        let late = delays.iter().flatten().filter(|delay| **delay > Duration::ZERO);
        let bounds = [Duration::from_millis(20), Duration::from_millis(2000)];
        assert!(late.into_iter().all(|delay| (bounds[0]..=bounds[1]).contains(delay)));
        assert_eq!(helpers.delay(3, packet(5)), helpers.delay(3, packet(5)));
    }
}
