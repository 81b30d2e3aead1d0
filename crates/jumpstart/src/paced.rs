//! Evidence of what a path carries: delivery rate times least round-trip time.
//!
//! A congestion window is what a connection was allowed; that it grew while the application sent
//! little, or was set by ourselves, shows nothing about the path. A sample counts here only when
//! little, or was set by ourselves, shows nothing about the path. A sample counts here only when
//!
//! - its rate is not the application's (`tcpi_delivery_rate_app_limited`),
//! - more was acknowledged since the sample before, so that an idle connection does not confirm a
//!   path that it has not used for a while,
//! - and never for more segments than it has had acknowledged: a window that we set cannot prove
//!   itself right before it has been delivered.
//!
//! A rate-limited connection, as those that jump are, shows that the path carries what it sends,
//! and nothing beyond: it may raise the learned value and confirm it, and does not lower it
//! ([`Evidence::is_held_back`]). Otherwise connections that jump with a share of the rate would
//! teach that share, and the next ones a share of that.

use tradewind_units::Duration;

use crate::Sample;

/// Evidence that one connection gives of its path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// Segments in flight that fill the path.
    pub window: f64,
    /// Bits per second that arrived.
    pub rate_bps: f64,
    /// Least round-trip time.
    pub rtt: Duration,
    /// True if the connection's rate is limited, and it delivered what a path that carries the
    /// limit would show.
    pub is_held_back: bool,
}

/// Share of the expected rate from which on a rate-limited connection's path counts as carrying its
/// limit. Chosen: halfway between a path that does and one that is lost.
const SEEN_SHARE: f64 = 0.5;

impl Evidence {
    /// Returns the evidence in `sample`, if any; `acked_before` is the number of bytes that were
    /// acknowledged at the sample before.
    #[must_use]
    pub fn of(sample: &Sample, acked_before: u64) -> Option<Self> {
        let moved = sample.acked.as_u64() > acked_before;
        let (rate, rtt) = (sample.delivery_rate?, sample.rtt_min?);
        if sample.application_limited || !moved {
            return None;
        }
        let rate_bps = rate.as_bps() as f64;
        let in_path = rate.as_bytes_per_s() * rtt.as_secs_f64();
        let window = in_path / sample.mss.as_u64().max(1) as f64;
        let is_held_back = sample.rate_limit.is_some_and(|limit| {
            // The first flight's bytes take a round trip and their time on the wire.
            let wire_s = sample.acked.as_u64() as f64 / limit.as_bytes_per_s();
            let shown = sample.acked.as_u64() as f64 / (rtt.as_secs_f64() + wire_s);
            rate.as_bytes_per_s() >= SEEN_SHARE * shown
        });
        let window = window.min(sample.acked_segments());
        Some(Self { window, rate_bps, rtt, is_held_back })
    }
}

/// Returns the rate of a window of `segments` a round-trip time, in bits per second. A start that
/// is lent less than the default window's rate gains nothing from jumping.
#[must_use]
pub fn rate_of_window(segments: f64, mss_bytes: f64, rtt: Duration) -> f64 {
    segments * mss_bytes * 8.0 / rtt.as_secs_f64().max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::tests_support::sample;
    use tradewind_units::{Bandwidth, Bytes};

    #[test]
    fn sample_is_bounded_by_acknowledged_bytes() {
        let mut seen = sample(1, "10.0.0.1");
        seen.delivery_rate = Some(Bandwidth::from_mbps(100.0).unwrap());
        seen.rtt_min = Some(Duration::from_millis(100));
        seen.acked = Bytes::new(20_000);
        // The path holds 1.25 MB, but twenty thousand bytes prove twenty segments of 1000.
        assert_eq!(Evidence::of(&seen, 0).unwrap().window, 20.0);
        seen.acked = Bytes::new(50_000_000);
        assert_eq!(Evidence::of(&seen, 0).unwrap().window, 1250.0);
    }

    #[test]
    fn idle_or_application_limited_sample_is_no_evidence() {
        let mut seen = sample(1, "10.0.0.1");
        assert!(Evidence::of(&seen, 0).is_some());
        assert_eq!(Evidence::of(&seen, seen.acked.as_u64()), None);
        seen.application_limited = true;
        assert_eq!(Evidence::of(&seen, 0), None);
    }

    #[test]
    fn rate_limited_connection_differs_from_a_slow_path() {
        let mbps = |rate| Bandwidth::from_mbps(rate).ok();
        let mut seen = sample(1, "10.0.0.1");
        (seen.acked, seen.rate_limit) = (Bytes::new(200_000), mbps(40.0));
        // 200 kB at 40 Mbit/s over 40 ms come in 80 ms: 20 Mbit/s.
        for (shown, held_back) in [(40.0, true), (20.0, true), (10.1, true), (9.9, false)] {
            seen.delivery_rate = mbps(shown);
            assert_eq!(Evidence::of(&seen, 0).unwrap().is_held_back, held_back, "{shown}");
        }
        (seen.delivery_rate, seen.rate_limit) = (mbps(40.0), None);
        assert!(!Evidence::of(&seen, 0).unwrap().is_held_back);
    }
}
