//! The limit of a rate test: the window, the path, or nothing yet. Pure.
//!
//! The planner's model is rate = min(window / RTT, capacity) [CP IV-B]: it must know which of the
//! two a measured rate stands for. The signs, for a steady part, in this order:
//!
//! 1. the receiver's window or the send buffer stopped the sender for most of its busy time
//!    (reported by the kernel): a window;
//! 2. a queue stands (the round trip is well above its minimum) or segments were lost: the path's
//!    capacity, and the window is at least the payload in flight;
//! 3. the congestion window is used up: if it is constant it is locked, a window; if it changes it
//!    still grows, slowly as after a loss or a cautious end of slow start, and the rate is a lower
//!    bound of everything;
//! 4. else the sender limits itself, as a rate-based control does at the path's capacity.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tradewind_units::{Bytes, Ratio};

/// Excess of the round trip over its minimum that means a standing queue. Chosen: 10 % and 1 ms,
/// above the noise of a lab on a busy machine.
const QUEUE_SHARE: f64 = 0.10;
const QUEUE_FLOOR: Duration = Duration::from_millis(1);
/// Share of its busy time in which a window must have stopped the sender. Chosen: half.
const LIMITED_SHARE: f64 = 0.5;
/// Share of the congestion window that must have been in flight for it to be used up. Chosen:
/// samples come between bursts, too.
const USED_UP_SHARE: f64 = 0.9;

/// The sender's figures in a steady part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SenderView {
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
    /// The congestion windows together, at the end.
    pub congestion_window: Bytes,
    /// True if they were the same in every interval (of at least three).
    pub congestion_window_constant: bool,
}

/// The limit of the rate.
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

/// The window that a test found, and its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowEstimate {
    /// The limit of the rate.
    pub bound_by: BoundBy,
    /// The window if `bound_by` is `window`, else a lower bound of it. All connections together.
    #[serde(rename = "window_bytes", with = "plain_bytes")]
    pub window: Bytes,
}

/// Estimates the window from the sender's figures in a steady part.
#[must_use]
pub fn window_estimate(view: &SenderView) -> WindowEstimate {
    let stopped = |share: Ratio| share.as_f64() >= LIMITED_SHARE;
    let allowance = view.rtt_min.mul_f64(QUEUE_SHARE).max(QUEUE_FLOOR);
    let queue_stands = view.rtt_steady > view.rtt_min + allowance;
    let used_up = view.in_flight_max >= view.congestion_window.scaled(USED_UP_SHARE);
    let bound_by = if stopped(view.receive_window_limited) || stopped(view.send_buffer_limited) {
        BoundBy::Window
    } else if queue_stands || view.retransmits > 0 {
        BoundBy::Capacity
    } else if used_up && view.congestion_window > Bytes::ZERO {
        if view.congestion_window_constant { BoundBy::Window } else { BoundBy::Growth }
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

    /// Returns CP's window over 100 ms: 2.875 MB in flight, no queue, no loss.
    fn locked() -> SenderView {
        SenderView {
            rtt_min: Duration::from_millis(100),
            rtt_steady: Duration::from_micros(100_300),
            in_flight_max: Bytes::new(2_875_000),
            retransmits: 0,
            receive_window_limited: Ratio::ZERO,
            send_buffer_limited: Ratio::ZERO,
            congestion_window: Bytes::new(2_875_000),
            congestion_window_constant: true,
        }
    }

    fn bound_by(view: SenderView) -> BoundBy {
        window_estimate(&view).bound_by
    }

    #[test]
    fn locked_window_is_recognised() {
        let estimate = window_estimate(&locked());
        assert_eq!(estimate.bound_by, BoundBy::Window);
        assert_eq!(estimate.window, Bytes::new(2_875_000));
    }

    #[test]
    fn kernel_reported_limit_takes_precedence() {
        let full = Ratio::new(0.9).unwrap();
        let congestion_window = Bytes::new(9_000_000);
        let view = SenderView { congestion_window, retransmits: 1, ..locked() };
        let receiver = SenderView { receive_window_limited: full, ..view };
        assert_eq!(bound_by(receiver), BoundBy::Window);
        let buffer = SenderView { send_buffer_limited: full, ..view };
        assert_eq!(bound_by(buffer), BoundBy::Window);
    }

    #[test]
    fn standing_queue_or_losses_mean_capacity() {
        let rtt_steady = Duration::from_millis(140);
        assert_eq!(bound_by(SenderView { rtt_steady, ..locked() }), BoundBy::Capacity);
        assert_eq!(bound_by(SenderView { retransmits: 3, ..locked() }), BoundBy::Capacity);
    }

    #[test]
    fn changing_used_up_congestion_window_is_growth() {
        let growing = SenderView { congestion_window_constant: false, ..locked() };
        assert_eq!(bound_by(growing), BoundBy::Growth);
    }

    #[test]
    fn self_limited_sender_is_at_capacity() {
        let congestion_window = Bytes::new(5_750_000);
        assert_eq!(bound_by(SenderView { congestion_window, ..locked() }), BoundBy::Capacity);
    }

    #[test]
    fn unknown_view_is_no_window() {
        let (in_flight_max, congestion_window) = (Bytes::ZERO, Bytes::ZERO);
        let nothing = SenderView { in_flight_max, congestion_window, ..locked() };
        assert_eq!(bound_by(nothing), BoundBy::Capacity);
    }
}
