//! The form of measurements that others made, and of bills.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::{HostId, Money, SiteId};

/// Most measurements of one import. Chosen: a few hundred kilobytes; larger files come in parts.
pub const MAX_IMPORTED: usize = 1000;

/// The bill of a host for one day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Billed {
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// The host; its relay has the same name.
    pub host: HostId,
    /// The dollars, of its machine and its traffic.
    pub usd: Money,
}

/// A measurement of one leg that others made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Imported {
    /// The sender.
    pub from: SiteId,
    /// The receiver.
    pub to: SiteId,
    /// Time when it was made, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Round-trip times; absent: those that are known stay.
    pub rtt: Option<ImportedRtt>,
    /// The rate; absent: the one that is known stays.
    pub rate: Option<ImportedRate>,
}

/// Round-trip times that others measured, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportedRtt {
    /// The least.
    pub min_ms: f64,
    /// The median.
    pub median_ms: f64,
    /// From the 10th to the 90th percentile.
    pub spread_ms: f64,
    /// Probes that were answered.
    pub samples: u32,
}

/// A rate that others measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportedRate {
    /// The rate of all connections together, in Mbit/s.
    pub rate_mbps: f64,
    /// The connections.
    pub connections: u32,
    /// Share of segments that were sent again, if that is known.
    pub retransmitted: Option<f64>,
}
