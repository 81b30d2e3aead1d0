//! The record of a call's packets and frames: send time, first arrival, and whether that was in
//! time.
//!
//! A receiver plays at a fixed delay: a packet that arrives later than the budget after it was sent
//! is as good as lost. A frame of video is whole when all its packets were in time. A *freeze* is
//! defined as in browsers (W3C, Identifiers for WebRTC's Statistics API, `freezeCount`): the time
//! between two whole frames is at least three frames' time, and 150 ms more than one.

use std::time::Duration;

use super::rtp::Rtp;

/// The least excess of a freeze over a frame's time.
const FREEZE_BEYOND: Duration = Duration::from_millis(150);
/// The clock of video over RTP, in ticks per second (RFC 6184).
const VIDEO_CLOCK: f64 = 90_000.0;

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fate {
    timestamp: u32,
    /// The send time.
    pub(super) sent: Duration,
    came: Option<Duration>,
}

/// All packets of a call that were sent, in their order.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    budget: Duration,
    first: u16,
    fates: Vec<Fate>,
}

/// The arrival of a frame at its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// All packets arrived in time.
    Whole,
    /// All packets arrived, some too late.
    Late,
    /// Some packets are missing.
    Broken,
}

/// A frame of video.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// The send time of its first packet.
    pub(super) sent: Duration,
    /// Its arrival.
    pub(super) arrival: Arrival,
}

impl Ledger {
    /// Creates the record of a call whose packets must arrive within `budget`.
    pub(super) fn new(budget: Duration) -> Self {
        Self { budget, first: 0, fates: Vec::new() }
    }

    /// Records a sent packet. Skipped ones before it count as lost.
    pub(super) fn leave(&mut self, rtp: Rtp, at: Duration) {
        if self.fates.is_empty() {
            self.first = rtp.sequence;
        }
        let fate = Fate { timestamp: rtp.timestamp, sent: at, came: None };
        let place = usize::from(rtp.sequence.wrapping_sub(self.first));
        if place >= self.fates.len() {
            self.fates.resize(place + 1, fate);
        }
    }

    /// Records an arrival. Returns the index and the play time of a packet that arrives for the
    /// first time, and in time.
    pub(super) fn come(&mut self, rtp: Rtp, at: Duration) -> Option<(usize, Duration)> {
        let place = usize::from(rtp.sequence.wrapping_sub(self.first));
        let fate = self.fates.get_mut(place).filter(|fate| fate.came.is_none())?;
        fate.came = Some(at);
        let played = fate.sent + self.budget;
        (at <= played).then_some((place, played))
    }

    /// Returns the time from the first frame to a packet's frame, by the video clock.
    pub(super) fn later(&self, place: usize) -> Duration {
        let [first, such] =
            [0, place].map(|place| self.fates.get(place).map(|fate| fate.timestamp));
        let ticks = such.unwrap_or_default().wrapping_sub(first.unwrap_or_default());
        Duration::from_secs_f64(f64::from(ticks) / VIDEO_CLOCK)
    }

    /// Returns for each packet sent in a span whether it was in time.
    pub(super) fn played(
        &self,
        sent: &std::ops::Range<Duration>,
    ) -> impl Iterator<Item = bool> + use<'_> {
        let sent = sent.clone();
        let such = self.fates.iter().filter(move |fate| sent.contains(&fate.sent));
        such.map(|fate| self.arrival(fate) == Arrival::Whole)
    }

    fn arrival(&self, fate: &Fate) -> Arrival {
        match fate.came {
            Some(came) if came <= fate.sent + self.budget => Arrival::Whole,
            Some(_) => Arrival::Late,
            None => Arrival::Broken,
        }
    }

    /// Returns the frames, in their order.
    pub(super) fn frames(&self) -> Vec<Frame> {
        let same = |one: &Fate, next: &Fate| one.timestamp == next.timestamp;
        let frame = |packets: &[Fate]| Frame {
            sent: packets[0].sent,
            arrival: packets
                .iter()
                .map(|fate| self.arrival(fate))
                .max_by_key(|arrival| *arrival as u8)
                .expect("a frame has packets"),
        };
        self.fates.chunk_by(same).map(frame).collect()
    }
}

/// Periods without a new frame.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Freezes {
    /// The number of freezes.
    pub(super) count: usize,
    /// The sum of their lengths, in seconds.
    pub(super) seconds: f64,
}

