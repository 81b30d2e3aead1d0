//! `tradewind plan front`: the controller's plans for several budgets.

use std::process::ExitCode;

use tradewind_control::front::Point;
use tradewind_controller::view::Front;
use tradewind_units::Money;

use crate::controller::access::{ControllerArgs, TableArgs};
use crate::output::{self, Outcome, table};

#[derive(clap::Args)]
pub(super) struct FrontArgs {
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The columns of the plans as CSV.
const COLUMNS: [&str; 6] = [
    "budget_usd_per_day",
    "usd_per_day",
    "seconds",
    "seconds_saved",
    "relays",
    "flows_over_relays",
];

pub(super) fn run(args: &FrontArgs) -> Outcome {
    let front: Front = args.controller.client()?.get("/v1/front")?;
    args.output.print(&front, &COLUMNS, &front.points, show)?;
    Ok(ExitCode::SUCCESS)
}

fn show(front: &Front) -> anyhow::Result<()> {
    let budget = front.budget_usd_per_day;
    let row = |point: &Point| {
        let worth = &point.worth;
        let usd = |money: Money| format!("{:.2}", money.as_usd());
        vec![
            if point.budget_usd_per_day == budget { "*".to_owned() } else { String::new() },
            usd(point.budget_usd_per_day),
            usd(worth.usd_per_day),
            format!("{:.0}", worth.seconds_saved),
            worth.relays.to_string(),
            worth.flows_over_relays.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = front.points.iter().map(row).collect();
    table::print(&["", "budget $", "a day $", "saves s", "relays", "flows over relays"], &rows, 1)?;
    let present = &front.present;
    output::line(format_args!(
        "in effect: {} a day, {:.0} s saved; * the budget of now; `tradewind budget` sets another",
        present.usd_per_day, present.seconds_saved
    ))
}
