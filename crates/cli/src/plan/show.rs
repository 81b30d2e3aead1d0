//! The printed form of plans.

use tradewind_model::cost::Prices;
use tradewind_model::leg::DEFAULT_WINDOW;
use tradewind_plan::answer::AnswerFlow;
use tradewind_plan::assumptions::{AssumedLeg, RttOrigin, WindowOrigin};
use tradewind_plan::{Answer, Objective, Status};
use tradewind_units::{Bytes, Duration, Money, RegionId};

use super::packets;
use super::problem::Read;
use crate::output::{self, table};

pub(super) use tradewind_plan::answer::NO_BUDGET_USD;

/// Tells why there is no plan; returns false if there is one.
pub(super) fn reason(read: &Read, answer: &Answer) -> bool {
    let Some(reason) = &answer.reason else { return false };
    output::complain(format_args!("{}: {}: {reason}", read.asked.file, answer.status.as_str()));
    true
}

/// Prints a plan's relays, flows and figures, or the reason why there is none.
pub(super) fn answer(read: &Read, answer: &Answer) -> anyhow::Result<()> {
    if reason(read, answer) {
        return Ok(());
    }
    let relays: Vec<Vec<String>> = (answer.relays.iter())
        .map(|group| {
            let count = group.count.to_string();
            vec![group.region.to_string(), group.relay_type.to_string(), count]
        })
        .collect();
    if answer.flows.is_empty() {
        // There are only packet flows.
        packets::show(answer)?;
        return prices(&read.file.inputs.prices, &read.file.inputs.regions);
    }
    if relays.is_empty() {
        output::line("no relays: every flow goes direct")?;
    } else {
        table::print(&["region", "relay type", "relays"], &relays, 2)?;
    }
    let flows: Vec<Vec<String>> = (answer.flows.iter().zip(&read.file.inputs.flows))
        .map(|(flow, ends)| {
            let path: Vec<String> = flow.path.iter().map(ToString::to_string).collect();
            let path = if path.is_empty() { "direct".to_owned() } else { path.join(" > ") };
            let ratio = flow.direct_fct.map(|direct| direct.as_secs_f64() / flow.fct.as_secs_f64());
            vec![
                flow.id.to_string(),
                ends.source.to_string(),
                ends.destination.to_string(),
                path,
                optional(flow.direct_fct.map(seconds)),
                seconds(flow.fct),
                optional(ratio.map(times)),
                dollars(flow.cost),
                bound_by(flow),
            ]
        })
        .collect();
    let mut heading = vec!["flow", "from", "to", "path", "direct s", "FCT s"];
    heading.extend(["acceleration", "egress $", "bound by"]);
    table::print(&heading, &flows, 4)?;
    assumptions(answer)?;
    for line in summary(answer) {
        output::line(line)?;
    }
    packets::show(answer)?;
    prices(&read.file.inputs.prices, &read.file.inputs.regions)
}

/// Returns the limit of a flow's rate, and the source of the figure.
fn bound_by(flow: &AnswerFlow) -> String {
    let Some(leg) = flow.legs.iter().find(|leg| leg.slowest) else { return "-".to_owned() };
    if leg.bound_by != "window" {
        return leg.bound_by.clone();
    }
    let from = match leg.window_from {
        WindowOrigin::Stated => "",
        WindowOrigin::Default => " (default)",
    };
    format!("window {}{from}", Bytes::new(leg.window_bytes))
}

/// Prints below the flows the assumptions that their times depend on.
fn assumptions(answer: &Answer) -> anyhow::Result<()> {
    let count = |is_so: &dyn Fn(&AssumedLeg) -> bool| {
        answer.flows.iter().filter(|flow| flow.legs.iter().any(is_so)).count()
    };
    let default = |leg: &AssumedLeg| {
        leg.slowest && leg.bound_by == "window" && leg.window_from == WindowOrigin::Default
    };
    let windows = count(&default);
    if windows > 0 {
        output::line(format_args!(
            "assumed: the times of {windows} flows rest on windows of {DEFAULT_WINDOW}, which no \
             section states: what a Linux \
             host gives as it comes (docs/reference/problem.md)"
        ))?;
    }
    let by_distance = count(&|leg: &AssumedLeg| leg.rtt_from == RttOrigin::Distance);
    if by_distance > 0 {
        output::line(format_args!(
            "assumed: the times of {by_distance} flows rest on round trips that follow from \
             distance"
        ))?;
    }
    Ok(())
}

/// Prints below a table with costs the dates of the prices.
pub(crate) fn prices(prices: &Prices, regions: &[RegionId]) -> anyhow::Result<()> {
    let dates = prices.dates(regions).into_iter();
    let dates: Vec<String> = dates
        .map(|(cloud, dates)| {
            let dates: Vec<String> = dates.into_iter().collect();
            format!("{cloud} of {}", dates.join(" and "))
        })
        .collect();
    if dates.is_empty() {
        return Ok(());
    }
    output::line(format_args!("egress prices of the catalogue: {}", dates.join(", ")))
}

fn summary(answer: &Answer) -> Vec<String> {
    let (total, direct) = (answer.total_fct.map(seconds), answer.direct_fct.map(seconds));
    let proof = match (answer.status, answer.gap) {
        (Status::Optimal, _) => "proven to be the best".to_owned(),
        (_, Some(gap)) => format!("at most {:.2} % from the best", gap * 100.0),
        (_, None) => "no bound".to_owned(),
    };
    let least = match (answer.objective, answer.value()) {
        (_, None) => "-".to_owned(),
        (Objective::Cost, Some(usd)) => format!("${usd:.2}"),
        (_, Some(seconds)) => format!("{} s", decimals(seconds)),
    };
    let budget = answer.budget.as_usd();
    let budget =
        if budget >= NO_BUDGET_USD { "no budget".to_owned() } else { format!("of ${budget:.2}") };
    vec![
        format!(
            "total {} s, direct {} s: acceleration {}",
            optional(total),
            optional(direct),
            optional(answer.acceleration.map(times))
        ),
        format!("cost ${} ({budget})", optional(answer.cost.map(dollars))),
        format!(
            "{}: {} {least}, {proof}; by {} in {} s",
            answer.status.as_str(),
            called(answer),
            answer.algorithm,
            seconds(answer.solve)
        ),
    ]
}

/// Returns the minimized quantity in words.
fn called(answer: &Answer) -> &'static str {
    match answer.objective {
        Objective::TotalFct if answer.weighted_fct == answer.total_fct => "total",
        Objective::TotalFct => "weighted total",
        Objective::Makespan => "makespan",
        Objective::Cost => "cost",
    }
}

/// Returns the heading of a column with the plans' values of the objective; `None` where the column
/// of cost or of total completion times has it, unless weights make another sum (`differs`).
pub(super) fn objective_heading(objective: Objective, differs: bool) -> Option<&'static str> {
    match objective {
        Objective::TotalFct => differs.then_some("weighted FCT s"),
        Objective::Makespan => Some("makespan s"),
        Objective::Cost => None,
    }
}

pub(crate) fn optional(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

pub(crate) fn decimals(number: f64) -> String {
    format!("{number:.3}")
}

pub(crate) fn seconds(span: Duration) -> String {
    decimals(span.as_secs_f64())
}

pub(crate) fn dollars(amount: Money) -> String {
    format!("{:.2}", amount.as_usd())
}

pub(crate) fn times(ratio: f64) -> String {
    format!("{ratio:.2}")
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.2}", share * 100.0)
}
