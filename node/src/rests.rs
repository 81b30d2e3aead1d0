//! Moments of rest in which datagrams gather.
//!
//! To wake, to ask for datagrams and to send them takes most of what single datagrams cost, and little more for several of them. A worker that is woken for each
//! spends its CPU on that, and has neighbours wake as often. Where datagrams follow each other closely it therefore rests for a moment before it waits for the next,
//! as network cards moderate their interrupts.

use tradewind_units::{Duration, Timestamp};

/// How long a rest is. Chosen: as relays of streams rest, and a thousandth of the latency budgets that packets have.
pub(crate) const REST: Duration = Duration::from_micros(50);

/// From one time that nothing was left to the next: longer ones do not follow each other closely. Chosen: half a rest.
const CLOSE: Duration = Duration::from_micros(25);

/// Messages that gather in a rest at least, or it was in vain. Chosen: below, waking costs less than a hundredth of a core's time for each thousand.
const FEW: usize = 4;

/// When a worker rests.
#[derive(Debug)]
pub(crate) struct Rests {
    /// When it had done all before.
    done: Timestamp,
    has_rested: bool,
}

impl Rests {
    pub(crate) const fn new(now: Timestamp) -> Self {
        Self { done: now, has_rested: false }
    }

    /// Whether to rest now, after so many messages were fetched; one that found as many as it can fetch is behind, and goes on.
    pub(crate) fn is_due(&mut self, now: Timestamp, fetched: usize, most: usize) -> bool {
        let is_close = match self.has_rested {
            true => fetched >= FEW,
            false => fetched > 0 && now.since(self.done) <= CLOSE,
        };
        self.has_rested = is_close && fetched < most;
        self.done = now;
        self.has_rested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn rests_are_due_between_datagrams_that_follow_each_other_closely() {
        let mut rests = Rests::new(at(0));
        assert!(!rests.is_due(at(100), 1, 32), "a datagram by itself");
        assert!(!rests.is_due(at(126), 1, 32));
        assert!(!rests.is_due(at(130), 0, 32), "nothing but a timer");
        assert!(rests.is_due(at(150), 1, 32));
    }

    #[test]
    fn they_go_on_while_enough_gathers() {
        let mut rests = Rests::new(at(0));
        assert!(rests.is_due(at(10), 1, 32));
        assert!(rests.is_due(at(70), 4, 32));
        assert!(!rests.is_due(at(130), 3, 32), "the rest was in vain");
        assert!(!rests.is_due(at(170), 1, 32));
    }

    #[test]
    fn who_is_behind_does_not_rest() {
        let mut rests = Rests::new(at(0));
        assert!(!rests.is_due(at(10), 32, 32));
        assert!(rests.is_due(at(20), 31, 32));
        assert!(!rests.is_due(at(80), 32, 32));
    }
}
