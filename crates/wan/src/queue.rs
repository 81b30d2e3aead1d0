//! A FIFO queue before a rate, with a capacity in bytes.
//!
//! One formula serves links and caps: a virtual clock `full_at` holds the time at which the rate
//! will have transmitted everything that was sent. A link (no burst) releases a segment when the
//! clock has covered it; a cap releases it earlier by the time of its burst, which is a token
//! bucket. The clock keeps the fraction of a nanosecond, so a busy queue's mean rate is exact.

use std::collections::VecDeque;

use tradewind_units::{Bandwidth, Bytes};

use crate::segment::{Nanos, Segment, Timed};

const NANO_BITS_PER_BYTE: u64 = 8_000_000_000;

/// Segments that wait for a rate.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    /// Bits per second; zero means unlimited.
    bps: u64,
    /// Capacity, including the segment in service.
    room_bytes: u64,
    /// The number of queued bytes above which ECN-capable segments are marked.
    ecn_threshold: u64,
    /// The transmission time of a burst; zero for a link.
    burst: Nanos,
    full_at: Nanos,
    /// The fraction of a nanosecond missing in `full_at`, in units of 1/`bps`.
    fraction: u64,
    waiting_bytes: u64,
    pub(crate) waiting: VecDeque<Timed>,
}

/// The result of a segment's arrival at a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It passes at once.
    Passes,
    /// It waits; the queue was empty and its head leaves at this time.
    WaitsFirst(Nanos),
    /// It waits behind others.
    Waits,
    /// The queue is full.
    Refused,
}

impl Queue {
    /// Creates a queue before `rate`; with `None` nothing ever waits.
    pub(crate) fn new(rate: Option<Bandwidth>, room: Bytes) -> Self {
        Self {
            bps: rate.map_or(0, Bandwidth::as_bps),
            room_bytes: room.as_u64(),
            ecn_threshold: u64::MAX,
            burst: 0,
            full_at: 0,
            fraction: 0,
            waiting_bytes: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Sets the burst that passes at once after an idle time.
    pub(crate) fn with_burst(mut self, burst: Bytes) -> Self {
        let nanos = u128::from(burst.as_u64()) * u128::from(NANO_BITS_PER_BYTE);
        self.burst = u64::try_from(nanos / u128::from(self.bps.max(1))).unwrap_or(Nanos::MAX);
        self
    }

    /// Sets the ECN threshold.
    pub(crate) fn with_ecn(mut self, threshold: Option<Bytes>) -> Self {
        self.ecn_threshold = threshold.map_or(u64::MAX, Bytes::as_u64);
        self
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.bps != 0
    }

    pub(crate) fn room(&self) -> Bytes {
        Bytes::new(self.room_bytes)
    }

    pub(crate) fn set_room(&mut self, room: Bytes) {
        self.room_bytes = room.as_u64();
    }

    /// Returns whether it holds nothing and its rate has made up for everything sent.
    pub(crate) fn is_at_rest(&self, now: Nanos) -> bool {
        self.waiting.is_empty() && self.full_at <= now
    }

    /// Offers a segment at `now`, which must not be before any earlier call.
    pub(crate) fn arrive(&mut self, now: Nanos, segment: &mut Segment) -> Arrival {
        if self.bps == 0 && self.waiting.is_empty() {
            return Arrival::Passes;
        }
        let (full_at, fraction) = self.charged(now, segment.bytes);
        let leaves = full_at.saturating_sub(self.burst).max(now);
        if leaves == now && self.waiting.is_empty() {
            (self.full_at, self.fraction) = (full_at, fraction);
            return Arrival::Passes;
        }
        let held = self.waiting_bytes + u64::from(segment.bytes);
        if held > self.room_bytes {
            return Arrival::Refused;
        }
        (self.full_at, self.fraction, self.waiting_bytes) = (full_at, fraction, held);
        if held > self.ecn_threshold && segment.ecn_capable {
            segment.ce_marked = true;
        }
        self.waiting.push_back(Timed { at: leaves, segment: *segment });
        if self.waiting.len() == 1 { Arrival::WaitsFirst(leaves) } else { Arrival::Waits }
    }

    /// Removes the head.
    pub(crate) fn depart(&mut self) -> Option<Timed> {
        let head = self.waiting.pop_front()?;
        self.waiting_bytes -= u64::from(head.segment.bytes);
        Some(head)
    }

    /// Sets another rate at `now`: the rest of the segment in service, and all waiting segments,
    /// get new times. Only for a link (no burst). Returns the head's new time.
    pub(crate) fn set_rate(&mut self, now: Nanos, rate: Option<Bandwidth>) -> Option<Nanos> {
        let old_bps = self.bps;
        self.bps = rate.map_or(0, Bandwidth::as_bps);
        (self.full_at, self.fraction) = (now, 0);
        let mut waiting = std::mem::take(&mut self.waiting);
        for (place, timed) in waiting.iter_mut().enumerate() {
            if self.bps == 0 {
                timed.at = now;
            } else if place == 0 {
                let left = u128::from(timed.at.saturating_sub(now)) * u128::from(old_bps);
                let nanos = u64::try_from(left / u128::from(self.bps)).unwrap_or(Nanos::MAX);
                timed.at = now.saturating_add(nanos);
                self.full_at = timed.at;
            } else {
                (self.full_at, self.fraction) = self.charged(now, timed.segment.bytes);
                timed.at = self.full_at;
            }
        }
        self.waiting = waiting;
        self.waiting.front().map(|head| head.at)
    }

    /// Returns the clock after another segment of `bytes`, as whole and fraction.
    fn charged(&self, now: Nanos, bytes: u32) -> (Nanos, u64) {
        if self.bps == 0 {
            return (now, 0);
        }
        let (start, fraction) =
            if self.full_at < now { (now, 0) } else { (self.full_at, self.fraction) };
        let parts = u64::from(bytes) * NANO_BITS_PER_BYTE + fraction;
        (start.saturating_add(parts / self.bps), parts % self.bps)
    }
}
