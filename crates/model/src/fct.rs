//! Completion time of a flow over a path of any number of legs, start-up included.
//!
//! FCT runs from the client's `connect()` to the last byte's arrival at the destination. The
//! gateway sits beside the source, so its hop costs nothing. Without start-up this is CP's model:
//! the volume over the slowest leg's rate [CP IV-B], for any number of relays.
//!
//! **Set-up.** The gateway dials the first relay (one RTT) and sends header and data in one flight.
//! The relay reads the header half an RTT later and dials the next hop, and so on; the last relay
//! dials the destination. Data waits at each relay until the next leg is up. Warm legs are dialled
//! beforehand, so each costs half an RTT only. Direct: one RTT, then data.
//!
//! **Start-up.** All legs run at once, each in its own slow start. Let `T_i(b)` be the time at
//! which leg `i` sends byte `b`. The byte must have arrived from the leg before, the leg must have
//! space for it in its window, bytes leave no faster than the leg's bandwidth, and the relay behind
//! the leg holds no more than its buffers `B_i`:
//!
//! ```text
//! T_i(b) = max( T_(i-1)(b) + RTT_(i-1)/2,  T_i(a_i(b)) + RTT_i,  T_i(b') + (b - b')/bandwidth_i,
//!               T_(i+1)(b - B_i) + RTT_i/2 )
//! a_i(b) = max( (b - initial)/2, b - window )
//! ```
//!
//! `a_i(b)` is the number of bytes that must be acknowledged before byte `b` may leave: in slow
//! start the window is the initial one plus all that was acknowledged, until it reaches its limit.
//! The last term matters where a leg is slower to start than the one before it: without it a whole
//! flow could be stored in the relay meanwhile. The recurrence is followed on a grid of bytes that
//! holds the end of every round of every leg, up to where all windows are full; from there on each
//! leg repeats itself and the rest is closed form. Loss enters as a limit of bandwidth; queues do
//! not enter ([CP IV-B], assumptions 2 and 3).

use serde::Serialize;
use tradewind_units::{Bandwidth, Bytes, Duration};

use crate::leg::Leg;

mod grid;

use grid::Grid;

/// Least number of bytes of a session that a relay can hold ahead of its next leg: in the socket
/// that it reads, and unsent in the one that it writes. A leg with a larger window has the buffers
/// for it. Chosen: Linux's largest receive buffer by default (6 MB) and our relay's unsent mark
/// (2 MB).
pub const RELAY_BUFFER: Bytes = Bytes::new(8_000_000);

/// Start-up of a session, as the model counts it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum StartUp {
    /// Not counted: CP's model, the volume over the slowest leg's rate.
    Ignored,
    /// Every leg is dialled when the session needs it.
    #[default]
    Cold,
    /// Every leg but the last relay's to the destination waits in a pool, dialled beforehand; its
    /// window is still the initial one. On a direct path nothing is warm.
    Warm,
}

/// Completion time of a flow, in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Completion {
    /// Time until the first byte is at the destination: dialling, header, propagation.
    pub set_up: Duration,
    /// Time lost to slow start, on top of `set_up` and `steady`.
    pub start_up: Duration,
    /// Time of the volume at the slowest leg's rate, or the part of it that does not overlap with
    /// `set_up`.
    pub steady: Duration,
}

impl Completion {
    /// Returns the flow completion time: all three together.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.set_up.saturating_add(self.start_up).saturating_add(self.steady)
    }
}

/// Returns the rate of a path in the long run: its slowest leg's [CP IV-B]. The middle legs count.
#[must_use]
pub fn path_rate(legs: &[Leg]) -> Bandwidth {
    legs.iter().map(Leg::rate).min().unwrap_or(Bandwidth::MAX)
}

/// Returns the completion time of `volume` over `legs`, source to destination; see the module's
/// text.
///
/// A path without legs takes no time.
#[must_use]
pub fn path_fct(legs: &[Leg], volume: Bytes, start_up: StartUp) -> Duration {
    path_completion(legs, volume, start_up).total()
}

