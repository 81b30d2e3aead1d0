//! The pacing ramp: lifts the pacing cap of a connection that started at a known rate.
//!
//! In slow start the window grows to twice what the cap lets leave in a round trip. If the cap were
//! lifted at once, all of it would leave in a burst on a path that others share, and be lost. So
//! the cap rises by an eighth each round trip, and falls back to the delivery rate when the round
//! trip shows a queue, though never below where it began. It is lifted once it holds back nothing,
//! or after [`MAX_ROUNDS`]: a queue that others keep up must not keep it for ever.

use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tradewind_net::pacing;
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::Bandwidth;

use crate::connection::side::Side;

/// Round trips in which a cap rises. Chosen: 9/8 to that power is more than forty times the rate.
const MAX_ROUNDS: u32 = 32;
/// Taken for a round trip while the kernel has measured none. Chosen: of a path across a continent.
const UNKNOWN_RTT: Duration = Duration::from_millis(100);
/// Least time between two looks: on a leg of microseconds a cap may rise more slowly than each
/// round trip.
const MIN_WAIT: Duration = Duration::from_millis(5);
/// Least growth of the round trip that counts as a queue; a sixteenth of it, if that is more.
const MIN_QUEUE: Duration = Duration::from_millis(1);

/// The progress of one connection's ramp.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PacingRamp {
    /// Round trips at the first cap.
    hold: u32,
    /// The first cap.
    first: Option<Bandwidth>,
    /// Round trips so far in which there was something to send, and how long there was in all.
    rounds: u32,
    busy: Duration,
}

impl PacingRamp {
    /// Creates the ramp of a connection that keeps its cap for `hold` round trips.
    pub(crate) fn new(hold: u16) -> Self {
        Self { hold: hold.into(), first: None, rounds: 0, busy: Duration::ZERO }
    }

    /// Raises the cap, or lifts it, if it is time; returns when to look next.
    pub(crate) fn look(&mut self, connection: &impl AsFd) -> Look {
        let Ok(info) = TcpInfo::of(connection) else { return Look::Over };
        let rtt = info.rtt.unwrap_or(UNKNOWN_RTT);
        let Some(cap) = info.pacing_limit else { return Look::Over };
        // The failure of a connection is reported where it is read or written.
        match self.next(&info, cap, rtt) {
            Next::Idle => return Look::OnceUsed,
            Next::Same => {}
            Next::Cap(rate) => drop(pacing::cap(connection, rate)),
            Next::None => {
                let _lifted = pacing::clear(connection);
                return Look::Over;
            }
        }
        Look::After(rtt.max(MIN_WAIT))
    }

    fn next(&mut self, info: &TcpInfo, cap: Bandwidth, rtt: Duration) -> Next {
        let first = *self.first.get_or_insert(cap);
        let busy = info.busy.unwrap_or(self.busy + rtt);
        if busy.saturating_sub(self.busy) < rtt / 2 {
            // A connection that sends nothing learns nothing of the path.
            return Next::Idle;
        }
        let passed = (busy.saturating_sub(self.busy)).as_secs_f64() / rtt.as_secs_f64();
        self.rounds += (passed.round() as u32).max(1);
        self.busy = busy;
        if self.rounds < self.hold {
            return Next::Same;
        }
        if window_binds(info) || self.rounds >= self.hold + MAX_ROUNDS {
            return Next::None;
        }
        let queue = |least: Duration| rtt > least + (least / 16).max(MIN_QUEUE);
        let rate = match (info.rtt_min.is_some_and(queue), info.delivery_rate) {
            (true, Some(arrives)) => arrives.scaled(15.0 / 16.0).max(first),
            (true, None) => cap,
            (false, _) => cap.scaled(9.0 / 8.0),
        };
        Next::Cap(rate)
    }
}

/// The time to look at a connection again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Look {
    After(Duration),
    /// Once it has sent something more.
    OnceUsed,
    /// Never: it has no cap any more.
    Over,
}

/// The next value of a cap.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    Idle,
    Same,
    Cap(Bandwidth),
    None,
}

/// Returns true if the congestion window holds the connection back, rather than the cap.
fn window_binds(info: &TcpInfo) -> bool {
    let window = info.congestion_window.map(|window| u64::from(window.as_u32()));
    window.is_some_and(|window| u64::from(info.unacked_segments) * 8 >= window * 7)
}

/// The next look at a side's cap.
#[derive(Debug, Clone, Copy)]
enum RampStep {
    /// A round trip after it is given more than so many bytes.
    Waits(u64, PacingRamp),
    At(Instant, PacingRamp),
}

/// The ramps of a session's two sides; `None` once a cap is lifted, or if there was none.
#[derive(Debug)]
pub(crate) struct PacingRamps {
    upstream: Option<RampStep>,
    downstream: Option<RampStep>,
    timer: Pin<Box<Sleep>>,
}

