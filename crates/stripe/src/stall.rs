//! The time without progress after which a connection of a striped leg counts as stalled.
//!
//! That time passes between two acknowledgements of frames by the remote relay, while the
//! connection carries some. TCP mends a loss within its retransmission timeout, and a second one
//! within twice as much again; the frame then still takes its time on the wire, behind the data
//! given to the kernel before it. A connection that is silent for longer has more than a loss to
//! mend, so its frames are sent over others as well. A wrong guess costs bytes that are sent twice,
//! no more.

use tradewind_units::{Bandwidth, Bytes, Duration};

/// The kernel's figures of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Smoothed variation of the round-trip time.
    pub variation: Duration,
    /// Delivery rate, where it is known: not while it is limited by the application.
    pub rate: Option<Bandwidth>,
}

/// Least value of four times the variation: Linux's least retransmission timeout beyond the
/// round-trip time.
const MIN_SPREAD: Duration = Duration::from_millis(200);
/// Timeouts until the second retransmission of a lone segment: one, and then one of twice the
/// length (RFC 6298, 5.5).
const TIMEOUTS: u32 = 3;
/// Frames that may precede an acknowledgement: two unsent in the kernel, the one under way, and one
/// of the other direction before the acknowledgement.
const FRAMES: u32 = 4;
/// Shortest time. RFC 6298's least timeout: below it, relays that are short of processor time would
/// look stalled.
pub const MIN: Duration = Duration::from_secs(1);
/// Longest time. Chosen: what a stream may wait for the slowest of its connections, while others
/// are idle.
pub const MAX: Duration = Duration::from_secs(10);

/// Returns the time for a connection that carries frames of `chunk` bytes.
#[must_use]
pub fn stall_after(pace: Pace, chunk: usize) -> Duration {
    let timeout = pace.rtt.saturating_add(pace.variation.saturating_mul(4).max(MIN_SPREAD));
    let frame = pace.rate.map_or(Duration::ZERO, |rate| rate.time_for(Bytes::new(chunk as u64)));
    let silence = timeout.saturating_mul(TIMEOUTS).saturating_add(frame.saturating_mul(FRAMES));
    silence.clamp(MIN, MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 128 << 10;

    fn after(rtt_ms: u64, variation_ms: u64, rate: Option<u64>) -> Duration {
        let pace = Pace {
            rtt: Duration::from_millis(rtt_ms),
            variation: Duration::from_millis(variation_ms),
            rate: rate.map(|bps| Bandwidth::from_bps(bps).unwrap()),
        };
        stall_after(pace, CHUNK)
    }

    #[test]
    fn stall_time_covers_two_losses_and_queued_frames() {
        assert_eq!(after(0, 0, None), MIN, "a network of one room");
        assert_eq!(after(200, 10, None), Duration::from_millis(1200), "three timeouts of 400 ms");
        assert_eq!(after(200, 100, None), Duration::from_millis(1800));
        // Four frames of 1,048,576 bits at 1 Mbit/s.
        let slow = after(200, 10, Some(1_000_000));
        assert_eq!(slow, Duration::from_millis(1200) + Duration::from_nanos(4_194_304_000));
        assert_eq!(after(200, 10, Some(1_000)), MAX, "slower than a modem");
        assert_eq!(after(60_000, 60_000, None), MAX);
    }

    #[test]
    fn stall_time_grows_with_latency_and_slowness() {
        let mut before = Duration::ZERO;
        for rtt in [0, 1, 10, 100, 300, 1000, 10_000] {
            let now = after(rtt, rtt / 8, Some(10_000_000));
            assert!(now >= before);
            before = now;
        }
        let rates = [10_000_000_000, 100_000_000, 1_000_000, 10_000, 1];
        let silences = rates.map(|rate| after(50, 5, Some(rate)));
        assert!(silences.is_sorted(), "{silences:?}");
    }
}
