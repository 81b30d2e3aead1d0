//! `tradewind budget` and `tradewind mode`: the operator's settings.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tradewind_control::record::Mode;
use tradewind_control::terms::Terms;
use tradewind_controller::view::{SettingsRequest, SettingsView};
use tradewind_units::time::parse_duration;
use tradewind_units::{Duration, Money, Ratio};

use crate::controller::access::{ControllerArgs, OutputArgs};
use crate::output::{self, OrBadFile as _, Outcome, read_text};

#[derive(clap::Args)]
pub(crate) struct BudgetArgs {
    /// The most that a day may cost, such as `6 usd/day`; without it the budget is shown
    #[arg(value_name = "AMOUNT", num_args = 0..=2)]
    amount: Vec<String>,
    /// Share of the budget from which on `tradewind status` warns, such as `80%`
    #[arg(long, value_name = "SHARE")]
    alarm: Option<Ratio>,
    /// Share of the budget that rate tests may use; 0: none are made
    #[arg(long, value_name = "SHARE")]
    tests: Option<Ratio>,
    /// Prices and relay types of your own (docs/how-to/money.md), for costs from now on
    #[arg(long, value_name = "FILE")]
    terms: Option<PathBuf>,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args)]
pub(crate) struct ModeArgs {
    /// The one who puts plans into effect; without it and options the settings are shown
    #[arg(value_enum)]
    mode: Option<ModeName>,
    /// Time that machines of relays take to set up, such as `90 s`: a new plan waits so much longer
    /// for them, at most 30 min
    #[arg(long, value_name = "SPAN", value_parser = parse_duration)]
    relay_setup: Option<Duration>,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The one who puts plans into effect.
#[derive(Clone, Copy, clap::ValueEnum)]
enum ModeName {
    /// You, by `tradewind apply`
    Suggest,
    /// The controller, when a plan is clearly better than the one in effect
    Auto,
}

pub(crate) fn budget(args: &BudgetArgs) -> Outcome {
    let amount = (!args.amount.is_empty()).then(|| args.amount.join(" "));
    let budget_usd_per_day = amount.as_deref().map(Money::of_day).transpose();
    let request = SettingsRequest {
        budget_usd_per_day: budget_usd_per_day.map_err(|e| output::BadFile(e.to_string()))?,
        alarm_share: args.alarm.map(Ratio::as_f64),
        tests_share: args.tests,
        terms: args.terms.as_deref().map(terms).transpose()?,
        ..SettingsRequest::default()
    };
    change(&request, &args.controller, &args.output)
}

fn terms(file: &Path) -> anyhow::Result<Terms> {
    let text = read_text(file)?;
    toml::from_str(&text).map_err(|error| anyhow::anyhow!("{}", error.message())).or_bad(file)
}

pub(crate) fn mode(args: &ModeArgs) -> Outcome {
    let mode = args.mode.map(|mode| match mode {
        ModeName::Suggest => Mode::Suggest,
        ModeName::Auto => Mode::Auto,
    });
    let relay_setup = args.relay_setup;
    let request = SettingsRequest { mode, relay_setup, ..SettingsRequest::default() };
    change(&request, &args.controller, &args.output)
}

fn change(request: &SettingsRequest, controller: &ControllerArgs, output: &OutputArgs) -> Outcome {
    let client = controller.client()?;
    let settings: SettingsView = if *request == SettingsRequest::default() {
        client.get("/v1/settings")?
    } else {
        client.put("/v1/settings", request)?
    };
    output.print(&settings, |settings| output::line(sentence(settings)))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the settings in a line.
pub(crate) fn sentence(settings: &SettingsView) -> String {
    let budget = settings.budget_usd_per_day;
    let alarm = settings
        .alarm_share
        .map_or(String::new(), |share| format!(", a warning from {:.0} % on", share * 100.0));
    let mode = match settings.mode {
        Mode::Suggest => "you apply plans (`tradewind apply`)",
        Mode::Auto => "the controller applies plans",
    };
    let setup = match settings.relay_setup {
        Duration::ZERO => String::new(),
        span => format!("; machines take {} s to set up", span.as_secs_f64()),
    };
    if budget == Money::ZERO {
        return format!("no budget: every flow goes direct; {mode}{setup}");
    }
    format!("budget: {budget} a day{alarm}; {mode}{setup}")
}
