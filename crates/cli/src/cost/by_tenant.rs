//! `tradewind cost --by tenant`: the money of an overlay, by day and tenant.

use std::collections::BTreeSet;
use std::process::ExitCode;

use serde::Serialize;
use tradewind_control::tenants::TenantId;
use tradewind_controller::view::{DayCost, SCHEMA_VERSION, TenantView, Tenants, UnassignedDay};
use tradewind_units::Money;

use super::CostArgs;
use crate::gain::day;
use crate::output::{Outcome, table};
use crate::tenant::state;

/// The columns of costs by tenant as CSV.
const COLUMNS: [&str; 7] =
    ["date", "tenant", "part", "estimated_usd", "metered_usd", "budget_usd", "is_stopped"];

/// The money of the last days by tenant.
#[derive(Serialize)]
struct Costs {
    schema_version: u32,
    days: u64,
    costs: Vec<Cost>,
}

/// The money of one tenant in one day, or of none.
#[derive(Serialize)]
struct Cost {
    date: String,
    /// The tenant; absent: what was no tenant's.
    tenant: Option<TenantId>,
    /// The part of what was no tenant's.
    part: Option<Part>,
    /// Of a whole day by the plan in effect; known of today only.
    estimated_usd: Option<Money>,
    /// In dollars; below zero for [`Part::Excess`], so that the rows of a day add up to what was
    /// metered.
    metered_usd: f64,
    /// As it is now; told of today only.
    budget_usd: Option<Money>,
    /// True if its flows go direct now, as its budget is zero or spent.
    is_stopped: bool,
    #[serde(skip)]
    state: &'static str,
}

/// The parts of what was no tenant's.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Part {
    /// Flows of no tenant.
    Flows,
    /// The part of machines that nobody's bytes used.
    Machines,
    /// Rate tests.
    RateTests,
    /// Metered traffic that no known flow accounts for.
    Unknown,
    /// The amount by which the other rows are above what was metered.
    Excess,
}

impl Part {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Flows => "flows of no tenant",
            Self::Machines => "unused machines",
            Self::RateTests => "rate tests",
            Self::Unknown => "unknown flows",
            Self::Excess => "beyond the meter",
        }
    }
}

pub(super) fn run(args: &CostArgs) -> Outcome {
    let path = format!("/v1/tenants?days={}", args.days);
    let tenants: Tenants = args.controller.client()?.get(&path)?;
    let costs = costs(&tenants);
    args.output.print(&costs, &COLUMNS, &costs.costs, show)?;
    Ok(ExitCode::SUCCESS)
}

fn costs(tenants: &Tenants) -> Costs {
    let of_tenants = tenants.tenants.iter().flat_map(|tenant| &tenant.costs).map(|cost| cost.day);
    let days: BTreeSet<u64> = of_tenants.chain(tenants.rest.iter().map(|cost| cost.day)).collect();
    let of_day = |costs: &[DayCost], day| costs.iter().find(|cost| cost.day == day).copied();
    let mut costs = Vec::new();
    for number in &days {
        let is_today = days.last() == Some(number);
        let of_tenant = |tenant: &TenantView| {
            let cost = of_day(&tenant.costs, *number)?;
            Some(Cost {
                date: day(*number),
                tenant: Some(tenant.id.clone()),
                part: None,
                estimated_usd: is_today.then_some(tenant.planned_usd_per_day),
                metered_usd: cost.usd.as_usd(),
                budget_usd: tenant.budget_usd_per_day.filter(|_| is_today),
                is_stopped: is_today && tenant.is_stopped,
                state: if is_today { state(tenant) } else { "" },
            })
        };
        costs.extend(tenants.tenants.iter().filter_map(of_tenant));
        let rest = tenants.rest.iter().filter(|rest| rest.day == *number);
        costs.extend(rest.flat_map(unassigned));
    }
    Costs { schema_version: SCHEMA_VERSION, days: tenants.days, costs }
}