/// Returns the freezes of frames whose interval is `interval`.
pub(super) fn freezes(frames: &[Frame], interval: Duration) -> Freezes {
    let least = (3 * interval).max(interval + FREEZE_BEYOND);
    let mut all = Freezes::default();
    let is_shown = |frame: &Frame| frame.arrival == Arrival::Whole;
    for missing in frames.split(is_shown) {
        let still = interval * u32::try_from(missing.len() + 1).unwrap_or(u32::MAX);
        if still > least {
            all.count += 1;
            all.seconds += still.as_secs_f64();
        }
    }
    all
}

/// Largest number of packets of a call: their numbers have 16 bits.
pub(super) const MAX_PACKETS: f64 = 60_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Records frames of two packets, 40 ms apart; `after` holds the delay of each packet in ms, if
    /// it arrives.
    fn ledger(first: u16, after: &[[Option<u64>; 2]]) -> Ledger {
        let mut ledger = Ledger::new(MS(100));
        let mut sequence = first;
        for (frame, packets) in after.iter().enumerate() {
            let sent = MS(40 * frame as u64);
            for after in packets {
                let timestamp = 3_600 * frame as u32;
                let rtp = Rtp { sequence, timestamp };
                ledger.leave(rtp, sent);
                if let Some(after) = after {
                    ledger.come(rtp, sent + MS(*after));
                }
                sequence = sequence.wrapping_add(1);
            }
        }
        ledger
    }

    #[test]
    fn frame_is_whole_late_or_broken() {
        let after =
            [[Some(50), Some(100)], [Some(50), Some(101)], [Some(500), None], [Some(30), Some(30)]];
        // Sequence numbers wrap at 65,536.
        for first in [0, 65_533] {
            let arrivals: Vec<_> =
                ledger(first, &after).frames().iter().map(|frame| frame.arrival).collect();
            use Arrival::{Broken, Late, Whole};
            assert_eq!(arrivals, [Whole, Late, Broken, Whole]);
        }
    }

    #[test]
    fn only_the_first_copy_in_time_is_played() {
        let mut ledger = Ledger::new(MS(100));
        let rtp = |sequence| Rtp { sequence, timestamp: 0 };
        ledger.leave(rtp(9), MS(5));
        ledger.leave(rtp(10), MS(6));
        assert_eq!(ledger.come(rtp(10), MS(60)), Some((1, MS(106))));
        assert_eq!(ledger.come(rtp(10), MS(61)), None);
        assert_eq!(ledger.come(rtp(9), MS(106)), None);
        assert_eq!(ledger.come(rtp(11), MS(50)), None);
        assert_eq!(ledger.played(&(MS(0)..MS(10))).collect::<Vec<_>>(), [false, true]);
        assert_eq!(ledger.played(&(MS(6)..MS(10))).collect::<Vec<_>>(), [true]);
    }

    #[test]
    fn unsent_packets_are_lost() {
        let mut ledger = Ledger::new(MS(100));
        ledger.leave(Rtp { sequence: 1, timestamp: 0 }, MS(0));
        ledger.leave(Rtp { sequence: 3, timestamp: 0 }, MS(0));
        assert_eq!(ledger.played(&(MS(0)..MS(1))).count(), 3);
    }

    #[test]
    fn frame_times_follow_the_video_clock() {
        let ledger = ledger(9, &[[None, None], [None, None], [Some(1), Some(1)]]);
        assert_eq!([0, 3, 4].map(|place| ledger.later(place)), [MS(0), MS(40), MS(80)]);
    }

    #[test]
    fn four_missing_frames_are_a_freeze() {
        let frames = |pattern: &str| -> Vec<Frame> {
            let frame = |shown| Frame {
                sent: MS(0),
                arrival: if shown == 'x' { Arrival::Whole } else { Arrival::Late },
            };
            pattern.chars().map(frame).collect()
        };
        assert_eq!(freezes(&frames("xx...xx"), MS(40)), Freezes::default());
        let four = freezes(&frames("xx....xx"), MS(40));
        assert_eq!(four.count, 1);
        assert!((four.seconds - 0.2).abs() < 1e-9);
        let two = freezes(&frames("x....xx........."), MS(40));
        assert_eq!(two.count, 2);
        assert!((two.seconds - 0.6).abs() < 1e-9);
        assert_eq!(freezes(&[], MS(40)), Freezes::default());
    }
}
