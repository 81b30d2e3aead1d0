//! The bounds of a host's owner on rate and spend, as its agent tells them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::{Bandwidth, Money};

/// The bounds of a host, as its agent tells them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bounds {
    /// Most that its relay or gateway carries, both directions added up.
    pub rate: Option<Bandwidth>,
    /// Most that what it sends may cost in a day, and what is used of it.
    pub spend: Option<SpendBound>,
}

/// The spend of a host's day (UTC).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpendBound {
    /// Most that what the host sends may cost, in dollars.
    pub usd_per_day: Money,
    /// The cost of what the host has sent today, by its own count, in dollars; absent where it does
    /// not know, and from older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_usd: Option<Money>,
    /// True once it is used up: nothing is relayed until the next day.
    pub is_used_up: bool,
}
