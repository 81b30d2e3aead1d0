//! Explanation of a destination's value.

use ipnet::IpNet;
use serde::Serialize;

use crate::config::Mode;
use crate::learner::Reason;

/// Explanation of one destination.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The destination.
    pub prefix: IpNet,
    /// The mode of learning.
    pub mode: Mode,
    /// Samples of the last round that had any.
    pub samples: u32,
    /// Their average, in segments.
    pub average_segments: f64,
    /// With history, before bounds, guard and hints, in segments.
    pub learned_segments: f64,
    /// The bound that limits the value, if one does.
    pub bound: Option<&'static str>,
    /// Share that the guard leaves after lost first flights.
    pub guard_ratio: f64,
    /// Hints in force.
    pub hints: Vec<String>,
    /// The resulting initial congestion window; see `in_force`.
    pub window_segments: u32,
    /// Rate that was learned, in `paced` and `strict`.
    pub rate_mbps: Option<f64>,
    /// The part of it that connections that start at once may use together.
    pub pacing_mbps: Option<f64>,
    /// The part of that which [`Learner::start`](crate::Learner::start) has lent to starting
    /// connections.
    pub lent_mbps: f64,
    /// Least round-trip time, in `paced` and `strict`.
    pub rtt_ms: Option<f64>,
    /// True if it keeps the default window for comparison.
    pub control: bool,
    /// True if connections start with the window now.
    pub in_force: bool,
    /// Outcome of the last change, in a word; `None` until an actuator reports it.
    pub outcome: Option<&'static str>,
    /// Time until the value is forgotten, unless confirmed.
    pub expires_in_s: f64,
    /// Reason for its last change.
    pub reason: Reason,
}
