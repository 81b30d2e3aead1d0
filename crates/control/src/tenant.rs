//! Tenants and their tokens, as types.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::{FlowId, Money, Ratio, SiteId, UnitError};

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
    /// Its tokens.
    pub tokens: Vec<TenantToken>,
    /// The last day, since the Unix epoch, on which the alarm's share of its budget was spent.
    pub alarmed_day: Option<u64>,
    /// The last day on which all of its budget was spent.
    pub stopped_day: Option<u64>,
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
            tokens: Vec::new(),
            alarmed_day: None,
            stopped_day: None,
        }
    }
}
