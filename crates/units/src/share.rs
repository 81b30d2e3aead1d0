//! Shares of a common limit by a dynamic threshold.
//!
//! Shares are not fixed: a holder may hold at most as much as is still free. One holder alone gets
//! half, n that ask for all get 1/(n+1) each, and the same is left for the next one (the dynamic
//! threshold of shared switch memories, Choudhury and Hahne 1998).

use std::collections::BTreeMap;

use crate::{Duration, Timestamp};

/// Returns whether a holder of `held_by_one` may take one more where all hold `held` of `limit`.
#[must_use]
pub const fn has_share(held_by_one: usize, held: usize, limit: usize) -> bool {
    held_by_one < limit.saturating_sub(held)
}

/// A limit of events in each window of time, of which each holder gets its share.
///
/// Its memory is bounded by the limit: only holders that took an event are remembered, until the
/// window ends.
#[derive(Debug, Clone)]
pub struct SharedRate<K> {
    limit: usize,
    window: Duration,
    begin: Timestamp,
    used: usize,
    by_holder: BTreeMap<K, usize>,
}

impl<K: Ord> SharedRate<K> {
    /// Creates a rate of `limit` events in each `window`.
    #[must_use]
    pub const fn new(limit: usize, window: Duration) -> Self {
        let begin = Timestamp::ZERO;
        Self { limit, window, begin, used: 0, by_holder: BTreeMap::new() }
    }

    /// Takes one event for `holder`; returns false when it has used its share of this window.
    ///
    /// A clock that runs backwards opens no new window.
    pub fn take(&mut self, now: Timestamp, holder: K) -> bool {
        if now.since(self.begin) >= self.window {
            self.begin = now;
            self.used = 0;
            self.by_holder.clear();
        }
        let theirs = self.by_holder.get(&holder).copied().unwrap_or_default();
        if !has_share(theirs, self.used, self.limit) {
            return false;
        }
        self.by_holder.insert(holder, theirs + 1);
        self.used += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    fn rate(limit: usize) -> SharedRate<u8> {
        SharedRate::new(limit, Duration::from_secs(1))
    }

    #[test]
    fn one_holder_alone_gets_half_and_leaves_the_rest() {
        let mut rate = rate(100);
        let granted = |rate: &mut SharedRate<u8>, holder| {
            (0..1000).filter(|_| rate.take(at(5), holder)).count()
        };
        assert_eq!(granted(&mut rate, 1), 50);
        assert_eq!(granted(&mut rate, 2), 25);
        assert!(rate.take(at(5), 3), "the next to come finds room");
    }

    #[test]
    fn holders_that_ask_for_all_get_equal_shares() {
        let mut rate = rate(1200);
        let mut granted = [0; 5];
        for _ in 0..1200 {
            for (holder, granted) in (0u8..).zip(&mut granted) {
                *granted += usize::from(rate.take(at(5), holder));
            }
        }
        assert_eq!(granted, [200; 5], "a sixth each, a sixth is left");
    }

    #[test]
    fn window_ignores_clock_running_back() {
        let mut rate = rate(2);
        assert!(rate.take(at(5000), 1));
        assert!(!rate.take(at(5500), 1) && !rate.take(at(0), 1));
        assert!(rate.take(at(6000), 1));
    }

    #[test]
    fn only_holders_within_the_limit_are_remembered() {
        let mut rate = SharedRate::new(8, Duration::from_secs(1));
        (0..10_000).for_each(|holder: u32| {
            rate.take(at(1), holder);
        });
        assert!(rate.by_holder.len() <= 8);
    }

    #[test]
    fn limit_of_one_serves_one() {
        assert!(has_share(0, 0, 1) && !has_share(0, 1, 1) && !has_share(0, 0, 0));
        assert!(!has_share(0, 9, 3), "a limit that was lowered");
    }
}
