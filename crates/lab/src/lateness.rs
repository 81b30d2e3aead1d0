//! The bound on a figure's error that follows from late deliveries and from waits for a CPU.
//!
//! A transfer is a chain of events, of which each waits for the one before: a late delivery moves
//! all that follows it by its lateness at most. So the error of a completion time is at most the
//! lateness of the deliveries on the chain, added up. Of each leg the chain has at most
//!
//! - one delivery each way per round trip: `took / rtt` rounds, and
//! - on legs that do not hold the transfer back, only the rounds in which their connection starts:
//!   handshakes, a request and slow start, and the same again after a loss. Later their lateness is
//!   hidden: they wait for the leg with the longest round trip, or for a rate.
//!
//! The chain picks its deliveries without regard to their lateness, so `n` of them are late by `n`
//! times the mean, and by three standard deviations of such a sum at most.
//!
//! On a busy machine each delivery also has its share of what programs waited for a CPU, as if it
//! were that late, with the deviation of waits that are as likely to end at any moment. A wait
//! holds up all that comes behind it, so that a chain meets more of them than its share: the share
//! counts `WAITS_MET` times.

use std::collections::BTreeMap;

use tradewind_units::{Duration, HostId};
use tradewind_wan::HostIndex;

/// Rounds before a connection carries data: the handshakes of TCP and TLS, a request, and its
/// answer.
const SET_UP_ROUNDS: f64 = 4.0;
/// The initial window, in segments. Source: RFC 6928.
const INITIAL_WINDOW: f64 = 10.0;
/// The factor within which the windows of a path's connections differ: a leg whose round trip is
/// shorter than the longest by more cannot be the one that holds a transfer back. Chosen: buffers
/// of 8 MB at relays, against windows of 2.875 MB at sites [CP VII].
const WINDOW_FACTOR: f64 = 4.0;
/// The most legs of one path. Chosen: four relays, and one leg more.
const MAX_LEGS: usize = 6;
/// The factor by which a chain meets more waits for a CPU than deliveries do on average. Chosen:
/// the lab's check `waits for a CPU` has shown up to 7 on two busy CPUs.
const WAITS_MET: f64 = 8.0;
/// The standard deviations beyond the mean. Chosen: about one figure in a thousand is beyond.
const DEVIATIONS: f64 = 3.0;

/// The deliveries in one direction of a leg.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct CrossingRecord {
    /// Deliveries, each of one or more segments.
    pub deliveries: u64,
    /// Segments delivered.
    pub segments: u64,
    /// Segments that were lost between the two sites.
    pub losses: u64,
    /// The shortest planned time in the network, in microseconds.
    pub transit_us_min: f64,
    /// The mean lateness, in microseconds.
    pub lateness_us_mean: f64,
    /// The standard deviation of lateness, in microseconds.
    pub lateness_us_deviation: f64,
}

/// The deliveries between two hosts.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LegRecord {
    /// The two hosts.
    pub between: [HostId; 2],
    /// From the first to the second.
    pub there: CrossingRecord,
    /// From the second to the first.
    pub back: CrossingRecord,
}

/// The bound on the error of a completion time, or of a rate over a time.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct ErrorBound {
    /// The bound on the error, in milliseconds.
    pub error_ms: f64,
    /// The same as a share of the time that the figure took.
    pub ratio: f64,
}

/// The lateness of some deliveries of a chain: what is to be added up.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    sum_us: f64,
    variance_us2: f64,
}

impl Share {
    fn plus(self, other: Self) -> Self {
        Self {
            sum_us: self.sum_us + other.sum_us,
            variance_us2: self.variance_us2 + other.variance_us2,
        }
    }

    fn bound_us(self) -> f64 {
        self.sum_us + DEVIATIONS * self.variance_us2.sqrt()
    }
}

impl LegRecord {
    /// Returns whether it lies between these hosts.
    fn joins(&self, a: &HostId, b: &HostId) -> bool {
        let [from, to] = &self.between;
        (from, to) == (a, b) || (from, to) == (b, a)
    }

