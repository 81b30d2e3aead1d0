//! `tradewind cost`: the money of an overlay, by day, relay and flow.

use std::process::ExitCode;

use serde::Serialize;
use tradewind_control::gain::Spending;
use tradewind_controller::view::{Gain, SCHEMA_VERSION};
use tradewind_units::{Bytes, Money};

use crate::controller::access::{ControllerArgs, TableArgs};
use crate::gain::{day, money};
use crate::output::{self, Outcome, table};

#[derive(clap::Args)]
pub(crate) struct CostArgs {
    /// Number of days to show, today included
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    days: u64,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The columns of costs as CSV.
const COLUMNS: [&str; 6] = ["date", "of", "name", "bytes", "estimated_usd", "metered_usd"];

/// The money of the last days. Relays and flows share the same money, each in their own way.
#[derive(Serialize)]
struct Costs {
    schema_version: u32,
    days: u64,
    costs: Vec<Cost>,
    /// The money of today.
    today: Spending,
}

/// The money of one relay or flow in one day, or of all.
#[derive(Serialize)]
struct Cost {
    date: String,
    of: Of,
    /// The relay or flow.
    name: Option<String>,
    bytes: Option<u64>,
    /// Of a whole day by the plan in effect; known of today only.
    estimated_usd: Option<Money>,
    metered_usd: Money,
}

/// That which money was spent on.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Of {
    All,
    Relay,
    Flow,
}

pub(crate) fn run(args: &CostArgs) -> Outcome {
    let gain: Gain = args.controller.client()?.get(&format!("/v1/gain?days={}", args.days))?;
    let costs = costs(gain);
    args.output.print(&costs, &COLUMNS, &costs.costs, show)?;
    Ok(ExitCode::SUCCESS)
}

fn costs(gain: Gain) -> Costs {
    let today = gain.spending;
    let mut days: Vec<u64> = gain.relays.iter().map(|relay| relay.day).collect();
    days.extend(gain.flows.iter().map(|flow| flow.day));
    days.push(today.day);
    days.sort_unstable();
    days.dedup();
    let mut costs = Vec::new();
    for number in days {
        let relays = || gain.relays.iter().filter(|relay| relay.day == number);
        let date = day(number);
        let tests = if number == today.day { today.tests } else { Money::ZERO };
        costs.push(Cost {
            date: date.clone(),
            of: Of::All,
            name: None,
            bytes: None,
            estimated_usd: (number == today.day).then_some(today.estimated),
            metered_usd: relays().map(|relay| relay.cost).sum::<Money>() + tests,
        });
        let row = |of, name: &str, bytes, metered_usd| Cost {
            date: date.clone(),
            of,
            name: Some(name.to_owned()),
            bytes: Some(bytes),
            estimated_usd: None,
            metered_usd,
        };
        costs.extend(relays().map(|one| row(Of::Relay, one.relay.as_str(), one.bytes, one.cost)));
        let flows = gain.flows.iter().filter(|flow| flow.day == number);
        costs.extend(flows.map(|one| row(Of::Flow, one.flow.as_str(), one.bytes, one.cost)));
    }
    Costs { schema_version: SCHEMA_VERSION, days: gain.days, costs, today }
}

fn show(costs: &Costs) -> anyhow::Result<()> {
    let row = |cost: &Cost| {
        let usd = |money: Money| format!("{:.4}", money.as_usd());
        let name = cost.name.as_deref().unwrap_or_default();
        vec![
            cost.date.clone(),
            match cost.of {
                Of::All => "all".to_owned(),
                Of::Relay => format!("relay {name}"),
                Of::Flow => format!("flow {name}"),
            },
            cost.bytes.map_or(String::new(), |bytes| Bytes::new(bytes).to_string()),
            cost.estimated_usd.map_or(String::new(), usd),
            usd(cost.metered_usd),
        ]
    };
    let rows: Vec<Vec<String>> = costs.costs.iter().map(row).collect();
    table::print(&["day", "of", "bytes", "estimated $", "metered $"], &rows, 2)?;
    output::line(money(&costs.today))
}

#[cfg(test)]
mod tests {
    use tradewind_control::gain::{FlowGain, RelayGain};
    use tradewind_units::Ratio;

    use super::*;

    #[test]
    fn money_is_by_day_relay_and_flow() {
        let usd = |usd| Money::from_usd(usd).unwrap();
        let relay = |name: &str, day, cost| RelayGain {
            relay: name.parse().unwrap(),
            day,
            sessions: 1,
            bytes: 1000,
            seconds_saved: None,
            cost: usd(cost),
        };
        let flow = FlowGain {
            flow: "backup".parse().unwrap(),
            day: 20_785,
            overlay_sessions: 1,
            fallback_sessions: 0,
            control_sessions: 0,
            other_sessions: 0,
            failed_sessions: 0,
            overlay_failed_sessions: 0,
            control_failed_sessions: 0,
            bytes: 2000,
            speedup: None,
            speedup_predicted: None,
            seconds_saved: None,
            cost: usd(0.75),
            usd_per_second_saved: None,
        };
        let spending = Spending {
            day: 20_785,
            estimated: usd(2.0),
            machines: usd(0.5),
            traffic: usd(0.25),
            tests: usd(0.125),
            budget: usd(6.0),
            is_alarmed: false,
            is_exhausted: false,
        };
        let costs = costs(Gain {
            schema_version: SCHEMA_VERSION,
            days: 2,
            control_share: Ratio::ZERO,
            flows: vec![flow],
            relays: vec![
                relay("a", 20_784, 3.0),
                relay("a", 20_785, 0.5),
                relay("b", 20_785, 0.25),
            ],
            spending,
        });
        let rows: Vec<String> = costs
            .costs
            .iter()
            .map(|cost| {
                let of = serde_json::to_value(cost.of).unwrap();
                let name = cost.name.as_deref().unwrap_or("-");
                let estimated = cost.estimated_usd.map_or(0.0, Money::as_usd);
                format!("{} {of} {name} {estimated} {}", cost.date, cost.metered_usd.as_usd())
            })
            .collect();
        let expected = [
            "2026-11-27 \"all\" - 0 3",
            "2026-11-27 \"relay\" a 0 3",
            "2026-11-28 \"all\" - 2 0.875",
            "2026-11-28 \"relay\" a 0 0.5",
            "2026-11-28 \"relay\" b 0 0.25",
            "2026-11-28 \"flow\" backup 0 0.75",
        ];
        assert_eq!(rows, expected);
    }
}
