//! `tradewind forecast`: the next period's flows from a log of past ones.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use tradewind_plan::forecast::{
    Forecast, History, PredictedFlow, Predictor, Trial, forecast, parse_log,
};
use tradewind_units::{Duration, UnitError, time::parse_duration};

use crate::output::{self, Format, OrBadFile as _, Outcome, read_text, table};

/// Predict the next period's flows from a log of past ones
///
/// The log is CSV with the header time_s,source,destination,volume: the begin of each flow, in
/// seconds since any zero; its ends; its volume with a unit (`2 GB`), or plain bytes where the
/// header says volume_bytes. It is taken to cover whole periods, from that of its first flow to
/// that of its last. `tradewind plan --flows-from` plans for the predicted flows, `tradewind plan
/// regret` tells what that is worth.
#[derive(clap::Args)]
pub(crate) struct ForecastArgs {
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Period to sum up over and predict, such as `1h`
    #[arg(long, value_name = "SPAN", value_parser = span, allow_hyphen_values = true)]
    period: Duration,
    /// The only season to try, in periods; by default all that the log is long enough for
    #[arg(long, value_name = "PERIODS", allow_negative_numbers = true)]
    season: Option<usize>,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

fn span(text: &str) -> Result<Duration, UnitError> {
    parse_duration(text)
}

/// The JSON output.
#[derive(Serialize)]
struct Answer<'a> {
    schema_version: u32,
    begins_s: f64,
    period_s: f64,
    periods: usize,
    tested_periods: usize,
    predictor: Predictor,
    trials: &'a [Trial],
    flows: &'a [PredictedFlow],
}

pub(crate) fn run(args: &ForecastArgs) -> Outcome {
    let flows = parse_log(&read_text(&args.log)?).or_bad(&args.log)?;
    let history = History::new(&flows, args.period).or_bad(&args.log)?;
    let forecast = forecast(&history, args.season)?;
    match args.output {
        Format::Json => output::json(&Answer {
            schema_version: 1,
            begins_s: forecast.begins.as_secs_f64(),
            period_s: forecast.period.as_secs_f64(),
            periods: history.periods(),
            tested_periods: forecast.tested,
            predictor: forecast.predictor(),
            trials: &forecast.trials,
            flows: &forecast.flows,
        })?,
        Format::Table => show(&history, &forecast)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(history: &History, forecast: &Forecast) -> anyhow::Result<()> {
    output::line(format_args!(
        "periods: {}; pairs of sites: {}; back-test over the last {}",
        history.periods(),
        history.series().len(),
        output::periods(forecast.tested)
    ))?;
    let row = |trial: &Trial| {
        let error = trial.error_ratio.map(|ratio| format!("{:.1} %", ratio * 100.0));
        vec![trial.predictor.to_string(), error.unwrap_or_else(|| "not tested".to_owned())]
    };
    let rows: Vec<Vec<String>> = shown(&forecast.trials).into_iter().map(row).collect();
    table::print(&["predictor", "error by volume"], &rows, 1)?;
    output::line(format_args!(
        "expected from {} s to {} s, by the predictor `{}`:",
        forecast.begins.as_secs_f64(),
        (forecast.begins + forecast.period).as_secs_f64(),
        forecast.predictor()
    ))?;
    let row = |flow: &PredictedFlow| {
        vec![flow.source.to_string(), flow.destination.to_string(), flow.volume.to_string()]
    };
    let rows: Vec<Vec<String>> = forecast.flows.iter().map(row).collect();
    table::print(&["source", "destination", "volume"], &rows, 2)
}

/// Returns the best predictor of each kind, and the next best few of all.
fn shown(trials: &[Trial]) -> Vec<&Trial> {
    const BEST: usize = 3;
    let kind = |trial: &Trial| std::mem::discriminant(&trial.predictor);
    let first_of_kind =
        |index: usize| trials[..index].iter().all(|other| kind(other) != kind(&trials[index]));
    let numbered = trials.iter().enumerate();
    let wanted = numbered.filter(|(index, _)| *index < BEST || first_of_kind(*index));
    wanted.map(|(_, trial)| trial).collect()
}
