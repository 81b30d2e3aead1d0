//! The report of a test, built from the records of both sides.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tradewind_units::{Bandwidth, Bytes, Ratio, UnitError};

use crate::SCHEMA_VERSION;
use crate::meter::Role;
use crate::protocol::{ConnectionTotals, Direction, Finish, Record, SenderSample};
use crate::rate::RateOptions;
use crate::statistics::{ascending, quantile};
use crate::steady::{Interval, StabilityRule, mean_bytes_per_s, settled, steady_part};
use crate::window::{BoundBy, SenderView, WindowEstimate, window_estimate};

/// The reason why a rate test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Early: the rate was stable.
    Stable,
    /// Its duration was over.
    Duration,
    /// Its volume had passed.
    Volume,
    /// The responder's limit of bytes was reached.
    ResponderLimit,
}

/// The rate between this host and a responder. `rate_*` are of the steady part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RateReport {
    /// The schema version.
    pub schema_version: u32,
    /// The target as given.
    pub target: String,
    /// The address that was measured.
    pub address: SocketAddr,
    /// Time when the measurement began, in seconds since the Unix epoch.
    pub measured_at_unix_s: f64,
    /// The direction of the payload, seen from here.
    pub direction: Direction,
    /// The sender's congestion control.
    pub congestion_control: String,
    /// The reason why the test ended.
    pub ended: Ended,
    /// True if the rate was stable at the end (within 5 % over 1 s by default).
    pub settled: bool,
    /// Time over which payload was counted.
    pub duration_s: f64,
    /// The beginning of that time, which does not count.
    pub discarded_s: f64,
    /// Payload that arrived, in megabits (10^6 bits) per second.
    pub rate_mbps: f64,
    /// The same with TCP and IP headers, as a link's rate is given: an estimate from the segment
    /// size, without retransmissions.
    pub rate_ip_mbps: f64,
    /// Spread of the intervals: the 90th less the 10th percentile.
    pub rate_spread_mbps: f64,
    /// Payload that arrived over the whole test, slow start included, per second.
    pub rate_whole_mbps: f64,
    /// Payload that arrived over the whole test.
    pub total_bytes: u64,
    /// Segments retransmitted over the whole test.
    pub retransmits: u64,
    /// Least round-trip time of the connections, from the sender's kernel.
    pub rtt_min_ms: f64,
    /// Smoothed round-trip time in the steady part: above the least when a queue stood.
    pub rtt_steady_ms: f64,
    /// The limit of the rate, and the window (of all connections) that follows from it.
    #[serde(flatten)]
    pub window: WindowEstimate,
    /// Rate times least round-trip time: the window of the model rate = window / RTT.
    pub window_effective_bytes: u64,
    /// Payload of a full segment.
    pub mss_bytes: u32,
    /// Each connection.
    pub connections: Vec<ConnectionReport>,
    /// The test over time.
    pub intervals: Vec<IntervalReport>,
}

/// One connection of a rate test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// Payload that arrived.
    pub bytes: u64,
    /// Segments retransmitted.
    pub retransmits: u64,
    /// Payload retransmitted.
    pub retransmitted_bytes: u64,
    /// Least round-trip time, from the sender's kernel.
    pub rtt_min_ms: f64,
    /// Most payload in flight.
    pub in_flight_max_bytes: u64,
    /// The congestion window at the end.
    pub congestion_window_segments: u32,
}

/// One interval of a rate test, all connections together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IntervalReport {
    /// Its end since the transfer began, by the receiver's clock.
    pub end_s: f64,
    /// Payload that arrived in it, per second.
    pub rate_mbps: f64,
    /// Payload that arrived in it.
    pub bytes: u64,
    /// Most payload in flight, in the sender's last interval by then; like the next three, absent
    /// before the sender's first interval.
    pub in_flight_max_bytes: Option<u64>,
    /// Sum of the congestion windows at its end.
    pub congestion_window_bytes: Option<u64>,
    /// Mean of the smoothed round-trip times at its end.
    pub rtt_smoothed_ms: Option<f64>,
    /// Segments retransmitted since the transfer began.
    pub retransmits: Option<u64>,
}

