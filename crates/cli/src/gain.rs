//! `tradewind gain`: the seconds that an overlay saves, by its control arm, and what they cost.

use std::process::ExitCode;

use tradewind_control::gain::{Estimate, FlowGain, RelayGain, Spending};
use tradewind_control::prediction_error::PredictionError;
use tradewind_control::tenants::TenantId;
use tradewind_controller::view::{Gain, SettingsRequest, SettingsView, Tenants};
use tradewind_grant::date::Date;
use tradewind_units::{Bytes, Ratio};

use crate::controller::access::{ControllerArgs, TableArgs};
use crate::output::{self, Outcome, table};

/// Seconds of a day.
const DAY: u64 = 24 * 3600;

#[derive(clap::Args)]
pub(crate) struct GainArgs {
    /// Number of days to show, today included
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    days: u64,
    /// Share of sessions over relays that go direct from now on, by lot, for comparison, such as
    /// `5%`
    #[arg(long, value_name = "SHARE")]
    control_share: Option<Ratio>,
    /// Show the flows of one tenant alone, without relays
    #[arg(long, value_name = "TENANT")]
    tenant: Option<TenantId>,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The columns of the gain of flows as CSV.
const COLUMNS: [&str; 21] = [
    "day",
    "flow",
    "overlay_sessions",
    "fallback_sessions",
    "control_sessions",
    "other_sessions",
    "failed_sessions",
    "overlay_failed_sessions",
    "control_failed_sessions",
    "bytes",
    "speedup.value",
    "speedup.low",
    "speedup.high",
    "speedup_predicted",
    "speedup_predicted_low",
    "speedup_predicted_high",
    "seconds_saved.value",
    "seconds_saved.low",
    "seconds_saved.high",
    "cost",
    "usd_per_second_saved",
];

pub(crate) fn run(args: &GainArgs) -> Outcome {
    let client = args.controller.client()?;
    if args.control_share.is_some() {
        let control_share = args.control_share;
        let request = SettingsRequest { control_share, ..SettingsRequest::default() };
        let _: SettingsView = client.put("/v1/settings", &request)?;
    }
    let mut gain: Gain = client.get(&format!("/v1/gain?days={}", args.days))?;
    if let Some(tenant) = &args.tenant {
        let all: Tenants = client.get("/v1/tenants")?;
        let own = all.tenants.iter().find(|known| known.id == *tenant);
        let own = own.ok_or_else(|| output::BadFile(format!("no tenant `{tenant}`")))?;
        gain.flows.retain(|gain| own.flows.contains(&gain.flow));
        gain.open_sessions.retain(|flow, _| own.flows.contains(flow));
        gain.relayed.retain(|row| own.flows.contains(&row.flow));
        gain.relays.clear();
    }
    args.output.print(&gain, &COLUMNS, &gain.flows, show)?;
    Ok(ExitCode::SUCCESS)
}

fn show(gain: &Gain) -> anyhow::Result<()> {
    if gain.flows.is_empty() {
        output::line("no session has ended yet")?;
    } else {
        let rows: Vec<Vec<String>> = gain.flows.iter().map(sessions_row).collect();
        let heading = [
            "day",
            "flow",
            "over relays",
            "fell back",
            "control",
            "other",
            "failed",
            "of them over relays",
            "cost $",
        ];
        table::print(&heading, &rows, 2)?;
        let rows: Vec<Vec<String>> = gain.flows.iter().map(flow_row).collect();
        table::print(&HEADING, &rows, 2)?;
    }
    if !gain.relays.is_empty() {
        let rows: Vec<Vec<String>> = gain.relays.iter().map(relay_row).collect();
        table::print(&["day", "relay", "sessions", "bytes", "saved s", "cost $"], &rows, 2)?;
    }
    if let Some(PredictionError { low, high, compared }) = gain.prediction_error {
        output::line(format_args!(
            "prediction: the next speedup is {low:.2} to {high:.2} times it in eight of ten cases, \
             by {compared} flows and days"
        ))?;
    }
    output::line(format_args!(
        "control: {:.1} % of sessions over relays go direct, by lot",
        gain.control_share.as_f64() * 100.0
    ))?;
    output::line(money(&gain.spending))
}

/// The heading of the gain of flows.
const HEADING: [&str; 6] =
    ["day", "flow", "speedup (95 %)", "predicted", "saved s (95 %)", "$/second"];

fn sessions_row(gain: &FlowGain) -> Vec<String> {
    vec![
        day(gain.day),
        gain.flow.to_string(),
        gain.overlay_sessions.to_string(),
        gain.fallback_sessions.to_string(),
        gain.control_sessions.to_string(),
        gain.other_sessions.to_string(),
        gain.failed_sessions.to_string(),
        gain.overlay_failed_sessions.to_string(),
        format!("{:.2}", gain.cost.as_usd()),
    ]
}

fn flow_row(gain: &FlowGain) -> Vec<String> {
    let is_long = gain.seconds_saved.is_some_and(|saved| saved.value.abs() >= 1000.0);
    vec![
        day(gain.day),
        gain.flow.to_string(),
        estimate(gain.speedup, 2),
        predicted(gain),
        estimate(gain.seconds_saved, if is_long { 0 } else { 1 }),
        gain.usd_per_second_saved.map_or(String::new(), |usd| format!("{usd:.6}")),
    ]
}

/// Returns the predicted speedup, with its interval if it has one.
fn predicted(gain: &FlowGain) -> String {
    let Some(value) = gain.speedup_predicted else { return String::new() };
    let interval = gain.speedup_predicted_low.zip(gain.speedup_predicted_high);
    interval.map_or_else(
        || format!("{value:.1}"),
        |(low, high)| format!("{value:.1} {low:.1}-{high:.1}"),
    )
}

fn relay_row(gain: &RelayGain) -> Vec<String> {
    vec![
        day(gain.day),
        gain.relay.to_string(),
        gain.sessions.to_string(),
        Bytes::new(gain.bytes).to_string(),
        gain.seconds_saved.map_or("too few".to_owned(), |seconds| format!("{seconds:.1}")),
        format!("{:.2}", gain.cost.as_usd()),
    ]
}

/// Returns a figure with its interval in words.
pub(crate) fn estimate(figure: Option<Estimate>, digits: usize) -> String {
    let Some(Estimate { value, low, high }) = figure else { return "too few".to_owned() };
    format!("{value:.digits$} ({low:.digits$} to {high:.digits$})")
}

/// Returns a day as `2027-01-31`.
pub(crate) fn day(number: u64) -> String {
    let date = Date(number.saturating_mul(DAY)).to_string();
    date.split('T').next().unwrap_or_default().to_owned()
}

/// Returns the money of a day in a line.
pub(crate) fn money(spending: &Spending) -> String {
    let Spending { estimated, machines, traffic, tests, budget, .. } = spending;
    let spent = *machines + *traffic + *tests;
    let state = if spending.is_exhausted {
        "; the budget is spent: all flows go direct until tomorrow"
    } else if spending.is_alarmed {
        "; that is past the alarm"
    } else {
        ""
    };
    format!(
        "money: {spent} today ({machines} for machines, {traffic} for traffic, {tests} for rate \
         tests),\n  estimated {estimated} for a whole day, budget {budget}{state}"
    )
}

#[cfg(test)]
mod tests {
    use tradewind_units::Money;