    /// Returns its round-trip time in microseconds, at least one.
    fn rtt_us(&self) -> f64 {
        let [there, back] = [self.there, self.back].map(|crossing| crossing.transit_us_min);
        let known = |own: f64, other: f64| if own > 0.0 { own } else { other };
        (known(there, back) + known(back, there)).max(1.0)
    }

    /// Returns the largest number of rounds of a chain that takes this long.
    fn all_rounds(&self, took_us: f64) -> f64 {
        (took_us / self.rtt_us()).ceil()
    }

    /// Returns the number of rounds in which this leg can hold a transfer back although another
    /// leg's round trip is longer.
    fn starting_rounds(&self, took_us: f64) -> f64 {
        let segments = self.there.segments.max(self.back.segments) as f64;
        let losses = (self.there.losses + self.back.losses) as f64;
        let start = SET_UP_ROUNDS + (1.0 + segments / INITIAL_WINDOW).log2();
        (start * (1.0 + losses)).min(self.all_rounds(took_us))
    }

    /// Returns the share of these rounds; with each delivery programs wait for `wait_us`.
    fn share_of(&self, rounds: f64, wait_us: f64) -> Share {
        let wait_us = WAITS_MET * wait_us;
        [self.there, self.back].iter().fold(Share::default(), |sum, crossing| {
            let count = rounds.min(crossing.deliveries as f64);
            let variance_us2 = crossing.lateness_us_deviation.powi(2) + wait_us.powi(2);
            sum.plus(Share {
                sum_us: count * (crossing.lateness_us_mean + wait_us),
                variance_us2: count * variance_us2,
            })
        })
    }
}

impl ErrorBound {
    /// Returns the bound on a figure that took this long over `legs`, or over any six of them,
    /// while programs waited for a CPU for `wait_us` per delivery.
    #[must_use]
    pub(crate) fn over<'a>(
        legs: impl IntoIterator<Item = &'a LegRecord>,
        took_s: f64,
        wait_us: f64,
    ) -> Self {
        let legs: Vec<&LegRecord> = legs.into_iter().collect();
        let took_us = took_s * 1e6;
        let longest_us = legs.iter().map(|leg| leg.rtt_us()).fold(0.0, f64::max);
        let starting = |leg: &LegRecord| leg.share_of(leg.starting_rounds(took_us), wait_us);
        let may_hold_back = |leg: &&&LegRecord| leg.rtt_us() * WINDOW_FACTOR >= longest_us;
        let bounds_us = legs.iter().filter(may_hold_back).map(|held| {
            let others = legs.iter().filter(|leg| leg.between != held.between);
            let mut others: Vec<Share> = others.map(|leg| starting(leg)).collect();
            others.sort_by(|a, b| b.bound_us().total_cmp(&a.bound_us()));
            let whole = held.share_of(held.all_rounds(took_us), wait_us);
            others.into_iter().take(MAX_LEGS - 1).fold(whole, Share::plus).bound_us()
        });
        let error_us = bounds_us.fold(0.0, f64::max);
        Self { error_ms: error_us / 1e3, ratio: error_us / took_us.max(1.0) }
    }

    /// Returns the bound on a figure that took this long over the legs of a path, which is given by
    /// its hosts from end to end.
    #[must_use]
    pub(crate) fn over_path(
        legs: &[LegRecord],
        path: &[HostId],
        took_s: f64,
        wait_us: f64,
    ) -> Self {
        let is_used = |leg: &&LegRecord| path.windows(2).any(|ends| leg.joins(&ends[0], &ends[1]));
        Self::over(legs.iter().filter(is_used), took_s, wait_us)
    }
}

/// A delivery, for the record of its leg.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crossed {
    pub(crate) source: HostIndex,
    pub(crate) destination: HostIndex,
    /// Its planned time in the network.
    pub(crate) transit: Duration,
    pub(crate) late: Duration,
    pub(crate) segments: u64,
}