/// Returns the same as [`path_fct`], in parts. Takes some ten to some hundred microseconds.
#[must_use]
pub fn path_completion(legs: &[Leg], volume: Bytes, start_up: StartUp) -> Completion {
    let steady = path_rate(legs).time_for(volume);
    let Some(last) = legs.last() else {
        return Completion { set_up: Duration::ZERO, start_up: Duration::ZERO, steady };
    };
    if start_up == StartUp::Ignored {
        return Completion { set_up: Duration::ZERO, start_up: Duration::ZERO, steady };
    }
    let ready = ready_times(legs, start_up);
    let set_up = ready[legs.len() - 1] + last.rtt.as_secs_f64() / 2.0;
    let total = set_up.max(last_byte_sent(legs, &ready, volume) + last.rtt.as_secs_f64() / 2.0);
    let steady = steady.as_secs_f64().min(total - set_up);
    Completion {
        set_up: span(set_up),
        start_up: span(total - set_up - steady),
        steady: span(steady),
    }
}

/// The longest time that is reported for each part of a completion: longer than any flow, and safe
/// to add up.
pub const MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Converts seconds to a span of [`MAX`] at most.
fn span(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, MAX.as_secs_f64()))
}

/// Returns the time at which each leg can carry its first byte, in seconds since the client's
/// `connect()`.
fn ready_times(legs: &[Leg], start_up: StartUp) -> Vec<f64> {
    let last = legs.len() - 1;
    let mut ready = Vec::with_capacity(legs.len());
    let mut header_at = 0.0;
    for (index, leg) in legs.iter().enumerate() {
        let rtt = leg.rtt.as_secs_f64();
        let warm = start_up == StartUp::Warm && index < last;
        let up = header_at + if warm { 0.0 } else { rtt };
        ready.push(up);
        header_at = up + rtt / 2.0;
    }
    ready
}

/// A leg's parameters in the recurrence, in bytes and seconds.
#[derive(Debug, Clone, Copy)]
struct Pace {
    rtt: f64,
    segment: f64,
    initial: f64,
    /// Limit of all connections' windows together, in whole segments.
    window: f64,
    seconds_per_byte: f64,
    /// Bytes by which the leg can be ahead of the next one.
    remote_buffer: f64,
}

impl Pace {
    fn of(leg: &Leg) -> Self {
        let rtt = leg.rtt.as_secs_f64();
        let connections = f64::from(leg.connections.max(1));
        let bytes_per_s = leg.bandwidth_limit().as_bytes_per_s();
        let segment = leg.mss.as_u64().max(1) as f64;
        // A window of twice what fills the leg never holds it up; more only lengthens the grid.
        let fills = 2.0 * (bytes_per_s * rtt + segment);
        let limit = (leg.window.as_u64() as f64 * connections).min(fills);
        let window = ((limit / segment).floor() * segment).max(segment);
        let initial = f64::from(leg.initial_window.as_u32()) * segment * connections;
        let seconds_per_byte = 1.0 / bytes_per_s;
        let remote_buffer = leg.window.max(RELAY_BUFFER).as_u64() as f64 * connections;
        Self { rtt, segment, initial: initial.min(window), window, seconds_per_byte, remote_buffer }
    }

    /// Returns the number of bytes, in whole segments, to be acknowledged before byte `b` may
    /// leave.
    fn needs_acknowledged(&self, b: f64) -> f64 {
        let bytes = ((b - self.initial) / 2.0).max(b - self.window).max(0.0);
        (bytes / self.segment).ceil() * self.segment
    }

    /// Returns the last byte that may leave once `acknowledged` bytes are.
    fn allows_until(&self, acknowledged: f64) -> f64 {
        (self.initial + 2.0 * acknowledged).min(self.window + acknowledged)
    }

    /// Returns the byte from which on the window is full and the leg repeats itself.
    fn steady_from(&self) -> f64 {
        2.0 * self.window - self.initial
    }
}

