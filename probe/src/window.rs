//! What held a rate test back: the window, the path, or nothing yet. Pure.
//!
//! The planner's model is rate = min(window / RTT, capacity) [CP IV-B]: it must know which of the
//! two a measured rate stands for. The signs, for a steady part:
//!
//! - the receiver's window or the send buffer stopped the sender for most of its busy time: the
//!   kernel says so itself;
//! - else, when no queue stands (the round trip is near its minimum), nothing was lost and what is
//!   in flight equals rate times round trip: a window, e.g. one locked by a route;
//! - a standing queue, losses, or more in flight than the rate explains (a rate-based control
//!   probing): the path's capacity; the window is at least what was in flight;
//! - slow start that ended without a loss, no queue: the control left it by caution and grows
//!   slowly; the rate is a lower bound of everything.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tradewind_units::{Bytes, Ratio};

/// A round trip this much above its minimum means a standing queue. Chosen: 10 % and 1 ms, above
/// the noise of a lab on a busy machine.
const QUEUE_SHARE: f64 = 0.10;
const QUEUE_FLOOR: Duration = Duration::from_millis(1);
/// Of its busy time, how much a sender must have been stopped by a window. Chosen: half.
const LIMITED_SHARE: f64 = 0.5;
/// How far what is in flight may lie from rate times round trip. Chosen: the sampled maximum of
/// what is in flight lies a little above its mean.
const IN_FLIGHT_RANGE: std::ops::RangeInclusive<f64> = 0.85..=1.25;

/// What a steady part's sender showed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SenderView {
    /// Payload per second that arrived.
    pub bytes_per_s: f64,
    /// Least round trip of the connections.
    pub rtt_min: Duration,
    /// Smoothed round trip during the steady part.
    pub rtt_steady: Duration,
    /// Most payload in flight on all connections together.
    pub in_flight_max: Bytes,
    /// Segments retransmitted during the steady part.
    pub retransmits: u64,
    /// Share of its busy time in which the peer's window stopped the sender.
    pub receive_window_limited: Ratio,
    /// Share of its busy time in which its own send buffer stopped it.
    pub send_buffer_limited: Ratio,
    /// Whether slow start was left although nothing was ever lost.
    pub left_slow_start_without_loss: bool,
}

/// What bound the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundBy {
    /// A window: the rate is window / RTT, and another RTT would give another rate.
    Window,
    /// The path or a host's cap: the rate is the capacity, the window is at least what is given.
    Capacity,
    /// The congestion control was still growing: rate and window are lower bounds.
    Growth,
}

/// The window that a test showed, and how to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowEstimate {
    /// What bound the rate.
    pub bound_by: BoundBy,
    /// The window when `bound_by` is `window`; else a lower bound of it. All connections together.
    #[serde(rename = "window_bytes", with = "plain_bytes")]
    pub window: Bytes,
}

/// Reads the window out of what the sender of a steady part showed.
#[must_use]
pub fn window_estimate(view: &SenderView) -> WindowEstimate {
    let stopped = |share: Ratio| share.as_f64() >= LIMITED_SHARE;
    let allowance = view.rtt_min.mul_f64(QUEUE_SHARE).max(QUEUE_FLOOR);
    let queue_stands = view.rtt_steady > view.rtt_min + allowance;
    let explained = view.bytes_per_s * view.rtt_steady.as_secs_f64();
    let in_flight = view.in_flight_max.as_u64() as f64;
    let matches = explained > 0.0 && IN_FLIGHT_RANGE.contains(&(in_flight / explained));
    let bound_by = if stopped(view.receive_window_limited) || stopped(view.send_buffer_limited) {
        BoundBy::Window
    } else if queue_stands || view.retransmits > 0 {
        BoundBy::Capacity
    } else if view.left_slow_start_without_loss {
        BoundBy::Growth
    } else if matches {
        BoundBy::Window
    } else {
        BoundBy::Capacity
    };
    WindowEstimate { bound_by, window: view.in_flight_max }
}

/// Bytes as a plain number, for fields whose name ends in `_bytes`.
pub(crate) mod plain_bytes {
    use serde::{Deserialize, Deserializer, Serializer};
    use tradewind_units::Bytes;

    pub(crate) fn serialize<S: Serializer>(
        bytes: &Bytes,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(bytes.as_u64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Bytes, D::Error> {
        u64::deserialize(deserializer).map(Bytes::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CP's window over 100 ms: 2.875 MB in flight, 28.75 MB/s, no queue, no loss.
    fn window_bound() -> SenderView {
        SenderView {
            bytes_per_s: 28_750_000.0,
            rtt_min: Duration::from_millis(100),
            rtt_steady: Duration::from_micros(100_300),
            in_flight_max: Bytes::new(2_875_000),
            retransmits: 0,
            receive_window_limited: Ratio::ZERO,
            send_buffer_limited: Ratio::ZERO,
            left_slow_start_without_loss: false,
        }
    }

    #[test]
    fn a_locked_window_is_recognised() {
        let estimate = window_estimate(&window_bound());
        assert_eq!(estimate.bound_by, BoundBy::Window);
        assert_eq!(estimate.window, Bytes::new(2_875_000));
    }

    #[test]
    fn the_kernels_word_about_a_full_window_or_buffer_counts_first() {
        let full = Ratio::new(0.9).unwrap();
        let receiver = SenderView { receive_window_limited: full, ..window_bound() };
        assert_eq!(window_estimate(&receiver).bound_by, BoundBy::Window);
        let buffer = SenderView { send_buffer_limited: full, bytes_per_s: 9e6, ..window_bound() };
        assert_eq!(window_estimate(&buffer).bound_by, BoundBy::Window);
    }

    #[test]
    fn a_standing_queue_or_losses_mean_capacity() {
        let queue = SenderView { rtt_steady: Duration::from_millis(140), ..window_bound() };
        assert_eq!(window_estimate(&queue).bound_by, BoundBy::Capacity);
        let losses = SenderView { retransmits: 3, ..window_bound() };
        assert_eq!(window_estimate(&losses).bound_by, BoundBy::Capacity);
    }

    #[test]
    fn more_in_flight_than_the_rate_explains_means_capacity() {
        let probing = SenderView { in_flight_max: Bytes::new(5_750_000), ..window_bound() };
        assert_eq!(window_estimate(&probing).bound_by, BoundBy::Capacity);
    }

    #[test]
    fn caution_without_loss_is_growth() {
        let cautious = SenderView { left_slow_start_without_loss: true, ..window_bound() };
        assert_eq!(window_estimate(&cautious).bound_by, BoundBy::Growth);
    }

    #[test]
    fn nothing_at_all_does_not_divide_by_zero() {
        let nothing = SenderView { bytes_per_s: 0.0, in_flight_max: Bytes::ZERO, ..window_bound() };
        assert_eq!(window_estimate(&nothing).bound_by, BoundBy::Capacity);
    }
}
