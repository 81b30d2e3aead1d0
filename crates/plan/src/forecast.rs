//! Speculative planning [CP III, VIII]: the next period's flows from a log of past ones.
//!
//! Relays must run before the flows arrive. A log of past flows is summed up by pair of sites and
//! period ([`log`]); several predictors forecast every period of the log's second half from the
//! periods before it, and the one with the least error, weighted by volume, forecasts the period
//! after the log ([`forecast`]). One predictor is used for all pairs: the few periods are not
//! enough to choose one for each.
//!
//! [`regret()`] is the cost of a wrong forecast: it compares the true flows carried by the plan for
//! the predicted ones, and over the relays that were set up for it, with the best plan for the true
//! flows. [`past_period()`] makes such pairs of predicted and true flows from a log.
//!
//! [`next_value()`] forecasts one series alone, with a back-test of the forecasts themselves.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tradewind_units::{Bytes, Duration, FlowId, SiteId, Timestamp, time};

use crate::problem::Flow;

mod as_planned;
pub mod log;
mod next;
mod past;
mod predictor;
mod regret;

pub use as_planned::AsPlanned;
pub use log::{History, LogError, PastFlow, Series, parse_log};
pub use next::{NextValue, next_value};
pub use past::{PastPeriod, first_testable, past_period, with_flows};
pub use predictor::Predictor;
pub use regret::{Regret, RegretError, Values, regret, regret_by};

/// Longest season that is tried if none is given, in periods. Chosen: a week of hours.
pub const MAX_SEASON: usize = 168;
/// Weights of the newest period that are tried. Chosen: slow, medium and fast.
const WEIGHTS: [f64; 3] = [0.2, 0.5, 0.8];

/// The reason why there is no forecast.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForecastError {
    /// A season that is too long to be tested on the log.
    #[error("season: {}", testable_seasons(*longest, *periods, *asked))]
    Season {
        /// The requested season.
        asked: usize,
        /// The longest season that the log allows.
        longest: usize,
        /// The log's length.
        periods: usize,
    },
    /// No period that a forecast can be compared with.
    #[error(
        "a log of two periods is needed, a season twice before one that is tested; it has {periods}"
    )]
    NoPast {
        /// The log's length.
        periods: usize,
    },
}

/// The error of a predictor on the log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// The predictor.
    pub predictor: Predictor,
    /// Sum of all absolute errors over the predicted periods, in bytes.
    pub error_bytes: f64,
    /// The same as a ratio to the volume carried in them; `None` if there was none.
    pub error_ratio: Option<f64>,
}

/// The predicted volume of one pair of sites.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictedFlow {
    /// The site it starts at.
    pub source: SiteId,
    /// The site it ends at.
    pub destination: SiteId,
    /// The predicted volume, above zero.
    #[serde(rename = "volume_bytes", with = "as_number")]
    pub volume: Bytes,
}

mod as_number {
    use serde::{Deserialize, Deserializer, Serializer};
    use tradewind_units::Bytes;

    pub(super) fn serialize<S: Serializer>(volume: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(volume.as_u64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        u64::deserialize(from).map(Bytes::new)
    }
}

/// A summary of a forecast, which is part of the plans made for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// The beginning of the period, in seconds of the log's clock.
    pub begins_s: f64,
    /// The length of the period.
    #[serde(rename = "period_s", with = "time::as_seconds")]
    pub period: Duration,
    /// The predictor that was selected.
    pub predictor: Predictor,
    /// The number of periods at the log's end that were predicted in the back-test.
    pub tested_periods: usize,
    /// The predictor's error in it, as a ratio to the volume; `None` if nothing was carried.
    pub error_ratio: Option<f64>,
    /// The predicted flows, ordered by source and destination.
    pub flows: Vec<PredictedFlow>,
}

/// The period after the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// The beginning of the period.
    pub begins: Timestamp,
    /// The length of the period.
    pub period: Duration,
    /// The number of periods at the log's end that were predicted in the back-test.
    pub tested: usize,
    /// The trials of all predictors, by increasing error; among equals the simpler first. There is
    /// at least one, and the first predictor made the forecast.
    pub trials: Vec<Trial>,
    /// The predicted flows, ordered by source and destination.
    pub flows: Vec<PredictedFlow>,
}

impl Forecast {
    /// Returns the selected predictor.
    #[must_use]
    pub fn predictor(&self) -> Predictor {
        self.trials[0].predictor
    }

