//! Reports of the learners of initial windows on hosts, and the sums that are kept of them.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::HostId;

/// Most destinations of one report. Chosen: a page, and some 10 KB; the histogram counts all.
pub const MAX_DESTINATIONS: usize = 100;
/// Width of a class of the histogram of windows, in segments, and the begin of its last class,
/// which has no end. Chosen: twice the default's upper bound in tens.
pub const WINDOW_CLASS: u32 = 10;
/// See [`WINDOW_CLASS`].
pub const LAST_WINDOW_CLASS: u32 = 200;

/// The state of the learner inside one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnerReport {
    /// The process.
    pub process: String,
    /// A number that another run of a process does not have.
    pub run: u64,
    /// The mechanism by which it sets windows: `sockops`, or `none` if it only learns.
    pub through: String,
    /// The reason, in one line, why it sets none; absent if it does.
    pub why: Option<String>,
    /// The destinations with most samples, at most [`MAX_DESTINATIONS`].
    pub destinations: Vec<LearnedWindow>,
    /// Destinations that are left out above.
    pub others: u64,
    /// The windows of all destinations, as a histogram.
    pub windows: Vec<WindowCount>,
    /// The connections of both arms that ended in this run.
    pub tallies: Vec<JumpTally>,
}

/// The learned window of one destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LearnedWindow {
    /// The destination, a prefix.
    #[schemars(with = "String")]
    pub destination: IpNet,
    /// The initial window, in segments.
    pub window_segments: u32,
    /// Connections of the last round that had any; 0 where others of the site have shared it.
    pub samples: u32,
    /// True if connections start with it now; false where it is held back, refused or only shown.
    pub is_in_force: bool,
}

/// The window that the hosts of a site have learned of one destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedWindow {
    /// The destination, a prefix.
    pub destination: IpNet,
    /// The initial window, in segments.
    pub window_segments: u32,
}

/// The destinations whose windows are in one class of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WindowCount {
    /// The least window of the class, in segments.
    pub from_segments: u32,
    /// Destinations.
    pub destinations: u64,
}

/// The start of connections. It is an arm of a comparison.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum JumpArm {
    /// With a learned window.
    Jumped,
    /// With the default window by lot, although one was learned.
    Control,
}

/// The ended connections of one arm and size class that sent more than the kernel's own first
/// window. Times are those with something to send, summed
/// by their logarithms as in [`SessionTally`](crate::message::SessionTally).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct JumpTally {
    /// The arm.
    pub arm: JumpArm,
    /// The size class: the binary logarithm, rounded down, of the bytes acknowledged.
    pub size_class: u8,
    /// Connections.
    pub connections: u64,
    /// Bytes acknowledged of all of them.
    pub bytes: u64,
    /// Segments sent again.
    pub retransmitted_segments: u64,
    /// Sum of the times, in seconds.
    pub seconds: f64,
    /// Sum of the natural logarithms of the times in seconds.
    pub log_seconds: f64,
    /// Sum of the squares of those logarithms.
    pub log_seconds_squared: f64,
}

impl JumpTally {
    /// Returns what tallies that add up have in common.
    #[must_use]
    pub const fn key(&self) -> (JumpArm, u8) {
        (self.arm, self.size_class)
    }

    /// Adds the sums of another tally.
    pub(crate) fn add(&mut self, other: &Self) {
        self.connections = self.connections.saturating_add(other.connections);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.retransmitted_segments =
            self.retransmitted_segments.saturating_add(other.retransmitted_segments);
        self.seconds += other.seconds;
        self.log_seconds += other.log_seconds;
        self.log_seconds_squared += other.log_seconds_squared;
    }

    /// Returns the connections that are not among those `before`, which are a part of these; `None`
    /// if they are no part.
    pub(crate) fn without(&self, before: &Self) -> Option<Self> {
        let retransmitted = self.retransmitted_segments;
        Some(Self {
            connections: self.connections.checked_sub(before.connections)?,
            bytes: self.bytes.checked_sub(before.bytes)?,
            retransmitted_segments: retransmitted.checked_sub(before.retransmitted_segments)?,
            seconds: self.seconds - before.seconds,
            log_seconds: self.log_seconds - before.log_seconds,
            log_seconds_squared: self.log_seconds_squared - before.log_seconds_squared,
            ..*self
        })
    }
}

/// The learners of a host, as it reported last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostLearners {
    /// The host.
    pub host: HostId,
    /// Its learners.
    pub learners: Vec<LearnerReport>,
}

/// The connections of both arms that ended on a host in one day. Some 10 KB in the store, so a
/// hundred hosts take 400 MB in 13 months.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DayJumps {
    /// The host.
    pub host: HostId,
    /// The day, in days since the Unix epoch (UTC), on which they were reported.
    pub day: u64,
    /// Their sums, by [`JumpTally::key`].
    pub tallies: Vec<JumpTally>,
    /// The totals of each run that are counted in this day or one before, so that the next report
    /// counts only what has ended since.
    pub counted: Vec<CountedRun>,
}

/// The totals of one run of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CountedRun {
    /// The process.
    pub process: String,
    /// The run.
    pub run: u64,
    /// Its totals.
    pub tallies: Vec<JumpTally>,
}
