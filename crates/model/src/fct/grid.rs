//! The bytes at which the recurrence of [`super`] is followed, and extrapolation beyond the last of
//! them.

use super::Pace;

/// Share by which the grid grows between the rounds' ends. Chosen: finer changes an FCT by less
/// than 1 %.
const GROWTH: f64 = 1.0 / 16.0;
/// Longest step as a share of the smallest window. Chosen as above.
const WINDOW_SHARE: f64 = 1.0 / 8.0;
/// Most points of one kind, which bounds the work of one path; where windows differ more, steps are
/// longer.
const MAX_POINTS: f64 = 20_000.0;

/// Bytes in rising order, from the first flight to [`Grid::end`].
pub(super) struct Grid {
    points: Vec<f64>,
}

impl Grid {
    /// Creates a grid for these legs, up to `volume` or to where all windows are full with one to
    /// spare.
    pub(super) fn new(paces: &[Pace], volume: f64) -> Self {
        let all_full = paces.iter().map(|pace| pace.steady_from() + pace.window);
        let end = all_full.fold(0.0, f64::max).min(volume);
        let smallest = paces.iter().map(|pace| pace.window).fold(f64::INFINITY, f64::min);
        let longest_step = (smallest * WINDOW_SHARE).max(end / MAX_POINTS);
        let mut points = Vec::new();
        for pace in paces {
            push_rounds(&mut points, pace, end);
            if volume > end {
                points.push(volume - rounds_beyond(pace, end, volume) * pace.window);
            }
        }
        let mut at = paces.iter().map(|pace| pace.initial).fold(f64::INFINITY, f64::min);
        while at < end {
            points.push(at);
            at += (at * GROWTH).min(longest_step);
        }
        points.push(end);
        points.retain(|point| (0.0..=end).contains(point));
        points.sort_unstable_by(f64::total_cmp);
        points.dedup();
        Self { points }
    }

    /// Returns the bytes, in rising order.
    pub(super) fn points(&self) -> &[f64] {
        &self.points
    }

    fn end(&self) -> f64 {
        self.points.last().copied().unwrap_or(0.0)
    }

    /// Returns the time at which byte `volume` leaves a leg, from the times of the grid's bytes.
    ///
    /// Beyond the grid the leg repeats itself: a window each RTT, or bytes at its bandwidth.
    pub(super) fn extrapolate(&self, pace: &Pace, sent: &[f64], volume: f64) -> f64 {
        let end = self.end();
        let at_end = sent.last().copied().unwrap_or(0.0);
        if volume <= end {
            return at_end;
        }
        let rounds = rounds_beyond(pace, end, volume);
        let from = self.points.partition_point(|point| *point < volume - rounds * pace.window);
        let by_window = sent[from.min(sent.len() - 1)] + rounds * pace.rtt;
        by_window.max(at_end + (volume - end) * pace.seconds_per_byte)
    }
}

/// Returns the number of windows between the grid's end and `volume`, the last one counted whole.
fn rounds_beyond(pace: &Pace, end: f64, volume: f64) -> f64 {
    ((volume - end) / pace.window).ceil()
}

/// Adds the last byte of each round of a leg that runs alone, and the first segment of the next.
fn push_rounds(points: &mut Vec<f64>, pace: &Pace, end: f64) {
    let mut last = pace.initial;
    let mut left = MAX_POINTS;
    while last < end && left > 0.0 {
        points.extend([last, last + pace.segment]);
        last = pace.allows_until(last);
        left -= 1.0;
    }
}
