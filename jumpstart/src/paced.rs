//! What a path was seen to carry: delivery rate times least round-trip time.
//!
//! A congestion window says what a connection was allowed; that it grew while the application sent
//! little, or was set by ourselves, shows nothing about the path. A sample counts here only when
//!
//! - its rate is not the application's (`tcpi_delivery_rate_app_limited`),
//! - more was acknowledged since it was last seen, so that an idle connection does not vouch for a
//!   path that it has not used for a while,
//! - and never for more segments than it has had acknowledged: a window that we set cannot prove
//!   itself right before it has been delivered.

use tradewind_units::Duration;

use crate::Sample;

/// What one connection shows of its path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// Segments that fit into the path at once.
    pub window: f64,
    /// Bits per second that arrived.
    pub rate_bps: f64,
    /// Least round-trip time.
    pub rtt: Duration,
}

impl Evidence {
    /// What `sample` shows, if anything; `acked_before` is what it had had acknowledged when it was
    /// last seen.
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
        Some(Self { window: window.min(sample.acked_segments()), rate_bps, rtt })
    }
}

/// The rate of a window of `segments` a round-trip time, in bits per second. A start that is lent less than
/// the default window's rate gains nothing from jumping.
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
    fn a_sample_shows_no_more_than_was_acknowledged() {
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
    fn neither_an_idle_connection_nor_a_slow_application_shows_a_path() {
        let mut seen = sample(1, "10.0.0.1");
        assert!(Evidence::of(&seen, 0).is_some());
        assert_eq!(Evidence::of(&seen, seen.acked.as_u64()), None);
        seen.application_limited = true;
        assert_eq!(Evidence::of(&seen, 0), None);
    }
}
