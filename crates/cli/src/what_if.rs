//! `tradewind what-if`: the plan under changes that are supposed.

use std::process::ExitCode;

use tradewind_control::what_if::{Move, PriceChange, VolumeChange, WhatIf, Worth};
use tradewind_controller::view::SupposedView;
use tradewind_units::{Money, RegionId, UnitError};

use crate::controller::access::{ControllerArgs, TableArgs};
use crate::output::{self, BadFile, Outcome, table};

/// Most flows that the table lists. Chosen: a screen.
const MAX_SHOWN: usize = 20;

#[derive(clap::Args)]
pub(crate) struct WhatIfArgs {
    /// A region without relays: `gcp:us-east4`, or all of a cloud, `gcp:*`; repeatable
    #[arg(long, value_name = "REGION")]
    without: Vec<String>,
    /// Another price of what relays send: `aws:us-east-1=x2`, `aws:*=x0.5`, `*=x3`; repeatable
    #[arg(long, value_name = "REGION=xFACTOR", value_parser = factor)]
    price: Vec<(String, f64)>,
    /// Another volume: `backup=x2`, or of all flows, `*=x1.5`; repeatable
    #[arg(long, value_name = "FLOW=xFACTOR", value_parser = factor)]
    volume: Vec<(String, f64)>,
    /// The most that a day may cost, such as `6 usd/day`, instead of the budget
    #[arg(long, value_name = "AMOUNT")]
    budget: Option<String>,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The columns of the flows with another path as CSV.
const COLUMNS: [&str; 5] = ["flow", "from", "to", "seconds_before", "seconds_after"];

/// Reads `NAME=xFACTOR`.
fn factor(text: &str) -> Result<(String, f64), UnitError> {
    let refused = || UnitError::new("change", "a name and a factor such as `aws:*=x2`", text);
    let (name, factor) = text.split_once('=').ok_or_else(refused)?;
    let factor = factor.strip_prefix('x').ok_or_else(refused)?;
    let factor: f64 = factor.parse().map_err(|_| refused())?;
    if name.is_empty() || !factor.is_finite() {
        return Err(refused());
    }
    Ok((name.to_owned(), factor))
}

pub(crate) fn run(args: &WhatIfArgs) -> Outcome {
    let asked = asked(args)?;
    let view: SupposedView = args.controller.client()?.post("/v1/what-if", &asked)?;
    args.output.print(&view, &COLUMNS, &view.supposed.flows, show)?;
    Ok(ExitCode::SUCCESS)
}

fn asked(args: &WhatIfArgs) -> Result<WhatIf, BadFile> {
    let bad = |error: String| BadFile(error);
    let price = |(from, times): &(String, f64)| PriceChange { from: from.clone(), times: *times };
    let volume = |(flow, times): &(String, f64)| {
        let flow = (flow != "*").then(|| flow.parse()).transpose();
        let flow = flow.map_err(|error| bad(format!("--volume: {error}")))?;
        Ok(VolumeChange { flow, times: *times })
    };
    let budget = args.budget.as_deref().map(Money::of_day).transpose();
    Ok(WhatIf {
        without: args.without.clone(),
        prices: args.price.iter().map(price).collect(),
        volumes: args.volume.iter().map(volume).collect::<Result<_, _>>()?,
        budget_usd_per_day: budget.map_err(|error| bad(format!("--budget: {error}")))?,
    })
}

fn show(view: &SupposedView) -> anyhow::Result<()> {
    let supposed = &view.supposed;
    let row = |name: &str, worth: &Worth| {
        vec![
            name.to_owned(),
            format!("{:.2}", worth.usd_per_day.as_usd()),
            format!("{:.0}", worth.seconds_saved),
            worth.relays.to_string(),
            worth.flows_over_relays.to_string(),
        ]
    };
    let mut difference = vec![
        "difference".to_owned(),
        format!("{:+.2}", supposed.usd_more),
        format!("{:+.0}", supposed.seconds_saved_more),
    ];
    difference.resize(5, String::new());
    let rows = [row("in effect", &supposed.present), row("what if", &supposed.plan), difference];
    table::print(&["", "a day $", "saves s", "relays", "flows over relays"], &rows, 1)?;
    for change in &supposed.regions {
        output::line(format_args!(
            "relays in {}: {} instead of {}",
            change.region, change.plan, change.present
        ))?;
    }
    let row = |one: &Move| {
        vec![
            one.flow.to_string(),
            hops(&one.from),
            hops(&one.to),
            format!("{:.1}", one.seconds_before),
            format!("{:.1}", one.seconds_after),
        ]
    };
    let rows: Vec<Vec<String>> = supposed.flows.iter().take(MAX_SHOWN).map(row).collect();
    if rows.is_empty() {
        return output::line("no flow would take another path");
    }
    table::print(&["flow", "path now", "path then", "now s", "then s"], &rows, 3)?;
    match supposed.moves.saturating_sub(MAX_SHOWN) {
        0 => Ok(()),
        more => output::line(format_args!("and {more} more")),
    }
}

fn hops(regions: &[RegionId]) -> String {
    if regions.is_empty() {
        return "direct".to_owned();
    }
    regions.iter().map(RegionId::as_str).collect::<Vec<_>>().join(" > ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_people_write_them() {
        assert_eq!(factor("aws:*=x2"), Ok(("aws:*".to_owned(), 2.0)));
        assert_eq!(factor("backup=x0.5"), Ok(("backup".to_owned(), 0.5)));
        for text in ["", "aws:*", "aws:*=2", "=x2", "aws:*=x", "aws:*=xnan", "aws:*=xinf"] {
            let refused = factor(text).unwrap_err().to_string();
            assert!(refused.contains("`aws:*=x2`"), "{text}: {refused}");
        }
    }

    #[test]
    fn paths_are_written_by_their_regions() {
        let region = |name: &str| RegionId::new(name).unwrap();
        assert_eq!(hops(&[]), "direct");
        assert_eq!(hops(&[region("gcp:a"), region("aws:b")]), "gcp:a > aws:b");
    }
}