impl RateReport {
    /// Returns the steady payload rate; `None` when nothing arrived.
    #[must_use]
    pub fn rate(&self) -> Option<Bandwidth> {
        Bandwidth::from_mbps(self.rate_mbps).ok()
    }

    /// Returns the least round-trip time.
    ///
    /// # Errors
    /// When an imported report holds an invalid number.
    pub fn rtt_min(&self) -> Result<Duration, UnitError> {
        tradewind_units::time::duration_from_millis(self.rtt_min_ms)
    }
}

/// Both sides' records of one test.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) role: Role,
    pub(crate) interval: Duration,
    pub(crate) ended: Ended,
    /// The part whose stability ended the test early.
    pub(crate) settled: Option<Range<usize>>,
    pub(crate) own: Vec<Record>,
    pub(crate) own_totals: Vec<ConnectionTotals>,
    pub(crate) theirs: Vec<Record>,
    pub(crate) finish: Option<Finish>,
}

impl Observed {
    fn received(&self) -> &[Record] {
        if self.role == Role::Receiver { &self.own } else { &self.theirs }
    }

    fn sent(&self) -> &[Record] {
        if self.role == Role::Sender { &self.own } else { &self.theirs }
    }

    /// Returns the sender's records up to the interval that ends at `end_us` by the receiver's
    /// clock. The two clocks start within a round trip of each other.
    fn sent_by(&self, end_us: u64) -> &[Record] {
        let latest = micros(end_us) + self.interval / 2;
        let sent = self.sent();
        &sent[..sent.partition_point(|record| micros(record.end_us) <= latest)]
    }

    /// Returns the received payload in intervals. A last one shorter than half its length is left
    /// out, as a part of a round trip gives no rate.
    fn intervals(&self) -> Vec<Interval> {
        let records = self.received();
        let full = match records {
            [full @ .., last] if !full.is_empty() && micros(last.span_us) < self.interval / 2 => {
                full
            }
            all => all,
        };
        let interval = |record: &Record| Interval {
            span: micros(record.span_us),
            bytes: Bytes::new(record.bytes),
        };
        full.iter().map(interval).collect()
    }

    /// Returns the part over which the rate is stable to the end, if the test has reached that: not
    /// when the sender still grows slowly.
    pub(crate) fn settled_part(&self, rule: &StabilityRule) -> Option<Range<usize>> {
        let intervals = self.intervals();
        let part = settled(&intervals, rule)?..intervals.len();
        let growing = window_estimate(&self.sender_view(part.clone())).bound_by == BoundBy::Growth;
        (!growing).then_some(part)
    }

    /// Returns the sender's figures in the intervals `part`.
    fn sender_view(&self, part: Range<usize>) -> SenderView {
        let end_of = |index: usize| self.received().get(index).map_or(0, |record| record.end_us);
        let before = part.start.checked_sub(1).map_or(&[][..], |i| self.sent_by(end_of(i)));
        let until = part.end.checked_sub(1).map_or(&[][..], |i| self.sent_by(end_of(i)));
        // The sender's records may lag behind the receiver's: its last one is used then.
        let first = before.len().min(until.len().saturating_sub(1));
        let inside: Vec<SenderSample> = until[first..].iter().filter_map(|r| r.sender).collect();
        let before = before.last().and_then(|record| record.sender.as_ref());
        let (last, count) = (inside.last(), u64::try_from(inside.len()).unwrap_or(1).max(1));
        let change = |figure: fn(&SenderSample) -> u64| {
            last.map_or(0, figure).saturating_sub(before.map_or(0, figure))
        };
        let busy = change(|sample| sample.busy_us);
        let share = |part: u64| {
            let share = if busy == 0 { 0.0 } else { part as f64 / busy as f64 };
            Ratio::new(share.clamp(0.0, 1.0)).expect("clamped to a share")
        };
        let windows = || inside.iter().map(|sample| sample.congestion_window_bytes);
        SenderView {
            rtt_min: micros(last.map_or(0, |sample| sample.rtt_min_us)),
            rtt_steady: micros(inside.iter().map(|s| s.rtt_smoothed_us).sum::<u64>() / count),
            in_flight_max: Bytes::new(
                inside.iter().map(|sample| sample.in_flight_max_bytes).max().unwrap_or(0),
            ),
            retransmits: change(|sample| sample.retransmits),
            receive_window_limited: share(change(|sample| sample.receive_window_limited_us)),
            send_buffer_limited: share(change(|sample| sample.send_buffer_limited_us)),
            congestion_window: Bytes::new(windows().next_back().unwrap_or(0)),
            congestion_window_constant: inside.len() >= 3 && windows().min() == windows().max(),
        }
    }

