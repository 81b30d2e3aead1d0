//! Deliveries that are held back on purpose, to see what late deliveries do to figures.

use std::collections::VecDeque;

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tradewind_units::{Duration, Timestamp};

use crate::options::AddedLateness;

/// Deliveries that are due but held back, in order.
pub(crate) struct Delays<D> {
    late: AddedLateness,
    generator: Pcg64Mcg,
    held: VecDeque<(Timestamp, D)>,
}

impl<D> Delays<D> {
    pub(crate) fn new(late: AddedLateness, seed: u64) -> Self {
        Self { late, generator: Pcg64Mcg::seed_from_u64(seed), held: VecDeque::new() }
    }

    /// Holds a delivery that was due at `due`. A delivery never overtakes an earlier one.
    pub(crate) fn hold(&mut self, due: Timestamp, delivery: D) {
        let release = due + self.draw();
        let behind = self.held.back().map_or(Timestamp::ZERO, |(last, _)| *last);
        self.held.push_back((release.max(behind), delivery));
    }

    /// Returns the next delivery that is held no longer than until `now`.
    pub(crate) fn release(&mut self, now: Timestamp) -> Option<D> {
        self.held.pop_front_if(|(release, _)| *release <= now).map(|(_, delivery)| delivery)
    }

    /// Returns the time at which the next delivery is released.
    pub(crate) fn next_release(&self) -> Option<Timestamp> {
        self.held.front().map(|(release, _)| *release)
    }

    fn draw(&mut self) -> Duration {
        let mut fraction = || (self.generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let (is_hit, place) = (fraction() < self.late.share, fraction());
        if !is_hit {
            return Duration::ZERO;
        }
        let [least, most] = [self.late.least, self.late.most].map(|span| span.as_secs_f64());
        Duration::from_secs_f64(least + place * (most - least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    fn delays(share: f64, least: u64, most: u64) -> Delays<u64> {
        let [least, most] = [least, most].map(Duration::from_millis);
        Delays::new(AddedLateness { share, least, most }, 1)
    }

    #[test]
    fn deliveries_are_held_within_bounds_and_keep_their_order() {
        let mut delays = delays(1.0, 2, 5);
        (0..100).for_each(|n| delays.hold(at(10 * n), n));
        for n in 0..100 {
            let release = delays.next_release().unwrap();
            assert!(release >= at(10 * n + 2) && release <= at(10 * n + 5));
            assert_eq!(delays.release(at(10 * n + 1)), None);
            assert_eq!(delays.release(release), Some(n));
        }
        (0..100).for_each(|n| delays.hold(at(0), n));
        let order: Vec<u64> = std::iter::from_fn(|| delays.release(at(5))).collect();
        assert_eq!(order, (0..100).collect::<Vec<u64>>());
    }

    #[test]
    fn share_of_deliveries_is_held() {
        let mut delays = delays(0.1, 4, 4);
        let held = (0..1000).filter(|n| {
            delays.hold(at(10 * n), *n);
            delays.release(at(10 * n)).is_none() && delays.release(at(10 * n + 4)).is_some()
        });
        let held = held.count();
        assert!((70..130).contains(&held), "{held}");
    }
}
