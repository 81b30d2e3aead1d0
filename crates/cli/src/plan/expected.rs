//! Planning for expected flows: a log of past flows replaces those of the problem file `[CP III,
//! VIII]`.

use std::path::{Path, PathBuf};

use tradewind_model::Catalogue;
use tradewind_plan::file::{FileError, Log, ProblemFile, parse_with_log};
use tradewind_plan::forecast::{Forecast, History, PredictedFlow, forecast, named, with_flows};
use tradewind_units::{Duration, Money, time::parse_duration};

use super::problem::{Load, Read};
use crate::output::BadFile;
use crate::output::{self, read_text};

/// A log whose next period is planned for.
#[derive(clap::Args)]
pub(super) struct ExpectedArgs {
    /// Plan for the flows predicted from this log of past ones, instead of the problem's (CSV, see
    /// docs/how-to/forecast.md)
    #[arg(long, value_name = "LOG", requires = "period", requires = "problem")]
    flows_from: Option<PathBuf>,
    /// With --flows-from: period to sum the log up over and predict, such as `1h`
    #[arg(
        long,
        value_name = "SPAN",
        value_parser = parse_duration,
        requires = "flows_from",
        allow_hyphen_values = true
    )]
    period: Option<Duration>,
    /// With --flows-from: the only season to try, in periods; by default all that the log is long
    /// enough for
    #[arg(long, value_name = "PERIODS", requires = "flows_from", allow_negative_numbers = true)]
    season: Option<usize>,
}

impl ExpectedArgs {
    /// Returns the log to plan for with its period, if given.
    pub(super) fn asked(&self) -> Option<(&Path, Duration)> {
        self.flows_from.as_deref().zip(self.period)
    }

    /// Returns the only season to try.
    pub(super) const fn season(&self) -> Option<usize> {
        self.season
    }

    /// Reads the problem with the flows predicted from the log, and prints the forecast and its
    /// basis.
    pub(super) fn read(&self, problem: &Path, budget: Option<Money>) -> Result<Read, BadFile> {
        let Some((log, period)) = self.asked() else { return Read::from_file(problem, budget) };
        let (mut read, history) = with_log(problem, log, period, budget)?;
        let forecast = forecast(&history, self.season)
            .map_err(|error| BadFile(format!("{}: {error}", log.display())))?;
        if forecast.flows.is_empty() {
            let from = forecast.begins.as_secs_f64();
            let problem = format!("nothing is expected from {from} s on: there is nothing to plan");
            return Err(BadFile(format!("{}: {problem}", log.display())));
        }
        read.file.inputs = with_flows(&read.file.inputs, forecast.planned_flows());
        read.asked.flows = Some(as_log(&forecast));
        read.forecast = Some(forecast.summary());
        note_forecast(&forecast);
        Ok(read)
    }
}

/// Reads a problem file and a log of past flows between its sites.
pub(super) fn with_log(
    problem: &Path,
    log: &Path,
    period: Duration,
    budget: Option<Money>,
) -> Result<(Read, History), BadFile> {
    let text = read_text(log).map_err(|error| BadFile(output::one_line(&error)))?;
    let name = log.display().to_string();
    let mut past = Vec::new();
    let read = Read::by(problem, budget, &mut |text_of_problem, load| {
        let log = Log { name: &name, text: &text };
        let (file, flows) = parse_with_log(text_of_problem, &Catalogue::builtin(), load, log)?;
        past = flows;
        Ok(file)
    })?;
    let history = History::new(&past, period).map_err(|e| BadFile(format!("{name}: {e}")))?;
    Ok((read, history))
}

/// Reads the problem of a plan's file that was made for expected flows, which the file holds as a
/// log of one period.
pub(super) fn of_stored(
    text: &str,
    flows: &str,
    load: &mut Load<'_>,
) -> Result<ProblemFile, FileError> {
    let log = Log { name: "flows", text: flows };
    let (mut file, past) = parse_with_log(text, &Catalogue::builtin(), load, log)?;
    let stored = History::new(&past, ALL_IN_ONE).map(|history| history.flows_of(0));
    let stored = named(&stored.unwrap_or_default());
    file.inputs = with_flows(&file.inputs, stored);
    Ok(file)
}

/// The period of a stored log: its flows begin at zero.
const ALL_IN_ONE: Duration = Duration::from_secs(1);

/// Formats the expected flows as a log of one period.
fn as_log(forecast: &Forecast) -> String {
    let row = |flow: &PredictedFlow| {
        format!("0,{},{},{}\n", flow.source, flow.destination, flow.volume.as_u64())
    };
    let rows: String = forecast.flows.iter().map(row).collect();
    format!("time_s,source,destination,volume_bytes\n{rows}")
}

fn note_forecast(forecast: &Forecast) {
    let (from, to) = (forecast.begins, forecast.begins + forecast.period);
    let tried = match forecast.trials[0].error_ratio {
        Some(ratio) => {
            format!(
                "{:.1} % wrong in the back-test over {}",
                ratio * 100.0,
                output::periods(forecast.tested)
            )
        }
        None => "not tested".to_owned(),
    };
    output::note(format_args!(
        "note: {} flows are expected from {} s to {} s by `{}`, {tried}",
        forecast.flows.len(),
        from.as_secs_f64(),
        to.as_secs_f64(),
        forecast.predictor()
    ));
}