    fn connections(&self) -> Vec<ConnectionReport> {
        let theirs = self.finish.as_ref().map_or(&[][..], |finish| &finish.connections);
        let (received, sent) = match self.role {
            Role::Receiver => (&self.own_totals[..], theirs),
            Role::Sender => (theirs, &self.own_totals[..]),
        };
        let report = |(received, sent): (&ConnectionTotals, &ConnectionTotals)| ConnectionReport {
            bytes: received.bytes,
            retransmits: sent.retransmits,
            retransmitted_bytes: sent.retransmitted_bytes,
            rtt_min_ms: sent.rtt_min_us as f64 / 1e3,
            in_flight_max_bytes: sent.in_flight_max_bytes,
            congestion_window_segments: sent.congestion_window_segments,
        };
        received.iter().zip(sent).map(report).collect()
    }

    fn sender_totals(&self) -> Option<&ConnectionTotals> {
        match self.role {
            Role::Sender => self.own_totals.first(),
            Role::Receiver => self.finish.as_ref()?.connections.first(),
        }
    }

    fn interval_reports(&self) -> Vec<IntervalReport> {
        let mut records = self.received().to_vec();
        // The remainder after the last full interval is too short for a rate of its own.
        if records.len() > self.intervals().len()
            && let (Some(rest), Some(last)) = (records.pop(), records.last_mut())
        {
            last.end_us = rest.end_us;
            last.span_us += rest.span_us;
            last.bytes += rest.bytes;
        }
        let report = |record: &Record| {
            let sender = self.sent_by(record.end_us).last().and_then(|record| record.sender);
            IntervalReport {
                end_s: record.end_us as f64 / 1e6,
                rate_mbps: per_second_mbps(record.bytes, micros(record.span_us)),
                bytes: record.bytes,
                in_flight_max_bytes: sender.map(|sample| sample.in_flight_max_bytes),
                congestion_window_bytes: sender.map(|sample| sample.congestion_window_bytes),
                rtt_smoothed_ms: sender.map(|sample| sample.rtt_smoothed_us as f64 / 1e3),
                retransmits: sender.map(|sample| sample.retransmits),
            }
        };
        records.iter().map(report).collect()
    }
}

