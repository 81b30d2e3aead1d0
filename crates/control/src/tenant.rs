//! Tenants and their tokens, as types.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::{FlowId, Money, Ratio, RelayId, SiteId, UnitError};

/// The name of a tenant.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct TenantId(SiteId);

impl FromStr for TenantId {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A change of the most that a tenant's flows may cost in a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetChange {
    /// It stays as it is.
    Keep,
    /// There is no bound but the overlay's.
    Remove,
    /// It is this.
    Set(Money),
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name.
    pub id: TenantId,
    /// The most that its flows may cost in a day; no bound but the overlay's when absent.
    pub budget_usd_per_day: Option<Money>,
    /// Share of the budget whose use raises an alarm.
    pub alarm_share: Option<Ratio>,
    /// Its flows and packet flows.
    pub flows: BTreeSet<FlowId>,
    /// Flows that it had, whose costs stay its own.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub former: BTreeSet<FlowId>,
    /// Flows that left sites lately, from where their last sessions and packets may be told yet.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub removed: BTreeMap<FlowId, Removed>,
    /// Flows that were not its own at first, with what they had carried by then.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub before: BTreeMap<FlowId, CarriedBefore>,
    /// Costs that are told by no other record: of packet flows that were removed, by day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settled: Vec<SettledDay>,
    /// Its tokens.
    pub tokens: Vec<TenantToken>,
    /// The last day, since the Unix epoch, on which the alarm's share of its budget was spent.
    pub alarmed_day: Option<u64>,
    /// The last day on which all of its budget was spent.
    pub stopped_day: Option<u64>,
}

/// A flow that left its site: it was removed, or comes from another site since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// The sites that it came from.
    pub from: BTreeSet<SiteId>,
    /// Time when it left the last of them, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Its packets, if it was a packet flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<RemovedPackets>,
}

/// A packet flow that was removed, as far as its costs need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedPackets {
    /// The address that applications wrote to.
    pub listen: SocketAddr,
    /// The most that packets told from now on can cost.
    pub most: Money,
}

/// The traffic of a flow before it became a tenant's: that and all days before cost the tenant
/// nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedBefore {
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// The cost of the traffic of its sessions on that day.
    pub traffic: Money,
    /// The cost of its packets on that day.
    pub packets: Money,
    /// The bytes of its sessions over each relay on that day.
    pub bytes: BTreeMap<RelayId, u64>,
}

/// The cost of one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledDay {
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// The cost.
    pub usd: Money,
}

/// A token of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantToken {
    /// Its hash (BLAKE3, in hexadecimal).
    pub hash: String,
    /// False if it only reads.
    pub may_write: bool,
}

impl Tenant {
    /// Returns a tenant without flows, budget and tokens.
    #[must_use]
    pub const fn new(id: TenantId) -> Self {
        Self {
            id,
            budget_usd_per_day: None,
            alarm_share: None,
            flows: BTreeSet::new(),
            former: BTreeSet::new(),
            removed: BTreeMap::new(),
            before: BTreeMap::new(),
            settled: Vec::new(),
            tokens: Vec::new(),
            alarmed_day: None,
            stopped_day: None,
        }
    }
}

impl Tenant {
    /// Returns whether the account has what a flow carried on a day: a flow that it has or had, and
    /// not before it was given to it.
    #[must_use]
    pub fn had(&self, flow: &FlowId, day: u64) -> bool {
        let is_own = self.flows.contains(flow) || self.former.contains(flow);
        is_own && self.before.get(flow).is_none_or(|before| day >= before.day)
    }

    /// Adds to the cost of a day.
    pub(crate) fn settle(&mut self, day: u64, usd: Money) {
        match self.settled.iter_mut().find(|settled| settled.day == day) {
            Some(settled) => settled.usd = settled.usd.saturating_add(usd),
            None if usd > Money::ZERO => self.settled.push(SettledDay { day, usd }),
            None => {}
        }
    }
}

impl CarriedBefore {
    /// Returns what the packets of a day cost beyond those of before.
    pub(crate) fn packets_beyond(&self, day: u64, usd: Money) -> Money {
        let known = match day.cmp(&self.day) {
            Ordering::Less => usd,
            Ordering::Equal => self.packets,
            Ordering::Greater => Money::ZERO,
        };
        usd.checked_sub(known).unwrap_or_default()
    }
}
