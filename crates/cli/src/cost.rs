//! `tradewind cost`: the money of an overlay, by day, relay and flow, or tenant.

mod by_tenant;
mod import;

use std::process::ExitCode;

use serde::Serialize;
use tradewind_control::gain::{DaySpent, Spending};
use tradewind_control::relayed::Compared;
use tradewind_controller::view::{Gain, SCHEMA_VERSION};
use tradewind_units::{Bytes, Money};

use crate::controller::access::{ControllerArgs, TableArgs};
use crate::gain::{day, money};
use crate::output::{self, Outcome, table};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct CostArgs {
    #[command(subcommand)]
    command: Option<CostCommand>,
    /// Number of days to show, today included
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=31))]
    days: u64,
    /// Share the money in another way than by relay and flow
    #[arg(long, value_enum)]
    by: Option<By>,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The ways to share money.
#[derive(Clone, Copy, clap::ValueEnum)]
enum By {
    /// Each pays for its flows' traffic, and for their share of machines
    Tenant,
}

#[derive(clap::Subcommand)]
enum CostCommand {
    /// Take in what clouds have billed, by day and host, to stand beside what was metered
    ///
    /// A file replaces what was imported for its days and hosts before. Nothing is decided by it.
    Import(import::ImportArgs),
}

/// The columns of costs as CSV.
const COLUMNS: [&str; 7] =
    ["date", "of", "name", "bytes", "estimated_usd", "metered_usd", "billed_usd"];

/// The money of the last days. Relays and flows share the same money, each in their own way.
#[derive(Serialize)]
struct Costs {
    schema_version: u32,
    days: u64,
    costs: Vec<Cost>,
    /// The counts of relays themselves, by which their traffic costs, beside what gateways told.
    relayed: Vec<Compared>,
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
    /// As plans estimated it, each for the time for which it was in effect.
    estimated_usd: Option<Money>,
    metered_usd: Money,
    /// As it was imported.
    billed_usd: Option<Money>,
}

/// That which money was spent on.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Of {
    All,
    Relay,
    Flow,
    RateTests,
}

pub(crate) fn run(args: &CostArgs) -> Outcome {
    if let Some(CostCommand::Import(args)) = &args.command {
        return import::run(args);
    }
    if let Some(By::Tenant) = args.by {
        return by_tenant::run(args);
    }
    let gain: Gain = args.controller.client()?.get(&format!("/v1/gain?days={}", args.days))?;
    let costs = costs(gain);
    args.output.print(&costs, &COLUMNS, &costs.costs, show)?;
    Ok(ExitCode::SUCCESS)
}

fn costs(gain: Gain) -> Costs {
    let today = gain.spending;
    let mut days: Vec<u64> = gain.relays.iter().map(|relay| relay.day).collect();
    days.extend(gain.billed.iter().map(|billed| billed.day));
    days.extend(gain.spent.iter().map(|spent| spent.day));
    days.extend(gain.flows.iter().map(|flow| flow.day));
    days.push(today.day);
    days.sort_unstable();
    days.dedup();
    let mut costs = Vec::new();
    for number in days {
        let relays = || gain.relays.iter().filter(|relay| relay.day == number);
        let billed = || gain.billed.iter().filter(|billed| billed.day == number);
        let date = day(number);
        // A day without a row has cost nothing.
        let nothing = DaySpent::default();
        let spent = gain.spent.iter().find(|spent| spent.day == number).unwrap_or(&nothing);
        costs.push(Cost {
            date: date.clone(),
            of: Of::All,
            name: None,
            bytes: None,
            estimated_usd: Some(spent.estimated),
            metered_usd: spent.total(),
            billed_usd: billed().map(|one| one.usd).reduce(|sum, usd| sum + usd),
        });
        let row = |of, name: &str, bytes, metered_usd| Cost {
            date: date.clone(),
            of,
            name: Some(name.to_owned()),
            bytes: Some(bytes),
            estimated_usd: None,
            metered_usd,
            billed_usd: None,
        };
        let of_relay = |name: &str| billed().find(|billed| billed.host.as_str() == name);
        costs.extend(relays().map(|one| {
            let name = one.relay.as_str();
            let billed_usd = of_relay(name).map(|billed| billed.usd);
            Cost { billed_usd, ..row(Of::Relay, name, one.bytes, one.cost) }
        }));
        // Hosts that were billed for a day on which nothing of theirs was metered.
        let is_listed = |name: &str| relays().any(|one| one.relay.as_str() == name);
        costs.extend(billed().filter(|one| !is_listed(one.host.as_str())).map(|one| Cost {
            billed_usd: Some(one.usd),
            ..row(Of::Relay, one.host.as_str(), 0, Money::ZERO)
        }));
        let has_tests = spent.tests > Money::ZERO || spent.test_bytes.unwrap_or(0) > 0;
        costs.extend(has_tests.then(|| Cost {
            date: date.clone(),
            of: Of::RateTests,
            name: None,
            bytes: spent.test_bytes,
            estimated_usd: None,
            metered_usd: spent.tests,
            billed_usd: None,
        }));
        let flows = gain.flows.iter().filter(|flow| flow.day == number);
        costs.extend(flows.map(|one| row(Of::Flow, one.flow.as_str(), one.bytes, one.cost)));
    }
    let (days, relayed) = (gain.days, gain.relayed);
    Costs { schema_version: SCHEMA_VERSION, days, costs, relayed, today }
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
                Of::RateTests => "rate tests".to_owned(),
            },
            cost.bytes.map_or(String::new(), |bytes| Bytes::new(bytes).to_string()),
            cost.estimated_usd.map_or(String::new(), usd),
            usd(cost.metered_usd),
            cost.billed_usd.map_or(String::new(), usd),
        ]
    };
    let rows: Vec<Vec<String>> = costs.costs.iter().map(row).collect();
    table::print(&["day", "of", "bytes", "estimated $", "metered $", "billed $"], &rows, 2)?;
    if !costs.relayed.is_empty() {
        let rows: Vec<Vec<String>> = costs.relayed.iter().map(compared_row).collect();
        table::print(&["day", "flow", "relay", "gateways told", "relay counted", ""], &rows, 3)?;
    }
    output::line(money(&costs.today))
}