/// Builds the report of `observed`.
pub(crate) fn build(
    target: &str,
    address: SocketAddr,
    measured_at_unix_s: f64,
    options: &RateOptions,
    observed: Observed,
) -> RateReport {
    let intervals = observed.intervals();
    let rule = options.stop_when_stable.unwrap_or_default();
    let settled = observed.settled.clone().or_else(|| observed.settled_part(&rule));
    let part = settled.clone().unwrap_or_else(|| steady_part(&intervals));
    let view = observed.sender_view(part.clone());
    let bytes_per_s = mean_bytes_per_s(&intervals[part.clone()]);
    let rates = ascending(
        intervals[part.clone()]
            .iter()
            .map(|interval| per_second_mbps(interval.bytes.as_u64(), interval.span)),
    );
    let spread = quantile(&rates, 0.9).unwrap_or(0.0) - quantile(&rates, 0.1).unwrap_or(0.0);
    let connections = observed.connections();
    let total_bytes = saturating_sum(connections.iter().map(|connection| connection.bytes));
    let duration = micros(observed.received().last().map_or(0, |record| record.end_us));
    let discarded: Duration = intervals[..part.start].iter().map(|interval| interval.span).sum();
    let sender = observed.sender_totals();
    let mss = sender.map_or(0, |totals| totals.mss_bytes);
    let headers = header_bytes(address, sender.is_some_and(|totals| totals.timestamps));
    let rate_mbps = bytes_per_s * 8.0 / 1e6;
    RateReport {
        schema_version: SCHEMA_VERSION,
        target: target.to_owned(),
        address,
        measured_at_unix_s,
        direction: options.direction,
        congestion_control: sender.map(|t| t.congestion_control.clone()).unwrap_or_default(),
        ended: observed.ended,
        settled: settled.is_some(),
        duration_s: duration.as_secs_f64(),
        discarded_s: discarded.as_secs_f64(),
        rate_mbps,
        rate_ip_mbps: rate_mbps * f64::from(mss + headers) / f64::from(mss.max(1)),
        rate_spread_mbps: spread,
        rate_whole_mbps: per_second_mbps(total_bytes, duration),
        total_bytes,
        retransmits: saturating_sum(connections.iter().map(|connection| connection.retransmits)),
        rtt_min_ms: tradewind_units::time::as_millis_f64(view.rtt_min),
        rtt_steady_ms: tradewind_units::time::as_millis_f64(view.rtt_steady),
        window: window_estimate(&view),
        window_effective_bytes: (bytes_per_s * view.rtt_min.as_secs_f64()).round() as u64,
        mss_bytes: mss,
        connections,
        intervals: observed.interval_reports(),
    }
}

/// Returns the sum of figures that the other side may have made up.
fn saturating_sum(figures: impl Iterator<Item = u64>) -> u64 {
    figures.fold(0, u64::saturating_add)
}

/// Returns the length of TCP and IP header of a data segment.
fn header_bytes(address: SocketAddr, timestamps: bool) -> u32 {
    let ip = match address.ip().to_canonical() {
        IpAddr::V4(_) => 20,
        IpAddr::V6(_) => 40,
    };
    ip + 20 + if timestamps { 12 } else { 0 }
}

fn per_second_mbps(bytes: u64, span: Duration) -> f64 {
    if span.is_zero() { 0.0 } else { bytes as f64 * 8.0 / 1e6 / span.as_secs_f64() }
}