/// Returns a row for each part of what was no tenant's that cost something.
fn unassigned(rest: &UnassignedDay) -> impl Iterator<Item = Cost> {
    let date = day(rest.day);
    let parts = [
        (Part::Flows, rest.flows_usd.as_usd()),
        (Part::Machines, rest.machines_usd.as_usd()),
        (Part::RateTests, rest.tests_usd.as_usd()),
        (Part::Unknown, rest.unknown_usd.as_usd()),
        (Part::Excess, -rest.excess_usd.as_usd()),
    ];
    parts.into_iter().filter(|(_, usd)| *usd != 0.0).map(move |(part, metered_usd)| Cost {
        date: date.clone(),
        tenant: None,
        part: Some(part),
        estimated_usd: None,
        metered_usd,
        budget_usd: None,
        is_stopped: false,
        state: "",
    })
}

fn show(costs: &Costs) -> anyhow::Result<()> {
    let usd = |money: Money| format!("{:.4}", money.as_usd());
    let row = |cost: &Cost| {
        let name = cost.tenant.as_ref().map(ToString::to_string);
        let part = cost.part.map_or("", Part::in_words);
        vec![
            cost.date.clone(),
            name.unwrap_or_else(|| part.to_owned()),
            cost.estimated_usd.map_or(String::new(), usd),
            format!("{:.4}", cost.metered_usd),
            cost.budget_usd.map_or(String::new(), usd),
            cost.state.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = costs.costs.iter().map(row).collect();
    table::print(&["day", "tenant", "estimated $", "metered $", "budget $", "state"], &rows, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_by_day_and_tenant_and_the_rest() {
        let usd = |usd| Money::from_usd(usd).unwrap();
        let of = |day, cost| DayCost { day, usd: usd(cost) };
        let nothing = |day| UnassignedDay {
            day,
            usd: Money::ZERO,
            flows_usd: Money::ZERO,
            machines_usd: Money::ZERO,
            tests_usd: Money::ZERO,
            unknown_usd: Money::ZERO,
            excess_usd: Money::ZERO,
        };
        let tenant = |id: &str, costs: Vec<DayCost>, budget, is_stopped| TenantView {
            id: id.parse().unwrap(),
            budget_usd_per_day: budget,
            alarm_share: None,
            is_stopped,
            flows: Vec::new(),
            planned_usd_per_day: usd(2.0),
            costs,
            tokens: 0,
        };
        let tenants = Tenants {
            schema_version: SCHEMA_VERSION,
            days: 2,
            tenants: vec![
                tenant("one", vec![of(20_784, 1.0), of(20_785, 0.5)], Some(usd(0.5)), true),
                tenant("two", vec![of(20_784, 0.0), of(20_785, 0.25)], None, false),
            ],
            rest: vec![
                UnassignedDay { flows_usd: usd(0.5), tests_usd: usd(0.25), ..nothing(20_784) },
                UnassignedDay { machines_usd: usd(0.125), excess_usd: usd(0.5), ..nothing(20_785) },
            ],
        };
        let rows: Vec<String> = costs(&tenants)
            .costs
            .iter()
            .map(|cost| {
                let part = cost.part.map_or("-", Part::in_words);
                let name = cost.tenant.as_ref().map_or(part.to_owned(), ToString::to_string);
                let [estimated, budget] = [cost.estimated_usd, cost.budget_usd]
                    .map(|usd| usd.map_or(String::new(), |usd| usd.to_string()));
                let (metered, state) = (cost.metered_usd, cost.state);
                format!("{} {name} {metered} [{estimated}] [{budget}] {state}", cost.date)
            })
            .collect();
        let expected = [
            "2026-11-27 one 1 [] [] ",
            "2026-11-27 two 0 [] [] ",
            "2026-11-27 flows of no tenant 0.5 [] [] ",
            "2026-11-27 rate tests 0.25 [] [] ",
            "2026-11-28 one 0.5 [$2.00] [$0.50] direct: budget spent",
            "2026-11-28 two 0.25 [$2.00] [] ",
            "2026-11-28 unused machines 0.125 [] [] ",
            "2026-11-28 beyond the meter -0.5 [] [] ",
        ];
        assert_eq!(rows, expected);
        // A tenant's own token is told of no other, and of no rest.
        let own = Tenants { tenants: tenants.tenants[..1].to_vec(), rest: Vec::new(), ..tenants };
        let own = costs(&own).costs;
        assert!(own.iter().all(|cost| cost.tenant.as_ref().unwrap().to_string() == "one"));
    }
}
