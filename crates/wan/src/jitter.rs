//! Extra delay that varies continuously between zero and its bound.
//!
//! A path's delay varies because queues along it fill and drain, so neighbouring segments see
//! nearly the same extra delay. A fresh draw for each segment would, once order is kept, become a
//! constant at high rates. Here the extra delay is a function of time alone: a target, uniform from
//! zero to the bound, is drawn for each period, and the delay is interpolated linearly between
//! targets. It never falls faster than time passes, so order is kept without a clamp.

use crate::{chance::mix, segment::Nanos};

/// Shortest time between two targets. Chosen: about the time in which queues of wide-area routers
/// drain.
const MIN_PERIOD: Nanos = 10_000_000;

/// The varying delay of one link.
#[derive(Debug, Clone)]
pub(crate) struct Jitter {
    bound: Nanos,
    period: Nanos,
    key: u64,
    /// The period of the last query, with its targets at begin and end.
    period_index: u64,
    targets: (Nanos, Nanos),
}

impl Jitter {
    /// Creates a jitter of up to `bound`, or `None` for zero; `key` makes it specific to the link.
    pub(crate) fn new(bound: Nanos, key: u64) -> Option<Self> {
        if bound == 0 {
            return None;
        }
        let period = MIN_PERIOD.max(bound.saturating_mul(2));
        let mut jitter = Self { bound, period, key, period_index: 0, targets: (0, 0) };
        jitter.targets = (jitter.target(0), jitter.target(1));
        Some(jitter)
    }

    /// Returns the extra delay of a segment sent at `now`.
    pub(crate) fn at(&mut self, now: Nanos) -> Nanos {
        let index = now / self.period;
        if index != self.period_index {
            self.period_index = index;
            self.targets = (self.target(index), self.target(index.wrapping_add(1)));
        }
        let (from, to) = (i128::from(self.targets.0), i128::from(self.targets.1));
        let passed = i128::from(now % self.period);
        let wandered = from + (to - from) * passed / i128::from(self.period);
        u64::try_from(wandered).expect("a mean of two targets is between them")
    }

    fn target(&self, index: u64) -> Nanos {
        let random = mix(self.key ^ mix(index));
        let scaled = (u128::from(random) * (u128::from(self.bound) + 1)) >> 64;
        u64::try_from(scaled).expect("a share of a u64 is one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extra_delay_stays_in_its_bounds_and_uses_them() {
        let mut jitter = Jitter::new(5_000_000, 3).unwrap();
        let delays: Vec<Nanos> = (0..20_000).map(|i| jitter.at(i * 1_000_000)).collect();
        assert!(delays.iter().all(|delay| *delay <= 5_000_000));
        assert!(delays.iter().any(|delay| *delay < 250_000));
        assert!(delays.iter().any(|delay| *delay > 4_750_000));
        let mean = delays.iter().sum::<Nanos>() / 20_000;
        assert!((2_300_000..2_700_000).contains(&mean), "{mean}");
    }

    #[test]
    fn the_extra_delay_never_falls_faster_than_time_passes() {
        let mut jitter = Jitter::new(80_000_000, 9).unwrap();
        let mut last = 0;
        for now in (0..3_000_000_000).step_by(7_919) {
            let arrival = now + jitter.at(now);
            assert!(arrival >= last);
            last = arrival;
        }
    }
}