    /// Returns the summary that a plan keeps.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            begins_s: self.begins.as_secs_f64(),
            period: self.period,
            predictor: self.predictor(),
            tested_periods: self.tested,
            error_ratio: self.trials[0].error_ratio,
            flows: self.flows.clone(),
        }
    }

    /// Returns the predicted flows for a planning problem: weight 1, no deadline, named by their
    /// ends, or by number where that is too long or in use.
    #[must_use]
    pub fn planned_flows(&self) -> Vec<Flow> {
        named(&self.flows)
    }
}

/// Converts predicted flows to flows of a planning problem: weight 1, no deadline, named by their
/// ends, or by number where that is too long or in use.
#[must_use]
pub fn named(flows: &[PredictedFlow]) -> Vec<Flow> {
    let mut used = BTreeSet::new();
    let mut name = |index: usize, flow: &PredictedFlow| {
        let by_ends = FlowId::new(format!("{}..{}", flow.source, flow.destination)).ok();
        let free = by_ends.filter(|id| used.insert(id.clone()));
        free.unwrap_or_else(|| {
            FlowId::new(format!("forecast-{}", index + 1)).expect("a short word")
        })
    };
    let planned = flows.iter().enumerate().map(|(index, flow)| {
        let (source, destination) = (flow.source.clone(), flow.destination.clone());
        Flow::new(name(index, flow), source, destination, flow.volume)
    });
    planned.collect()
}

/// Predicts the period after the log. `season` is the only season to try, in periods; without it
/// all seasons up to [`MAX_SEASON`] that fit into the log's first half are tried.
///
/// The running time is proportional to pairs times periods times predictors.
///
/// # Errors
/// When `season` is below 2 or longer than half of the log.
pub fn forecast(history: &History, season: Option<usize>) -> Result<Forecast, ForecastError> {
    let periods = history.periods();
    // Every predictor is tried on the same periods: the log's second half, and never its first
    // period.
    let from = (periods / 2).max(1);
    let mut trials: Vec<Trial> = predictors(from, periods, season)?
        .into_iter()
        .map(|predictor| trial(history, predictor, from))
        .collect();
    // The sort is stable, and the predictors are in order of complexity.
    trials.sort_by(|a, b| a.error_bytes.total_cmp(&b.error_bytes));
    let predictor = trials[0].predictor;
    let expected = |series: &Series| {
        let guesses = predictor.rolling(&series.volumes, periods);
        let volume = Bytes::new(guesses[0].round() as u64);
        let (source, destination) = (series.source.clone(), series.destination.clone());
        (volume > Bytes::ZERO).then_some(PredictedFlow { source, destination, volume })
    };
    Ok(Forecast {
        begins: history.ends(),
        period: history.period(),
        tested: periods - from.min(periods),
        flows: history.series().iter().filter_map(expected).collect(),
        trials,
    })
}

/// Returns the predictors to try, the simplest first.
fn predictors(
    from: usize,
    periods: usize,
    season: Option<usize>,
) -> Result<Vec<Predictor>, ForecastError> {
    let mut predictors = vec![Predictor::Last];
    predictors.extend(WEIGHTS.map(|alpha| Predictor::Weighted { alpha }));
    match season {
        Some(asked) if asked < 2 || asked > from => {
            return Err(ForecastError::Season { asked, longest: from, periods });
        }
        Some(periods) => predictors.push(Predictor::Seasonal { periods }),
        None => {
            let seasons = 2..=from.min(MAX_SEASON);
            predictors.extend(seasons.map(|periods| Predictor::Seasonal { periods }));
        }
    }
    Ok(predictors)
}

/// Tests a predictor on every period from `from` on, each predicted from all before it.
fn trial(history: &History, predictor: Predictor, from: usize) -> Trial {
    let (mut error_bytes, mut carried) = (0.0, 0.0);
    for series in history.series() {
        let actual = series.volumes.get(from..).unwrap_or_default();
        let guesses = predictor.rolling(&series.volumes, from);
        error_bytes += guesses.iter().zip(actual).map(|(a, b)| (a - b).abs()).sum::<f64>();
        carried += actual.iter().sum::<f64>();
    }
    let error_ratio = (carried > 0.0).then(|| error_bytes / carried);
    Trial { predictor, error_bytes, error_ratio }
}

/// Describes the seasons that a log of so many periods is long enough for.
fn testable_seasons(longest: usize, periods: usize, asked: usize) -> String {
    if longest < 2 {
        return format!(
            "a log of {periods} {} is too short to test any, such as {asked}: leave it out",
            if periods == 1 { "period" } else { "periods" }
        );
    }
    format!("2 to {longest} periods can be tested on a log of {periods}, not {asked}")
}
