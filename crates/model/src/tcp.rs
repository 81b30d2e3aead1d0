//! TCP on a path: rounds of slow start, and the rate that loss allows.

use tradewind_units::{Bandwidth, Bytes, Duration, Ratio, Segments};

/// Mathis's constant for periodic loss and an acknowledgement for each segment: sqrt(3/2) [Mathis
/// 1997, section 3].
const MATHIS_C: f64 = 1.224_744_871_391_589;
/// CUBIC's scaling constant, in segments per second cubed [RFC 9438 5].
const CUBIC_C: f64 = 0.4;
/// CUBIC's multiplicative decrease factor [RFC 9438 4.6].
const CUBIC_BETA: f64 = 0.7;

/// Response of a congestion control to loss, for [`crate::leg::Loss`].
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum LossResponse {
    /// That of Reno, by the formula of Mathis and others.
    Reno,
    /// That of CUBIC `[RFC 9438]`.
    Cubic,
}

impl LossResponse {
    /// Returns the long-run rate of one connection with segments of `mss` over `rtt` that loses
    /// `loss` of its segments.
    #[must_use]
    pub fn rate(self, mss: Bytes, rtt: Duration, loss: Ratio) -> Bandwidth {
        match self {
            Self::Reno => mathis_rate(mss, rtt, loss),
            Self::Cubic => cubic_rate(mss, rtt, loss),
        }
    }
}

/// Returns the rate of a Reno connection under loss: `mss / rtt * sqrt(3/2) / sqrt(loss)` [Mathis
/// 1997].
///
/// Holds for losses of single segments that fast retransmission repairs; with more than a few
/// percent, time-outs make the real rate lower.
#[must_use]
pub fn mathis_rate(mss: Bytes, rtt: Duration, loss: Ratio) -> Bandwidth {
    window_rate(MATHIS_C / loss.as_f64().sqrt(), mss, rtt)
}

/// Returns the rate of a CUBIC connection under loss: the larger of its own response function [RFC
/// 9438 5.1, equation 5] and that of the Reno connection, below which it never falls (4.3).
#[must_use]
pub fn cubic_rate(mss: Bytes, rtt: Duration, loss: Ratio) -> Bandwidth {
    let gain = CUBIC_C * (3.0 + CUBIC_BETA) / (4.0 * (1.0 - CUBIC_BETA));
    let segments = gain.powf(0.25) * (rtt.as_secs_f64() / loss.as_f64()).powf(0.75);
    window_rate(segments, mss, rtt).max(mathis_rate(mss, rtt, loss))
}

/// Returns the rate of an average window of `segments`; no limit when the RTT or the loss is zero.
fn window_rate(segments: f64, mss: Bytes, rtt: Duration) -> Bandwidth {
    let bytes_per_s = segments * mss.as_u64() as f64 / rtt.as_secs_f64();
    if bytes_per_s.is_finite() {
        Bandwidth::saturating_from_bytes_per_s(bytes_per_s)
    } else {
        Bandwidth::MAX
    }
}

/// Returns the bytes that `rounds` of loss-free slow start carry: `initial * (2^rounds - 1)`, the
/// window doubling each RTT [RFC 5681 3.1].
#[must_use]
pub fn slow_start_volume(initial: Segments, mss: Bytes, rounds: u32) -> Bytes {
    let doublings = 1u64.checked_shl(rounds).map_or(u64::MAX, |power| power - 1);
    Bytes::new(initial.payload(mss).as_u64().saturating_mul(doublings))
}

/// Returns the rounds that `volume` takes in loss-free slow start without any limit: the least
/// number whose [`slow_start_volume`] holds it.
#[must_use]
pub fn slow_start_rounds(initial: Segments, mss: Bytes, volume: Bytes) -> u32 {
    (0..=u64::BITS)
        .find(|rounds| slow_start_volume(initial, mss, *rounds) >= volume)
        .unwrap_or(u64::BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: Bytes = Bytes::new(1448);

    fn share(loss: f64) -> Ratio {
        Ratio::new(loss).unwrap()
    }

    #[test]
    fn mathis_gives_the_textbook_window() {
        // One loss in 150 segments keeps Reno at an average window of sqrt(1.5 * 150) = 15
        // segments.
        let rate = mathis_rate(MSS, Duration::from_millis(100), share(1.0 / 150.0));
        let expected = 15.0 * 1448.0 * 8.0 / 0.1;
        assert!((rate.as_bps() as f64 / expected - 1.0).abs() < 1e-6, "{rate}");
    }

    #[test]
    fn cubic_matches_rfc_9438_table() {
        // RFC 9438 5.1, table 1 (RTT 0.1 s): average windows in segments at C = 0.4.
        for (loss, segments) in [(1e-4, 187.0), (1e-5, 1054.0), (1e-6, 5926.0), (1e-7, 33_325.0)] {
            let rate = cubic_rate(MSS, Duration::from_millis(100), share(loss));
            let expected = segments * 1448.0 * 8.0 / 0.1;
            assert!((rate.as_bps() as f64 / expected - 1.0).abs() < 0.01, "{loss}: {rate}");
        }
    }

    #[test]
    fn cubic_is_never_slower_than_reno() {
        let rtt = Duration::from_millis(10);
        assert_eq!(cubic_rate(MSS, rtt, share(0.01)), mathis_rate(MSS, rtt, share(0.01)));
    }

    #[test]
    fn without_loss_or_distance_nothing_limits() {
        assert_eq!(mathis_rate(MSS, Duration::from_millis(10), Ratio::ZERO), Bandwidth::MAX);
        assert_eq!(mathis_rate(MSS, Duration::ZERO, share(0.1)), Bandwidth::MAX);
        assert_eq!(cubic_rate(MSS, Duration::ZERO, Ratio::ZERO), Bandwidth::MAX);
    }

    #[test]
    fn slow_start_doubles_each_round() {
        let ten = Segments::new(10).unwrap();
        assert_eq!(slow_start_volume(ten, MSS, 3), Bytes::new(7 * 14_480));
        assert_eq!(slow_start_rounds(ten, MSS, Bytes::new(7 * 14_480)), 3);
        assert_eq!(slow_start_rounds(ten, MSS, Bytes::new(7 * 14_480 + 1)), 4);
        assert_eq!(slow_start_rounds(ten, MSS, Bytes::ZERO), 0);
        assert!(slow_start_rounds(ten, MSS, Bytes::new(u64::MAX)) < 60);
    }

    #[test]
    fn larger_initial_window_saves_riptides_rounds() {
        // [RT Fig. 3 and 5]: 100 KB takes three rounds from 10 segments, two from 50, one from 100.
        let file = Bytes::new(100_000);
        for (window, rounds) in [(10, 3), (25, 2), (50, 2), (100, 1)] {
            assert_eq!(slow_start_rounds(Segments::new(window).unwrap(), MSS, file), rounds);
        }
    }
}
