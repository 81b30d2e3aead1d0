//! Detection of a settled rate test, and of the part of it that counts. Pure.
//!
//! A transfer begins in slow start, which says little about its later rate: at 300 ms a window of
//! 2.875 MB is full only after about eight round trips. A test is a series of intervals, with two
//! questions:
//!
//! - while it runs: has the rate been stable long enough to stop? ([`settled`])
//! - when it has ended: from which interval on does it count? ([`steady_part`])
//!
//! A path that changes later cannot be detected, e.g. a token bucket that empties after a minute.
//! The report of a test that ended early says so.

use std::ops::Range;
use std::time::Duration;

use tradewind_units::{Bytes, Ratio};

/// The payload received in one part of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Its length.
    pub span: Duration,
    /// Payload that arrived in it.
    pub bytes: Bytes,
}

impl Interval {
    fn bytes_per_s(&self) -> f64 {
        if self.span.is_zero() {
            return 0.0;
        }
        self.bytes.as_u64() as f64 / self.span.as_secs_f64()
    }
}

/// The rule by which a test may end before its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StabilityRule {
    /// Number of last intervals that must agree. Chosen: 5.
    pub intervals: usize,
    /// Least total length of these intervals. Chosen: 1 s.
    pub span: Duration,
    /// Largest deviation of each from their mean. Chosen: 5 %.
    pub tolerance: Ratio,
}

impl Default for StabilityRule {
    fn default() -> Self {
        Self {
            intervals: 5,
            span: Duration::from_secs(1),
            tolerance: Ratio::new(0.05).expect("5 % is a share"),
        }
    }
}

/// Returns the index at which the settled end of `intervals` begins, if it has settled: its
/// intervals agree with their mean, and the rates of its two halves differ by at most half the
/// tolerance.
#[must_use]
pub fn settled(intervals: &[Interval], rule: &StabilityRule) -> Option<usize> {
    let start = shortest_end(intervals, rule)?;
    let end = &intervals[start..];
    let mean = mean_bytes_per_s(end);
    let tolerance = rule.tolerance.as_f64();
    let within = |interval: &Interval| (interval.bytes_per_s() - mean).abs() <= tolerance * mean;
    if mean <= 0.0 || !end.iter().all(within) {
        return None;
    }
    let half = end.len() / 2;
    let drift = mean_bytes_per_s(&end[end.len() - half..]) - mean_bytes_per_s(&end[..half]);
    (drift.abs() <= tolerance / 2.0 * mean).then_some(start)
}

/// Returns the part of a finished test that counts: all after the first interval that reached 90 %
/// of the median rate of the test's second half (slow start may have ended inside that interval).
/// It holds at least the last interval, if there is one.
#[must_use]
pub fn steady_part(intervals: &[Interval]) -> Range<usize> {
    let count = intervals.len();
    let rates = intervals[count / 2..].iter().map(Interval::bytes_per_s);
    let rates = crate::statistics::ascending(rates);
    let Some(median) = crate::statistics::quantile(&rates, 0.5) else { return 0..0 };
    let reached = intervals.iter().position(|interval| interval.bytes_per_s() >= 0.9 * median);
    let start = reached.map_or(0, |index| index + 1);
    start.min(count - 1)..count
}

/// Returns the mean rate over `intervals` as a whole, in bytes per second; zero if empty.
#[must_use]
pub fn mean_bytes_per_s(intervals: &[Interval]) -> f64 {
    let span: Duration = intervals.iter().map(|interval| interval.span).sum();
    let bytes = intervals.iter().fold(Bytes::ZERO, |sum, i| sum.saturating_add(i.bytes));
    Interval { span, bytes }.bytes_per_s()
}

/// Returns the index at which the shortest end of `intervals` begins that is long enough for
/// `rule`.
fn shortest_end(intervals: &[Interval], rule: &StabilityRule) -> Option<usize> {
    let mut span = Duration::ZERO;
    for (index, interval) in intervals.iter().enumerate().rev() {
        span += interval.span;
        if intervals.len() - index >= rule.intervals.max(2) && span >= rule.span {
            return Some(index);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(rates: &[u64]) -> Vec<Interval> {
        let interval =
            |rate: &u64| Interval { span: Duration::from_millis(250), bytes: Bytes::new(*rate) };
        rates.iter().map(interval).collect()
    }

    #[test]
    fn slow_start_is_not_settled_and_its_plateau_is() {
        let rates = [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1001, 1000, 999];
        let rule = StabilityRule::default();
        let settled_at = |count: usize| settled(&row(&rates[..count]), &rule);
        assert!((0..12).all(|count| settled_at(count).is_none()));
        assert_eq!(settled_at(12), Some(7));
    }

    #[test]
    fn slow_steady_climb_is_not_settled() {
        let rates: Vec<u64> = (0..20).map(|step| 1000 + 15 * step).collect();
        assert_eq!(settled(&row(&rates), &StabilityRule::default()), None);
    }

    #[test]
    fn idle_test_never_settles() {
        assert_eq!(settled(&row(&[0; 20]), &StabilityRule::default()), None);
    }

    #[test]
    fn agreement_must_last() {
        let rule = StabilityRule { span: Duration::from_secs(2), ..StabilityRule::default() };
        assert_eq!(settled(&row(&[1000; 7]), &rule), None);
        assert_eq!(settled(&row(&[1000; 8]), &rule), Some(0));
    }

    #[test]
    fn outlier_interval_delays_end() {
        let rule = StabilityRule::default();
        assert_eq!(settled(&row(&[1000, 1000, 900, 1000, 1000]), &rule), None);
        assert_eq!(settled(&row(&[900, 1000, 1000, 1000, 1000, 1000]), &rule), Some(1));
    }

    #[test]
    fn slow_start_does_not_count() {
        let intervals = row(&[10, 20, 40, 500, 950, 1000, 990, 1010, 1000, 1000]);
        assert_eq!(steady_part(&intervals), 5..10);
    }

    #[test]
    fn short_test_counts_by_its_last_interval() {
        assert_eq!(steady_part(&row(&[1000])), 0..1);
        assert_eq!(steady_part(&row(&[])), 0..0);
        assert_eq!(steady_part(&row(&[10, 1000])), 1..2);
    }

    #[test]
    fn mean_weighs_intervals_by_their_length() {
        let long = Interval { span: Duration::from_secs(3), bytes: Bytes::new(3000) };
        let short = Interval { span: Duration::from_secs(1), bytes: Bytes::new(5000) };
        assert!((mean_bytes_per_s(&[long, short]) - 2000.0).abs() < 1e-9);
        assert_eq!(mean_bytes_per_s(&[]), 0.0);
    }

    proptest! {
        #[test]
        fn settled_part_is_within_the_tolerance(rates in prop::collection::vec(0u64..2000, 0..30)) {
            let intervals = row(&rates);
            if let Some(start) = settled(&intervals, &StabilityRule::default()) {
                let end = &intervals[start..];
                let mean = mean_bytes_per_s(end);
                prop_assert!(end.len() >= 5);
                for interval in end {
                    prop_assert!((interval.bytes_per_s() / mean - 1.0).abs() <= 0.05 + 1e-9);
                }
            }
        }

        #[test]
        fn steady_part_ends_with_the_test(rates in prop::collection::vec(0u64..2000, 1..30)) {
            let part = steady_part(&row(&rates));
            prop_assert!(part.start < part.end && part.end == rates.len());
        }
    }
}
