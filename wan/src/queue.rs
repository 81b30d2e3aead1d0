//! A first-in, first-out queue before a rate, with room for so many bytes.
//!
//! One formula serves links and caps: a virtual clock `full_at` says when the rate will have made
//! up for everything that was sent. A link (no burst) lets a segment go when the clock has paid
//! for it; a cap lets it go as much earlier as its burst takes to pay, which is a token bucket.
//! The clock keeps the fraction of a nanosecond, so a busy queue's mean rate is exact.

use std::collections::VecDeque;

use tradewind_units::{Bandwidth, Bytes};

use crate::segment::{Nanos, Segment, Timed};

const NANO_BITS_PER_BYTE: u64 = 8_000_000_000;

/// Segments that wait for a rate.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    /// Bits per second; zero is no limit.
    bps: u64,
    /// Room, the segment in service included.
    room_bytes: u64,
    /// Above this many bytes capable segments are marked.
    ecn_threshold: u64,
    /// How long the rate takes to pay for a burst; zero for a link.
    burst: Nanos,
    full_at: Nanos,
    /// What `full_at` lacks, in parts of `bps`.
    fraction: u64,
    waiting_bytes: u64,
    pub(crate) waiting: VecDeque<Timed>,
}

/// What became of a segment at a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It goes on at once.
    Passes,
    /// It waits; the queue was empty and its head leaves at this time.
    WaitsFirst(Nanos),
    /// It waits behind others.
    Waits,
    /// No room.
    Refused,
}

impl Queue {
    /// A queue before `rate` (`None`: nothing ever waits).
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

    /// The same with a burst that passes at once after a silence.
    pub(crate) fn with_burst(mut self, burst: Bytes) -> Self {
        let nanos = u128::from(burst.as_u64()) * u128::from(NANO_BITS_PER_BYTE);
        self.burst = u64::try_from(nanos / u128::from(self.bps.max(1))).unwrap_or(Nanos::MAX);
        self
    }

    /// The same with marks above a threshold.
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

    /// Whether it holds nothing and has forgotten what passed.
    pub(crate) fn is_at_rest(&self, now: Nanos) -> bool {
        self.waiting.is_empty() && self.full_at <= now
    }

    /// Takes a segment at `now`, which must not be before any earlier call.
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

    /// The head leaves.
    pub(crate) fn depart(&mut self) -> Option<Timed> {
        let head = self.waiting.pop_front()?;
        self.waiting_bytes -= u64::from(head.segment.bytes);
        Some(head)
    }

    /// Gives the queue another rate at `now`: what is left of the segment in service, and all that
    /// wait, take their new time. Only for a link (no burst). Returns the head's new time.
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

    /// The clock after another segment of `bytes`, whole and fraction.
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
