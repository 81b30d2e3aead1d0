//! `tradewind tenant`: groups of flows with budgets and accounts of their own.

use std::process::ExitCode;

use tradewind_control::tenants::TenantId;
use tradewind_controller::view::{
    DayCost, TenantRequest, TenantView, Tenants, TokenAnswer, TokenRequest,
};
use tradewind_units::{Money, Ratio, UnitError};

use crate::controller::access::{ControllerArgs, OutputArgs, TableArgs};
use crate::gain::day;
use crate::output::{self, Outcome, table};

#[derive(clap::Subcommand)]
pub(crate) enum TenantCommand {
    /// Add a tenant, or change its budget
    ///
    /// Once its flows have cost that much in a day (UTC), they go direct until the next, those of
    /// others go on. Without a budget only that of the overlay bounds it.
    Add(AddArgs),
    /// Show the tenants, with what their flows cost
    List(ListArgs),
    /// Make a token by which a tenant sees its own flows and costs alone, and print it
    Token(TokenArgs),
    /// Remove all tokens of a tenant
    Untoken(OneArgs),
    /// Remove a tenant; its flows are the overlay's own then
    Remove(OneArgs),
}

#[derive(clap::Args)]
pub(crate) struct AddArgs {
    /// Its name
    name: TenantId,
    /// The most that its flows may cost in a day, such as `6 usd/day`; `none` takes it away
    #[arg(long, value_name = "AMOUNT", value_parser = budget)]
    budget: Option<Budget>,
    /// Share of the budget from which on the audit log has an alarm, such as `80%`
    #[arg(long, value_name = "SHARE")]
    alarm: Option<Ratio>,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// The budget of a tenant.
#[derive(Clone, Copy)]
enum Budget {
    /// There is none but the overlay's.
    None,
    /// The most of a day.
    OfDay(Money),
}

fn budget(text: &str) -> Result<Budget, UnitError> {
    if text == "none" { Ok(Budget::None) } else { Money::of_day(text).map(Budget::OfDay) }
}

#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Number of days to tell of, today included
    #[arg(long, value_name = "NUMBER", default_value = "1",
        value_parser = clap::value_parser!(u64).range(1..=31))]
    days: u64,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

#[derive(clap::Args)]
pub(crate) struct TokenArgs {
    /// Its name
    name: TenantId,
    /// Let it declare and remove flows of its own, too
    #[arg(long)]
    operate: bool,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args)]
pub(crate) struct OneArgs {
    /// Its name
    name: TenantId,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// The columns of tenants as CSV.
const COLUMNS: [&str; 7] = [
    "id",
    "budget_usd_per_day",
    "alarm_share",
    "is_stopped",
    "planned_usd_per_day",
    "flows",
    "tokens",
];

pub(crate) fn run(command: &TenantCommand) -> Outcome {
    match command {
        TenantCommand::Add(args) => {
            let AddArgs { name, budget, alarm, controller } = args;
            let request = TenantRequest {
                budget_usd_per_day: budget.and_then(|budget| match budget {
                    Budget::None => None,
                    Budget::OfDay(most) => Some(most),
                }),
                no_budget: matches!(budget, Some(Budget::None)),
                alarm_share: *alarm,
            };
            let path = format!("/v1/tenants/{name}");
            let _all: Tenants = controller.client()?.put(&path, &request)?;
            output::note(format_args!("tenant {name} is set"));
        }
        TenantCommand::List(args) => return list(args),
        TenantCommand::Token(args) => {
            let path = format!("/v1/tenants/{}/tokens", args.name);
            let request = TokenRequest { may_write: args.operate };
            let answer: TokenAnswer = args.controller.client()?.post(&path, &request)?;
            args.output.print(&answer, |answer| output::line(&answer.token))?;
        }
        TenantCommand::Untoken(args) => {
            args.controller.client()?.delete(&format!("/v1/tenants/{}/tokens", args.name))?;
            output::note(format_args!("tenant {} has no token any more", args.name));
        }
        TenantCommand::Remove(args) => {
            args.controller.client()?.delete(&format!("/v1/tenants/{}", args.name))?;
            output::note(format_args!("removed tenant {}", args.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns what is to be said of a tenant's flows now.
pub(crate) fn state(tenant: &TenantView) -> &'static str {
    match (tenant.is_stopped, tenant.budget_usd_per_day) {
        (false, _) => "",
        (true, Some(Money::ZERO)) => "direct: budget zero",
        (true, _) => "direct: budget spent",
    }
}

fn list(args: &ListArgs) -> Outcome {
    let path = format!("/v1/tenants?days={}", args.days);
    let tenants: Tenants = args.controller.client()?.get(&path)?;
    args.output.print(&tenants, &COLUMNS, &tenants.tenants, show)?;
    Ok(ExitCode::SUCCESS)
}

fn show(tenants: &Tenants) -> anyhow::Result<()> {
    if tenants.tenants.is_empty() {
        return output::line("no tenants: all flows are the overlay's own");
    }
    let row = |(tenant, cost): (&TenantView, &DayCost)| {
        vec![
            tenant.id.to_string(),
            day(cost.day),
            cost.usd.to_string(),
            tenant.budget_usd_per_day.map_or(String::new(), |budget| budget.to_string()),
            tenant.planned_usd_per_day.to_string(),
            tenant.flows.len().to_string(),
            state(tenant).to_owned(),
        ]
    };
    let days = tenants
        .tenants
        .iter()
        .flat_map(|tenant| tenant.costs.iter().rev().map(move |cost| (tenant, cost)));
    let rows: Vec<Vec<String>> = days.map(row).collect();
    table::print(&["tenant", "day", "cost", "budget", "planned", "flows", "state"], &rows, 2)
}
