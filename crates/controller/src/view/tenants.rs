//! Tenants, as they are declared and shown.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_control::tenants::TenantId;
use tradewind_units::{FlowId, Money, Ratio};

/// A tenant to add or change; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantRequest {
    /// The most that its flows may cost in a day, in dollars.
    pub budget_usd_per_day: Option<Money>,
    /// True to take its budget away, in place of another: the overlay's alone bounds it then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_budget: bool,
    /// Share of the budget whose use raises an alarm.
    pub alarm_share: Option<Ratio>,
}

/// A token to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// False if it only reads.
    pub may_write: bool,
}

/// A token that was made; it is shown once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenAnswer {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The token.
    pub token: String,
}

/// All tenants that the token may see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tenants {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The number of days that are told of, today included.
    pub days: u64,
    /// The tenants, by name.
    pub tenants: Vec<TenantView>,
    /// The cost of each day beyond theirs, oldest first; tokens of tenants are told none.
    #[serde(default)]
    pub rest: Vec<UnassignedDay>,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantView {
    /// Its name.
    pub id: TenantId,
    /// The most that its flows may cost in a day, in dollars; absent without a bound of its own.
    pub budget_usd_per_day: Option<Money>,
    /// Share of the budget whose use raises an alarm.
    pub alarm_share: Option<Ratio>,
    /// True while its flows go direct, as its budget is zero or spent.
    pub is_stopped: bool,
    /// Its flows and packet flows.
    pub flows: Vec<FlowId>,
    /// The cost of its flows in a whole day of the plan in effect, in dollars; none while it is
    /// stopped.
    pub planned_usd_per_day: Money,
    /// The cost of its flows in each day, oldest first.
    pub costs: Vec<DayCost>,
    /// The number of its tokens.
    pub tokens: usize,
}

/// The cost of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DayCost {
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// The cost so far, in dollars.
    pub usd: Money,
}

/// The cost of a day beyond that of all tenants, and its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnassignedDay {
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// The cost so far, in dollars: the parts but the excess, less the excess.
    pub usd: Money,
    /// Flows of no tenant, in dollars.
    #[serde(default)]
    pub flows_usd: Money,
    /// The part of machines that nobody's bytes used, in dollars.
    #[serde(default)]
    pub machines_usd: Money,
    /// Rate tests, in dollars.
    #[serde(default)]
    pub tests_usd: Money,
    /// Metered traffic that no known flow accounts for, in dollars: of flows that were removed, or
    /// at other prices than now.
    #[serde(default)]
    pub unknown_usd: Money,
    /// The amount in dollars by which the costs of flows and tenants are above what was metered:
    /// traffic at other prices than now, and parts that were rounded.
    #[serde(default)]
    pub excess_usd: Money,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_that_know_only_budgets_take_what_sets_one() {
        let budget_usd_per_day = Some(Money::from_usd(5.0).unwrap());
        let request = TenantRequest { budget_usd_per_day, ..TenantRequest::default() };
        let sent = serde_json::to_value(&request).unwrap();
        let keys: Vec<_> = sent.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["alarm_share", "budget_usd_per_day"]);
        let none = TenantRequest { no_budget: true, ..TenantRequest::default() };
        assert_eq!(serde_json::to_value(&none).unwrap()["no_budget"], true);
    }
}