const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_MS: u64 = 100;

    fn record(index: u64, bytes: u64, sender: Option<SenderSample>) -> Record {
        Record { end_us: (index + 1) * RTT_MS * 1000, span_us: RTT_MS * 1000, bytes, sender }
    }

    fn sample(in_flight: u64, rtt_us: u64) -> SenderSample {
        SenderSample {
            in_flight_max_bytes: in_flight,
            congestion_window_bytes: in_flight,
            rtt_smoothed_us: rtt_us,
            rtt_min_us: RTT_MS * 1000,
            retransmits: 0,
            busy_us: 0,
            receive_window_limited_us: 0,
            send_buffer_limited_us: 0,
        }
    }

    fn totals(bytes: u64) -> ConnectionTotals {
        ConnectionTotals {
            bytes,
            retransmits: 0,
            retransmitted_bytes: 0,
            rtt_min_us: RTT_MS * 1000,
            mss_bytes: 1448,
            congestion_window_segments: 2000,
            in_flight_max_bytes: 2_896_000,
            timestamps: true,
            congestion_control: "cubic".to_owned(),
        }
    }

    /// Returns an upload whose window doubles each round trip up to the last of `windows`, as seen
    /// by both sides.
    fn upload(windows: &[u64]) -> Observed {
        let record_of = |(index, window): (usize, &u64)| (index as u64, *window);
        let rounds: Vec<(u64, u64)> = windows.iter().enumerate().map(record_of).collect();
        let total = windows.iter().sum();
        let finish = Finish {
            cause: crate::protocol::FinishCause::Stopped,
            connections: vec![totals(total)],
        };
        Observed {
            role: Role::Sender,
            interval: Duration::from_millis(RTT_MS),
            ended: Ended::Duration,
            settled: None,
            own: rounds
                .iter()
                .map(|(i, window)| record(*i, *window, Some(sample(*window, 100_200))))
                .collect(),
            own_totals: vec![totals(total)],
            theirs: rounds.iter().map(|(index, window)| record(*index, *window, None)).collect(),
            finish: Some(finish),
        }
    }

    #[test]
    fn figures_that_the_other_side_makes_up_are_added_without_overflow() {
        let mut observed = upload(&[1000, 2000]);
        observed.own_totals = vec![totals(3000), totals(3000)];
        observed.finish.as_mut().unwrap().connections = vec![totals(u64::MAX), totals(9)];
        assert_eq!(report(observed).total_bytes, u64::MAX);
    }

    fn report(observed: Observed) -> RateReport {
        let address = "192.0.2.1:7000".parse().unwrap();
        build("there:7000", address, 0.0, &RateOptions::default(), observed)
    }

    fn window_bound(rounds: usize) -> Observed {
        let slow_start = [181_000, 362_000, 724_000, 1_448_000];
        upload(&[&slow_start[..], &vec![2_896_000; rounds]].concat())
    }

    #[test]
    fn window_bound_upload_is_recognised() {
        let report = report(window_bound(12));
        assert!(report.settled);
        assert_eq!(report.window.bound_by, BoundBy::Window);
        assert_eq!(report.window_effective_bytes, 2_896_000);
        assert!((report.rate_mbps - 231.68).abs() < 1e-9);
        assert!((report.rate_ip_mbps - 240.0).abs() < 1e-9, "{}", report.rate_ip_mbps);
        assert!((report.discarded_s - 0.6).abs() < 1e-9, "the last second counts");
    }

    #[test]
    fn stable_part_that_ended_test_counts() {
        let mut observed = window_bound(12);
        observed.settled = Some(4..14);
        observed.theirs[15].bytes = 0;
        let report = report(observed);
        assert!(report.settled && (report.rate_mbps - 231.68).abs() < 1e-9);
        assert_eq!(report.intervals.len(), 16);
    }

    #[test]
    fn short_rest_at_the_end_joins_the_last_interval() {
        let mut observed = window_bound(12);
        observed.theirs.push(Record { end_us: 1_601_000, span_us: 1000, bytes: 5, sender: None });
        let report = report(observed);
        let last = report.intervals.last().unwrap();
        assert_eq!((report.intervals.len(), last.bytes), (16, 2_896_005));
        assert!((last.rate_mbps - 229.386).abs() < 0.01);
        assert!((report.duration_s - 1.601).abs() < 1e-9);
    }

    #[test]
    fn moving_window_does_not_end_test() {
        let windows: Vec<u64> = (0..12).map(|round| 2_896_000 + 1448 * round).collect();
        let observed = upload(&windows);
        assert_eq!(observed.settled_part(&StabilityRule::default()), None);
        let report = report(observed);
        assert!(!report.settled);
        assert_eq!(report.window.bound_by, BoundBy::Growth);
    }

    #[test]
    fn lagging_sender_is_judged_by_its_last_record() {
        let mut observed = window_bound(12);
        observed.own.truncate(5);
        let report = report(observed);
        assert_eq!(report.window.window, Bytes::new(2_896_000));
        assert_eq!(report.rtt_steady_ms, 100.2);
    }

    #[test]
    fn empty_test_has_a_report_without_a_rate() {
        let mut observed = upload(&[0]);
        observed.theirs.clear();
        observed.own.clear();
        let report = report(observed);
        assert_eq!((report.rate_mbps, report.rate()), (0.0, None));
        assert!(report.intervals.is_empty());
    }

    #[test]
    fn report_survives_a_round_trip() {
        let report = report(window_bound(12));
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains("\"bound_by\":\"window\"") && json.contains("\"window_bytes\":"));
        let back: RateReport = serde_json::from_str(&json).unwrap();
        assert_eq!((back.window, back.connections), (report.window, report.connections));
        assert_eq!((back.ended, back.total_bytes), (report.ended, report.total_bytes));
        assert!((back.rate_mbps - report.rate_mbps).abs() < 1e-9);
    }
}