/// Returns the time at which the last leg sends the last byte, in seconds.
fn last_byte_sent(legs: &[Leg], ready: &[f64], volume: Bytes) -> f64 {
    let paces: Vec<Pace> = legs.iter().map(Pace::of).collect();
    let volume = volume.as_u64() as f64;
    let grid = Grid::new(&paces, volume);
    let all_sent = follow(&grid, &paces, ready);
    let mut last_sent = 0.0;
    for (index, (pace, sent)) in paces.iter().zip(&all_sent).enumerate() {
        let forward = if index == 0 { 0.0 } else { last_sent + paces[index - 1].rtt / 2.0 };
        last_sent = grid.extrapolate(pace, sent, volume).max(forward);
    }
    last_sent
}

/// Returns the times at which each leg sends each byte of the grid, leg by leg.
fn follow(grid: &Grid, paces: &[Pace], ready: &[f64]) -> Vec<Vec<f64>> {
    let points = grid.points();
    let mut legs: Vec<Progress> = ready.iter().map(|ready| Progress::new(*ready)).collect();
    for (index, &b) in points.iter().enumerate() {
        for (leg, pace) in paces.iter().enumerate() {
            let mut at = legs[leg].own_time(points, index, pace);
            if let Some(before) = leg.checked_sub(1) {
                at = at.max(legs[before].sent[index] + paces[before].rtt / 2.0);
            }
            let must_be_gone = b - pace.remote_buffer;
            if let (Some(next), true) = (legs.get_mut(leg + 1), must_be_gone > 0.0) {
                let gone = next.time_of(points, must_be_gone, &paces[leg + 1]);
                at = at.max(gone + pace.rtt / 2.0);
            }
            legs[leg].sent.push(at);
        }
    }
    legs.into_iter().map(|leg| leg.sent).collect()
}

/// Progress of one leg on the grid.
struct Progress {
    /// Time at which it can carry its first byte.
    ready: f64,
    sent: Vec<f64>,
    /// Indices of the first points not before the bytes last asked for: acknowledged ones, and
    /// those that the relay has passed on. Both only rise.
    acknowledged_at: usize,
    gone_at: usize,
}

impl Progress {
    const fn new(ready: f64) -> Self {
        Self { ready, sent: Vec::new(), acknowledged_at: 0, gone_at: 0 }
    }

    /// Returns the time at which the leg alone would send the grid's byte with this index.
    fn own_time(&mut self, points: &[f64], index: usize, pace: &Pace) -> f64 {
        let b = points[index];
        let (before, left_at) = match index.checked_sub(1) {
            Some(previous) => (points[previous], self.sent[previous]),
            None => (0.0, self.ready),
        };
        let at = left_at + (b - before) * pace.seconds_per_byte;
        let needed = pace.needs_acknowledged(b);
        if needed > before {
            // A step longer than the window takes as many rounds as it holds windows.
            return at.max(left_at + ((b - before) / pace.window).ceil() * pace.rtt);
        }
        if needed <= 0.0 {
            return at;
        }
        while points[self.acknowledged_at] < needed {
            self.acknowledged_at += 1;
        }
        at.max(between(points, &self.sent, self.acknowledged_at, needed, self.ready) + pace.rtt)
    }

    /// Returns the time at which the leg sends byte `b`, which may lie beyond the last point
    /// computed.
    fn time_of(&mut self, points: &[f64], b: f64, pace: &Pace) -> f64 {
        while self.gone_at < self.sent.len() && points[self.gone_at] < b {
            self.gone_at += 1;
        }
        if self.gone_at < self.sent.len() {
            return between(points, &self.sent, self.gone_at, b, self.ready);
        }
        let (last, at) = match self.sent.last() {
            Some(at) => (points[self.sent.len() - 1], *at),
            None => (0.0, self.ready),
        };
        at + (b - last) * pace.seconds_per_byte
    }
}

/// Returns the time at which byte `b` was sent, by linear interpolation between the grid's byte
/// `after` and the one before it.
fn between(points: &[f64], sent: &[f64], after: usize, b: f64, ready: f64) -> f64 {
    let (low, low_at) = match after.checked_sub(1) {
        Some(before) => (points[before], sent[before]),
        None => (0.0, ready),
    };
    let share = (b - low) / (points[after] - low);
    low_at + share * (sent[after] - low_at)
}

#[cfg(test)]
mod tests;
