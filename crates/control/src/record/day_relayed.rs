//! The sums of what relays carried.

use serde::{Deserialize, Serialize};
use tradewind_units::{FlowId, Money, RelayId};

/// The sessions of one day, flow and relay, as gateways tell and as the relay counted them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayRelayed {
    /// The day, in days since the Unix epoch (UTC), on which their batches came in.
    pub day: u64,
    /// The flow.
    pub flow: FlowId,
    /// The relay.
    pub relay: RelayId,
    /// The sums that gateways told.
    pub told: Carried,
    /// The sums that the relay counted.
    pub counted: Carried,
    /// The cost of what the relay sent, by its own count.
    pub cost: Money,
    /// Time since when both differ too much, in milliseconds since the Unix epoch, before an alarm.
    #[serde(default)]
    pub differs_since_unix_ms: Option<u64>,
    /// True once the audit log says that they differ.
    #[serde(default)]
    pub is_alarmed: bool,
}

impl DayRelayed {
    /// Creates sums of nothing.
    #[must_use]
    pub fn new(day: u64, flow: FlowId, relay: RelayId) -> Self {
        let [told, counted] = [Carried::default(); 2];
        let (cost, differs_since_unix_ms, is_alarmed) = (Money::ZERO, None, false);
        Self { day, flow, relay, told, counted, cost, differs_since_unix_ms, is_alarmed }
    }
}

/// Sums of sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Sessions, whether or not they ended in order.
    pub sessions: u64,
    /// Those that did not.
    pub failed: u64,
    /// Bytes of all of them, both ways.
    pub bytes: u64,
}
