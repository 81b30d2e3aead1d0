//! One modelled connection: a congestion window, acknowledged segment by segment.
//!
//! Only what moves the window is modelled. A transfer is sent as the window allows and acknowledged
//! in order; an acknowledgement adds a segment in slow start, and one a window after a loss; a loss
//! leaves 0.7 of the window, once a flight. The condition for growth is the kernel's, and kernels
//! differ ([`Growth`]). After idling, Linux halves the window for each retransmission time-out,
//! down to the window that its route gives to new connections.

use serde::Deserialize;
use tradewind_units::Duration;

use crate::harness::Random;

/// Share of a window that CUBIC leaves at a loss [RFC 9438 4.6].
const DECREASE: f64 = 0.7;
/// Least window.
const MIN: f64 = 2.0;
/// Linux's least retransmission time-out beyond the round trip.
const TIME_OUT_BEYOND_RTT: Duration = Duration::from_millis(200);
/// Unused share of a window up to which Linux until 3.15 took it for full (`tcp_tso_win_divisor`).
const UNUSED_SHARE: f64 = 1.0 / 3.0;

/// Condition under which slow start lets a window grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Growth {
    /// While it is all but full: `tcp_is_cwnd_limited` of Linux until 3.15. The paper names 3.2.
    WhileFull,
    /// While at least half of it was in flight: Linux since 3.16.
    WhileHalfUsed,
}

/// Properties of a path.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Round trip.
    pub rtt: Duration,
    /// Share of segments lost.
    pub loss: f64,
    /// Segments in flight at most.
    pub most: f64,
}

/// A connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Connection {
    /// Its number.
    pub id: u64,
    /// Congestion window, in segments.
    pub window: f64,
    /// Window at which slow start ends; none while nothing has ended it.
    pub threshold: Option<f64>,
    /// Segments acknowledged in its life.
    pub acked: u64,
    /// Segments lost in its life.
    pub lost: u32,
    /// End of its last transfer, from the simulation's start.
    pub busy_until: Duration,
}

impl Connection {
    /// Creates a connection with an initial window, at `now`.
    #[must_use]
    pub fn open(id: u64, initial_window: f64, now: Duration) -> Self {
        Self { id, window: initial_window, threshold: None, acked: 0, lost: 0, busy_until: now }
    }

    /// Applies idling since the last transfer to the window, before a transfer at `now`, where new
    /// connections would begin with `initial_window`.
    pub fn restart(&mut self, now: Duration, initial_window: f64, path: &Path) {
        let time_out = path.rtt + TIME_OUT_BEYOND_RTT;
        let mut idle = now.saturating_sub(self.busy_until);
        if idle <= time_out {
            return;
        }
        let least = initial_window.min(self.window);
        self.threshold = self.threshold.map(|threshold| threshold.max(0.75 * self.window));
        while idle > time_out && self.window > least {
            self.window = (self.window / 2.0).max(least);
            idle -= time_out;
        }
    }

    /// Carries `segments` from `now` on.
    pub fn transfer(
        &mut self,
        now: Duration,
        segments: u64,
        path: &Path,
        growth: Growth,
        random: &mut Random,
    ) {
        let (mut left, mut in_flight, mut most_in_flight) = (segments, 0_u64, 0_u64);
        let (mut acked, mut flight_end, mut recovered_at) = (0_u64, 0_u64, 0_u64);
        let mut round_trips = 0_u32;
        while acked < segments {
            let window = self.window.min(path.most) as u64;
            let sent = window.saturating_sub(in_flight).min(left);
            (left, in_flight) = (left - sent, in_flight + sent);
            most_in_flight = most_in_flight.max(in_flight);
            if acked >= flight_end {
                (round_trips, flight_end) = (round_trips + 1, acked + in_flight);
            }
            if path.loss > 0.0 && random.fraction() < path.loss {
                self.lost += 1;
                if acked >= recovered_at {
                    recovered_at = acked + in_flight;
                    self.window = (self.window * DECREASE).max(MIN);
                    self.threshold = Some(self.window);
                }
            } else if acked >= recovered_at {
                self.grow(in_flight, most_in_flight, growth);
            }
            (acked, in_flight) = (acked + 1, in_flight.saturating_sub(1));
        }
        self.acked += segments;
        self.busy_until = now.max(self.busy_until) + path.rtt.saturating_mul(round_trips);
    }

    /// Processes an acknowledgement while so many segments are in flight.
    fn grow(&mut self, in_flight: u64, most_in_flight: u64, growth: Growth) {
        let slow_start = self.threshold.is_none_or(|threshold| self.window < threshold);
        let full = self.window - (in_flight as f64) <= self.window * UNUSED_SHARE;
        let may = match growth {
            Growth::WhileFull => full,
            Growth::WhileHalfUsed if slow_start => self.window < 2.0 * most_in_flight as f64,
            Growth::WhileHalfUsed => most_in_flight as f64 >= self.window.floor(),
        };
        if may {
            self.window += if slow_start { 1.0 } else { 1.0 / self.window };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path { rtt: Duration::from_millis(100), loss: 0.0, most: 1985.0 };

    fn carried(window: f64, segments: u64, growth: Growth) -> Connection {
        let mut connection = Connection::open(1, window, Duration::ZERO);
        connection.transfer(Duration::ZERO, segments, &PATH, growth, &mut Random::new(1));
        connection
    }

    #[test]
    fn slow_start_takes_the_models_rounds() {
        // 10, 20 and 39 segments: three round trips; the window ends at twice the most in flight.
        let ended = carried(10.0, 69, Growth::WhileHalfUsed);
        assert_eq!((ended.window, ended.busy_until), (78.0, Duration::from_millis(300)));
        assert_eq!(carried(100.0, 69, Growth::WhileFull).busy_until, PATH.rtt);
    }

    #[test]
    fn unused_window_does_not_grow() {
        for growth in [Growth::WhileFull, Growth::WhileHalfUsed] {
            assert_eq!(carried(100.0, 7, growth).window, 100.0, "{growth:?}");
        }
        // Half of 100 is used: today's kernel lets the window grow, the paper's does not.
        assert_eq!(carried(100.0, 60, Growth::WhileFull).window, 100.0);
        assert!(carried(100.0, 60, Growth::WhileHalfUsed).window > 115.0);
    }

    #[test]
    fn idling_restores_the_initial_window_and_losses_cut_it() {
        let mut connection = Connection::open(1, 80.0, Duration::ZERO);
        connection.restart(Duration::from_millis(250), 10.0, &PATH);
        assert_eq!(connection.window, 80.0);
        connection.restart(Duration::from_millis(650), 10.0, &PATH);
        assert_eq!(connection.window, 20.0);
        connection.restart(Duration::from_secs(60), 10.0, &PATH);
        assert_eq!(connection.window, 10.0);
        let lossy = Path { loss: 1.0, ..PATH };
        let mut connection = Connection::open(1, 100.0, Duration::ZERO);
        connection.transfer(Duration::ZERO, 60, &lossy, Growth::WhileFull, &mut Random::new(1));
        assert_eq!((connection.window, connection.lost), (70.0, 60));
    }
}