    use super::*;

    #[test]
    fn gain_of_a_large_flow_fits_100_columns() {
        let estimate = |value: f64| Estimate { value, low: value / 1.5, high: value * 1.5 };
        let gain = FlowGain {
            flow: "nightly-tokyo".parse().unwrap(),
            day: 20_784,
            overlay_sessions: 12_345,
            fallback_sessions: 45,
            control_sessions: 234,
            other_sessions: 12,
            failed_sessions: 3,
            overlay_failed_sessions: 2,
            control_failed_sessions: 1,
            bytes: 1,
            speedup: Some(estimate(4.0)),
            overlay_seconds: None,
            control_seconds: None,
            speedup_predicted: Some(12.34),
            speedup_predicted_low: Some(9.99),
            speedup_predicted_high: Some(23.45),
            seconds_saved: Some(estimate(6543.2)),
            cost: Money::from_usd(12.34).unwrap(),
            usd_per_second_saved: Some(0.001_886),
        };
        let text = table::text(&HEADING, &[flow_row(&gain)], 2, None);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?}:\n{text}");
    }

    #[test]
    fn days_and_figures_are_in_words() {
        assert_eq!(day(20_784), "2026-11-27");
        let figure = Estimate { value: 2.104, low: 1.8, high: 2.5 };
        assert_eq!(estimate(Some(figure), 2), "2.10 (1.80 to 2.50)");
        assert_eq!(estimate(None, 2), "too few");
    }

    #[test]
    fn money_tells_the_alarm_and_the_end_of_the_budget() {
        let usd = |usd| Money::from_usd(usd).unwrap();
        let mut spending = Spending {
            day: 0,
            estimated: usd(2.4),
            machines: usd(1.0),
            traffic: usd(0.4),
            tests: usd(0.1),
            budget: usd(6.0),
            is_alarmed: false,
            is_exhausted: false,
        };
        let plain = money(&spending);
        assert!(plain.starts_with("money: $1.50 today ($1.00 for machines, $0.40"), "{plain}");
        assert!(plain.ends_with("budget $6.00"), "{plain}");
        spending.is_alarmed = true;
        assert!(money(&spending).ends_with("past the alarm"));
        spending.is_exhausted = true;
        assert!(money(&spending).ends_with("go direct until tomorrow"));
    }
}
