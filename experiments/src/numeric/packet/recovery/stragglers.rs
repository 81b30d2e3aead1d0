//! Helpers that answer late or not at all: the paper's stragglers, on some of whose answers a recovery waits for seconds [JQ 5.2].

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tradewind_packet::id::{PacketId, Peer};
use tradewind_packet::message::Message;
use tradewind_units::{Duration, Timestamp};

use crate::numeric::Random;

/// How helpers answer; at once, by default.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Helpers {
    /// Share of answers that leave late or never.
    pub(super) straggling: f64,
    /// Share of these that never leave.
    pub(super) silent: f64,
    /// How late the others leave, in milliseconds: the least and the most, equal factors equally likely.
    pub(super) late_ms: [f64; 2],
}

impl Helpers {
    /// How much later an answer with this packet leaves; `None` when never. It depends on the seed and the packet alone, so that the
    /// same answers are late however many repair packets there are.
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

/// An answer that leaves later: when, in which order among those of the same time, from which host to whom, and its bytes.
type Held = Reverse<(Timestamp, u64, usize, Peer, Vec<u8>)>;

/// Answers that have not left yet.
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

    /// Takes a helper's answer that is not to leave now; whether it has.
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

    /// When the next one leaves.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.held.peek().map(|Reverse((at, ..))| *at)
    }

    /// One that leaves by `now`: from which host, to whom, and its bytes.
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
    fn such_shares_of_answers_are_late_or_never_leave() {
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
