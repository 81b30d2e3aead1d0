//! The sessions that relays and gateways end, as agents report them.

use serde::{Deserialize, Serialize};
use tradewind_grant::{Destination, PublicIdentity};
use tradewind_units::{FlowId, RelayId};

use crate::packet_flow::PacketTally;

/// Sessions that ended, and packets, tallied. Repeated with the same numbers until a report is
/// acknowledged, so that each session and packet counts once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionBatch {
    /// A random number that an agent draws when it starts.
    pub run: u64,
    /// The number of the batch within that run, from 1.
    pub number: u64,
    /// The tallies.
    pub tallies: Vec<SessionTally>,
    /// The same sessions by flow and hour; none from agents that do not tell.
    #[serde(default)]
    pub hours: Vec<FlowHour>,
    /// The packets of packet flows since the batch before.
    #[serde(default)]
    pub packets: Vec<PacketTally>,
    /// Sessions through a gateway's proxies to destinations that no flow has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learned: Vec<LearnedHour>,
    /// The sessions that the host's relay carried, as it counted them; none from agents that do
    /// not tell.
    #[serde(default)]
    pub relayed: Vec<RelayTally>,
}

impl SessionBatch {
    /// Creates a batch without sessions.
    #[must_use]
    pub const fn empty(run: u64, number: u64) -> Self {
        Self {
            run,
            number,
            tallies: Vec::new(),
            hours: Vec::new(),
            packets: Vec::new(),
            learned: Vec::new(),
            relayed: Vec::new(),
        }
    }
}

/// The sessions of one flow that a relay carried between the same two neighbours, and that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayTally {
    /// The flow, as its gateway named it.
    pub flow: FlowId,
    /// The neighbour that sent them: the gateway, or the relay before.
    pub from: PublicIdentity,
    /// The relay that they were passed on to; absent at the last one, which dials the destination.
    pub next: Option<PublicIdentity>,
    /// Sessions that ended in order.
    pub sessions: u64,
    /// Sessions that did not.
    pub failed: u64,
    /// Bytes of all of them towards the destination.
    pub bytes_up: u64,
    /// Bytes of all of them towards the gateway.
    pub bytes_down: u64,
}

/// The sessions to one destination without a flow that ended in one hour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearnedHour {
    /// The destination, as programs named it.
    pub to: Destination,
    /// The hour, in hours since the Unix epoch (UTC), by the agent's clock.
    pub hour: u64,
    /// Sessions, whether or not they ended in order.
    pub sessions: u64,
    /// Those that did not end in order.
    pub failed: u64,
    /// Bytes of all of them, both ways.
    pub bytes: u64,
    /// Sum of the completion times of those that ended in order, in seconds.
    pub seconds: f64,
    /// The most sessions that were open at the same time.
    pub concurrent: u64,
}

/// The sessions of one flow that ended in one hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowHour {
    /// The flow.
    pub flow: FlowId,
    /// The hour, in hours since the Unix epoch (UTC), by the agent's clock.
    pub hour: u64,
    /// Sessions, whether or not they ended in order.
    pub sessions: u64,
    /// Bytes of all of them, both ways.
    pub bytes: u64,
    /// The most of them that were open at the same time.
    pub concurrent: u64,
}

/// The path that sessions were to take. It is an arm of a comparison: a session counts in its arm
/// whatever path it takes in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// The path that the plan gives, over relays; directly only after that failed.
    Overlay,
    /// Drawn by lot to go direct although the plan gives relays: the control arm. Over relays only
    /// after that failed.
    Control,
    /// Anything else: flows that go direct by plan, and sessions whose first path was known to be
    /// down.
    Other,
}

/// The sessions of one flow, path, arm and size class. Times are summed by their logarithms, of
/// which geometric means and their intervals follow; sums of several tallies add up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionTally {
    /// The flow.
    pub flow: FlowId,
    /// The names of the path's relays, in order; empty: direct.
    pub path: Vec<RelayId>,
    /// The arm.
    pub arm: Arm,
    /// The size class: the binary logarithm, rounded down, of the bytes carried both ways.
    pub size_class: u8,
    /// Sessions that ended in order, which the times below are of.
    pub sessions: u64,
    /// Sessions that did not.
    pub failed: u64,
    /// Bytes of all of them away from the application.
    pub bytes_up: u64,
    /// Bytes of all of them towards the application.
    pub bytes_down: u64,
    /// Sum of the completion times, in seconds.
    pub seconds: f64,
    /// Sum of the natural logarithms of the completion times in seconds.
    pub log_seconds: f64,
    /// Sum of the squares of those logarithms.
    pub log_seconds_squared: f64,
}

impl SessionTally {
    /// Returns what tallies that add up have in common, the flow aside.
    #[must_use]
    pub fn key(&self) -> (Arm, u8, &[RelayId]) {
        (self.arm, self.size_class, &self.path)
    }

    /// Creates a tally of no sessions.
    #[must_use]
    pub const fn new(flow: FlowId, path: Vec<RelayId>, arm: Arm, size_class: u8) -> Self {
        Self {
            flow,
            path,
            arm,
            size_class,
            sessions: 0,
            failed: 0,
            bytes_up: 0,
            bytes_down: 0,
            seconds: 0.0,
            log_seconds: 0.0,
            log_seconds_squared: 0.0,
        }
    }

    /// Adds the sums of another tally.
    pub(crate) fn add(&mut self, other: &Self) {
        self.sessions = self.sessions.saturating_add(other.sessions);
        self.failed = self.failed.saturating_add(other.failed);
        self.bytes_up = self.bytes_up.saturating_add(other.bytes_up);
        self.bytes_down = self.bytes_down.saturating_add(other.bytes_down);
        self.seconds += other.seconds;
        self.log_seconds += other.log_seconds;
        self.log_seconds_squared += other.log_seconds_squared;
    }

    /// Returns the bytes that all sessions carried, both ways.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes_up.saturating_add(self.bytes_down)
    }
}
