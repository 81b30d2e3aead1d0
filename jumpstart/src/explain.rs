//! Why a destination has the value it has.

use ipnet::IpNet;
use serde::Serialize;

use crate::config::Mode;
use crate::learner::Reason;

/// All that is known of one destination.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The destination.
    pub prefix: IpNet,
    /// How it was learned.
    pub mode: Mode,
    /// Samples of the last round that had any.
    pub samples: u32,
    /// Their average, in segments.
    pub average_segments: f64,
    /// With history, before bounds, guard and hints, in segments.
    pub learned_segments: f64,
    /// Which bound holds the value, if one does.
    pub bound: Option<&'static str>,
    /// Share that lost first flights leave.
    pub guard_ratio: f64,
    /// Outsiders' orders in force.
    pub hints: Vec<String>,
    /// The first window that results; see `in_force`.
    pub window_segments: u32,
    /// Rate that was learned, in `paced` and `strict`.
    pub rate_mbps: Option<f64>,
    /// Of this, what those who start at once may use together.
    pub pacing_mbps: Option<f64>,
    /// Of this, what [`Learner::start`](crate::Learner::start) has lent out to starting connections.
    pub lent_mbps: f64,
    /// Least round-trip time, in `paced` and `strict`.
    pub rtt_ms: Option<f64>,
    /// Whether it keeps the default window for comparison.
    pub control: bool,
    /// Whether connections start with the window now.
    pub in_force: bool,
    /// What became of it when it was last given out, in a word; `None` while nobody told.
    pub outcome: Option<&'static str>,
    /// When the value is forgotten, unless confirmed.
    pub expires_in_s: f64,
    /// Why it last changed.
    pub reason: Reason,
}
