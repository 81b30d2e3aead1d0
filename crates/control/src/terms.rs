//! Prices and relay types of the operator's own.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_plan::RelayType;
use tradewind_units::{Bandwidth, Money, PricePerGb, RelayTypeId};

/// Prices and relay types of the operator's own, which hold instead of the catalogue's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// The price of each GB that leaves a relay, in dollars; the catalogue's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_usd_per_gb: Option<PricePerGb>,
    /// Relay types by name: new ones, or others instead of those known by that name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub relay_types: BTreeMap<RelayTypeId, RelayTerms>,
}

/// The price and the limits of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RelayTerms {
    /// The price of a machine for a day, in dollars.
    pub usd_per_day: Money,
    /// The capacity of a relay, all its flows together.
    pub capacity: Bandwidth,
    /// The most that one of its connections carries; its capacity when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_connection: Option<Bandwidth>,
}

impl RelayTerms {
    /// Returns the relay type of this name.
    pub(crate) fn of_type(&self, id: &RelayTypeId) -> RelayType {
        RelayType {
            id: id.clone(),
            capacity: self.capacity,
            per_connection: self.per_connection,
            set_up: self.usd_per_day,
        }
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.egress_usd_per_gb {
            Some(price) => write!(f, "${} for each GB that leaves a relay", price.as_usd_per_gb())?,
            None => f.write_str("the catalogue's prices of traffic")?,
        }
        for (id, terms) in &self.relay_types {
            write!(f, "; relays of type {id}: {} a day, {}", terms.usd_per_day, terms.capacity)?;
            if let Some(cap) = terms.per_connection {
                write!(f, ", {cap} a connection")?;
            }
        }
        Ok(())
    }
}