/// The deliveries from one host to another so far.
#[derive(Debug, Clone, Copy, Default)]
struct CrossingMeter {
    deliveries: u64,
    segments: u64,
    losses: u64,
    transit_us_min: f64,
    late_us: f64,
    late_us_squared: f64,
}

/// The lateness of all deliveries, by their hosts.
#[derive(Debug, Clone, Default)]
pub(crate) struct LegMeters(BTreeMap<(HostIndex, HostIndex), CrossingMeter>);

impl LegMeters {
    /// Records a delivery.
    pub(crate) fn note(&mut self, crossed: &Crossed) {
        let transit_us = crossed.transit.as_secs_f64() * 1e6;
        let late_us = crossed.late.as_secs_f64() * 1e6;
        let meter = self.0.entry((crossed.source, crossed.destination)).or_default();
        if meter.deliveries == 0 || transit_us < meter.transit_us_min {
            meter.transit_us_min = transit_us;
        }
        meter.deliveries += 1;
        meter.segments += crossed.segments;
        meter.late_us += late_us;
        meter.late_us_squared += late_us * late_us;
    }

    /// Sets the segments lost so far from one host's site to another's.
    pub(crate) fn set_losses(&mut self, losses: impl Fn(HostIndex, HostIndex) -> u64) {
        for ((from, to), meter) in &mut self.0 {
            meter.losses = losses(*from, *to);
        }
    }

    /// Returns the records of all legs.
    pub(crate) fn records(&self, name: impl Fn(HostIndex) -> HostId) -> Vec<LegRecord> {
        let crossing = |from, to| {
            self.0.get(&(from, to)).map_or_else(CrossingRecord::default, CrossingMeter::record)
        };
        let is_first = |ends: &&(HostIndex, HostIndex)| {
            ends.0 < ends.1 || !self.0.contains_key(&(ends.1, ends.0))
        };
        let leg = |(from, to): &(HostIndex, HostIndex)| LegRecord {
            between: [name(*from), name(*to)],
            there: crossing(*from, *to),
            back: crossing(*to, *from),
        };
        self.0.keys().filter(is_first).map(leg).collect()
    }
}

