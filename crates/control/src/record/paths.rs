//! The paths that flows had, and those that were taken back from them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::{FlowId, HostId, RelayId, SiteId};

use crate::message::SessionTally;

/// The paths that a flow had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathHistory {
    /// The flow.
    pub flow: FlowId,
    /// The newest of its changes of path, oldest first.
    pub changes: Vec<PathChange>,
}

/// A change of a flow's path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathChange {
    /// Time from which on it had the path, in milliseconds since the Unix epoch.
    pub since_unix_ms: u64,
    /// The hosts that it passed from then on; none: it went direct.
    pub path: Vec<HostId>,
    /// The reason, in one line.
    pub why: String,
}

/// The paths that were taken back from a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakenBack {
    /// The flow.
    pub flow: FlowId,
    /// The paths.
    pub paths: Vec<TakenPath>,
}

/// A path that measured worse than predicted, and was taken back from a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakenPath {
    /// Its relays.
    pub path: Vec<RelayId>,
    /// Its legs, whose rates misled.
    pub legs: Vec<MisledLeg>,
    /// Time when it was taken back, in milliseconds since the Unix epoch.
    pub since_unix_ms: u64,
    /// Time until which it is not proposed again, in milliseconds since the Unix epoch, unless a
    /// leg is found to be slower before.
    pub until_unix_ms: u64,
    /// The finding, in one line.
    pub finding: String,
    /// The sessions over it that the finding is of, by size class.
    #[serde(default)]
    pub sessions: Vec<SessionTally>,
    /// The direct sessions of the days that were known by then, which do not count below, by size
    /// class.
    #[serde(default)]
    pub direct_before: Vec<SessionTally>,
    /// Time when direct sessions proved to be no faster, in milliseconds since the Unix epoch, if
    /// they did: the flow has the path again.
    #[serde(default)]
    pub excused_unix_ms: Option<u64>,
}

impl TakenPath {
    /// Returns the time until which the flow does not have the path, in milliseconds since the Unix
    /// epoch.
    #[must_use]
    pub fn end_unix_ms(&self) -> u64 {
        self.excused_unix_ms.unwrap_or(self.until_unix_ms)
    }
}

/// A leg whose rate misled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MisledLeg {
    /// The sender.
    pub source: SiteId,
    /// The receiver.
    pub destination: SiteId,
    /// The rate, in Mbit/s; absent if it was an estimate.
    pub rate_mbps: Option<f64>,
}