impl PacingRamps {
    /// Creates the ramps of two sides that keep their caps for so many round trips.
    pub(crate) fn new(upstream: Option<u16>, downstream: Option<u16>) -> Self {
        Self {
            upstream: upstream.map(|hold| RampStep::Waits(0, PacingRamp::new(hold))),
            downstream: downstream.map(|hold| RampStep::Waits(0, PacingRamp::new(hold))),
            timer: Box::pin(tokio::time::sleep_until(Instant::now())),
        }
    }

    /// Runs the ramps that are due, and wakes the task when the next is; each side is passed with
    /// the bytes written to it so far. Returns true while a ramp is left.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        (upstream, given_up): (&Side<'_>, u64),
        (downstream, given_down): (&Side<'_>, u64),
    ) -> bool {
        begin(&mut self.upstream, upstream, given_up);
        begin(&mut self.downstream, downstream, given_down);
        while let Some(next) = self.next() {
            self.timer.as_mut().reset(next);
            if self.timer.as_mut().poll(cx).is_pending() {
                return true;
            }
            let up = (&mut self.upstream, upstream, given_up);
            let down = (&mut self.downstream, downstream, given_down);
            for (step, side, given) in [up, down] {
                if let Some(RampStep::At(at, mut ramp)) = *step
                    && at <= next
                {
                    *step = match ramp.look(side) {
                        Look::After(wait) => Some(RampStep::At(Instant::now() + wait, ramp)),
                        Look::OnceUsed => Some(RampStep::Waits(given, ramp)),
                        Look::Over => None,
                    };
                }
            }
        }
        self.upstream.is_some() || self.downstream.is_some()
    }

    fn next(&self) -> Option<Instant> {
        let at = |step: &RampStep| match step {
            RampStep::Waits(..) => None,
            RampStep::At(at, _) => Some(*at),
        };
        self.upstream.iter().chain(&self.downstream).filter_map(at).min()
    }
}

/// Schedules the next look at a side to which more bytes were written.
fn begin(step: &mut Option<RampStep>, side: &Side<'_>, given: u64) {
    if let Some(RampStep::Waits(before, ramp)) = *step
        && given > before
    {
        let rtt = TcpInfo::of(side).ok().and_then(|info| info.rtt).unwrap_or(UNKNOWN_RTT);
        *step = Some(RampStep::At(Instant::now() + rtt.max(MIN_WAIT), ramp));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_units::Segments;

    const RTT: Duration = Duration::from_millis(60);

    fn mbps(rate: f64) -> Bandwidth {
        Bandwidth::from_bps((rate * 1e6) as u64).unwrap()
    }

    /// Returns the figures of a connection that has sent for so many round trips, with half of its
    /// window in flight.
    fn info(rounds: u32, rtt: Duration, arrives: f64) -> TcpInfo {
        let raw = [0; 280];
        TcpInfo {
            rtt: Some(rtt),
            rtt_min: Some(RTT),
            congestion_window: Some(Segments::new(200).unwrap()),
            unacked_segments: 100,
            delivery_rate: Some(mbps(arrives)),
            busy: Some(RTT * rounds),
            ..TcpInfo::parse(&raw).unwrap()
        }
    }

    #[test]
    fn cap_rises_and_is_removed() {
        let mut ramp = PacingRamp::new(4);
        let mut cap = mbps(20.0);
        for round in 1..=100 {
            match ramp.next(&info(round, RTT, 20.0), cap, RTT) {
                Next::Idle => panic!("{round}"),
                Next::Same => assert!(round < 4, "{round}"),
                Next::Cap(rate) => {
                    assert!((4..36).contains(&round), "{round}");
                    assert!((rate.as_bps() as f64 / cap.as_bps() as f64 - 1.125).abs() < 1e-6);
                    cap = rate;
                }
                Next::None => return assert_eq!(round, 36),
            }
        }
        panic!("it never went");
    }

    #[test]
    fn growing_queue_lowers_the_cap_to_its_start() {
        let late = RTT + Duration::from_millis(5);
        let mut ramp = PacingRamp::new(1);
        assert_eq!(ramp.next(&info(1, RTT, 20.0), mbps(20.0), RTT), Next::Cap(mbps(22.5)));
        assert_eq!(ramp.next(&info(2, late, 32.0), mbps(40.0), late), Next::Cap(mbps(30.0)));
        assert_eq!(ramp.next(&info(3, late, 8.0), mbps(30.0), late), Next::Cap(mbps(20.0)));
    }

    #[test]
    fn window_limited_connection_loses_its_cap() {
        let full = TcpInfo { unacked_segments: 190, ..info(9, RTT, 20.0) };
        assert_eq!(PacingRamp::new(4).next(&full, mbps(20.0), RTT), Next::None);
        assert_eq!(PacingRamp::new(40).next(&full, mbps(20.0), RTT), Next::Same);
    }

    #[test]
    fn idle_time_does_not_count() {
        let mut ramp = PacingRamp::new(4);
        for _ in 0..100 {
            ramp.next(&info(1, RTT, 20.0), mbps(20.0), RTT);
        }
        assert_eq!(ramp.rounds, 1);
        assert_eq!(ramp.next(&info(1, RTT, 20.0), mbps(20.0), RTT), Next::Idle);
    }
}