fn compared_row(row: &Compared) -> Vec<String> {
    vec![
        day(row.day),
        row.flow.to_string(),
        row.relay.to_string(),
        Bytes::new(row.told_bytes).to_string(),
        Bytes::new(row.counted_bytes).to_string(),
        if row.differs { "differs" } else { "" }.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use tradewind_control::gain::{FlowGain, RelayGain};
    use tradewind_control::imported::Billed;
    use tradewind_units::Ratio;

    use super::*;

    fn flow_gain() -> FlowGain {
        FlowGain {
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
            overlay_seconds: None,
            control_seconds: None,
            speedup_predicted: None,
            speedup_predicted_low: None,
            speedup_predicted_high: None,
            seconds_saved: None,
            cost: Money::from_usd(0.75).unwrap(),
            usd_per_second_saved: None,
        }
    }

    fn today() -> Spending {
        Spending {
            day: 20_785,
            estimated: Money::ZERO,
            machines: Money::ZERO,
            traffic: Money::ZERO,
            tests: Money::ZERO,
            budget: Money::ZERO,
            is_alarmed: false,
            is_exhausted: false,
        }
    }

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
        // Packets are part of a day's traffic, and of no relay's sessions.
        let spent = |day, traffic| DaySpent {
            day,
            estimated: usd(2.0),
            traffic: usd(traffic),
            ..DaySpent::default()
        };
        let costs = costs(Gain {
            schema_version: SCHEMA_VERSION,
            days: 2,
            control_share: Ratio::ZERO,
            flows: vec![flow_gain()],
            prediction_error: None,
            open_sessions: [].into(),
            relays: vec![
                relay("a", 20_784, 3.0),
                relay("a", 20_785, 0.5),
                relay("b", 20_785, 0.25),
            ],
            relayed: Vec::new(),
            billed: vec![
                Billed { day: 20_785, host: "a".parse().unwrap(), usd: usd(0.75) },
                Billed { day: 20_785, host: "office-1".parse().unwrap(), usd: usd(1.0) },
            ],
            spent: vec![
                DaySpent { tests: usd(0.25), test_bytes: None, ..spent(20_784, 3.0) },
                DaySpent { tests: usd(0.125), test_bytes: Some(9), ..spent(20_785, 1.0) },
            ],
            spending: today(),
        });
        let rows: Vec<String> = costs
            .costs
            .iter()
            .map(|cost| {
                let of = serde_json::to_value(cost.of).unwrap();
                let name = cost.name.as_deref().unwrap_or("-");
                let estimated = cost.estimated_usd.map_or(0.0, Money::as_usd);
                let billed = cost.billed_usd.map_or(String::new(), |usd| format!(" {usd}"));
                let metered = cost.metered_usd.as_usd();
                format!("{} {of} {name} {estimated} {metered}{billed}", cost.date)
            })
            .collect();
        let expected = [
            "2026-11-27 \"all\" - 2 3.25",
            "2026-11-27 \"relay\" a 0 3",
            "2026-11-27 \"rate-tests\" - 0 0.25",
            "2026-11-28 \"all\" - 2 1.125 $1.75",
            "2026-11-28 \"relay\" a 0 0.5 $0.75",
            "2026-11-28 \"relay\" b 0 0.25",
            "2026-11-28 \"relay\" office-1 0 0 $1.00",
            "2026-11-28 \"rate-tests\" - 0 0.125",
            "2026-11-28 \"flow\" backup 0 0.75",
        ];
        assert_eq!(rows, expected);
    }
}