impl CrossingMeter {
    fn record(&self) -> CrossingRecord {
        let count = self.deliveries.max(1) as f64;
        let mean = self.late_us / count;
        CrossingRecord {
            deliveries: self.deliveries,
            segments: self.segments,
            losses: self.losses,
            transit_us_min: self.transit_us_min,
            lateness_us_mean: mean,
            lateness_us_deviation: (self.late_us_squared / count - mean * mean).max(0.0).sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a leg between hosts `from` and `to` of this round trip, on which each delivery is
    /// late by the same time.
    fn leg(from: &str, to: &str, rtt_ms: f64, late_us: f64) -> LegRecord {
        let crossing = CrossingRecord {
            deliveries: 1_000_000,
            segments: 10_230,
            transit_us_min: rtt_ms * 500.0,
            lateness_us_mean: late_us,
            ..CrossingRecord::default()
        };
        let host = |name| HostId::new(name).unwrap();
        LegRecord { between: [host(from), host(to)], there: crossing, back: crossing }
    }

    fn assert_ms(bound: ErrorBound, millis: f64) {
        assert!((bound.error_ms - millis).abs() < 1e-6, "{bound:?} instead of {millis} ms");
    }

    #[test]
    fn error_is_two_late_deliveries_per_round_trip() {
        let bound = ErrorBound::over([&leg("a", "b", 50.0, 500.0)], 2.0, 0.0);
        assert_ms(bound, 40.0);
        assert!((bound.ratio - 0.02).abs() < 1e-9, "{bound:?}");
        assert_ms(ErrorBound::over([&leg("a", "b", 100.0, 500.0)], 2.0, 0.0), 20.0);
        assert_ms(ErrorBound::over([], 2.0, 0.0), 0.0);
    }

    #[test]
    fn error_is_no_more_than_all_deliveries_were_late() {
        let mut few = leg("a", "b", 50.0, 500.0);
        (few.there.deliveries, few.back.deliveries) = (3, 1);
        assert_ms(ErrorBound::over([&few], 2.0, 0.0), 2.0);
    }

    #[test]
    fn spread_of_lateness_adds_three_deviations() {
        let mut uneven = leg("a", "b", 50.0, 500.0);
        uneven.there.lateness_us_deviation = 1000.0;
        // Forty rounds: the deviation of their sum is the root of forty times that of one.
        assert_ms(ErrorBound::over([&uneven], 2.0, 0.0), 40.0 + 3.0 * 40_f64.sqrt());
    }

    #[test]
    fn waits_for_a_cpu_are_added_to_each_delivery() {
        let bound = ErrorBound::over([&leg("a", "b", 50.0, 500.0)], 2.0, 250.0);
        // Forty rounds of two deliveries, each with a deviation as long as its eight waits.
        assert_ms(bound, 40.0 + 160.0 + 3.0 * 2.0 * 80_f64.sqrt());
    }

    #[test]
    fn short_legs_count_only_while_their_connection_starts() {
        let [near, far] = [leg("a", "b", 10.0, 500.0), leg("b", "c", 100.0, 500.0)];
        // Of 1024 initial windows: four rounds and ten of slow start.
        let start_ms = 14.0;
        assert_ms(ErrorBound::over([&near, &far], 2.0, 0.0), 20.0 + start_ms);
        let mut lossy = near.clone();
        lossy.there.losses = 2;
        assert_ms(ErrorBound::over([&lossy, &far], 2.0, 0.0), 20.0 + 3.0 * start_ms);
        lossy.there.losses = 1000;
        assert_ms(ErrorBound::over([&lossy, &far], 2.0, 0.0), 20.0 + 200.0);
        let close = leg("a", "b", 25.0, 500.0);
        assert_ms(ErrorBound::over([&close, &far], 2.0, 0.0), 80.0 + start_ms);
    }

    #[test]
    fn error_over_a_path_counts_its_legs_alone() {
        let legs = [leg("a", "b", 100.0, 500.0), leg("c", "d", 10.0, 9000.0)];
        let path = |names: &[&str]| -> Vec<HostId> {
            names.iter().map(|name| HostId::new(*name).unwrap()).collect()
        };
        assert_ms(ErrorBound::over_path(&legs, &path(&["b", "a"]), 2.0, 0.0), 20.0);
        assert_ms(ErrorBound::over_path(&legs, &path(&["a", "c", "b"]), 2.0, 0.0), 0.0);
    }

    #[test]
    fn deliveries_of_both_directions_make_one_leg() {
        let mut meters = LegMeters::default();
        let mut note = |source, destination, late| {
            meters.note(&Crossed {
                source: HostIndex(source),
                destination: HostIndex(destination),
                transit: Duration::from_millis(10 + u64::from(source)),
                late: Duration::from_micros(late),
                segments: 2,
            });
        };
        note(0, 1, 100);
        note(0, 1, 300);
        note(1, 0, 50);
        note(2, 0, 50);
        meters.set_losses(|from, to| u64::from(from.0 * 10 + to.0));
        let legs = meters.records(|host| HostId::new(format!("h{}", host.0)).unwrap());
        assert_eq!(legs.len(), 2);
        let [there, back] = [legs[0].there, legs[0].back];
        assert_eq!((there.deliveries, there.segments, there.losses), (2, 4, 1));
        assert_eq!((there.lateness_us_mean, there.lateness_us_deviation), (200.0, 100.0));
        assert_eq!((back.deliveries, back.losses, back.transit_us_min), (1, 10, 11_000.0));
        assert_eq!(legs[1].between.each_ref().map(HostId::as_str), ["h2", "h0"]);
        assert_eq!(legs[1].back, CrossingRecord::default());
    }
}
