//! The volume that a flow is expected to carry in a day: as it is declared, or as it is forecast.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::Bytes;

/// Least history of a forecast, in days. Chosen: each day of the week was there once.
pub const MIN_DAYS: usize = 7;

/// The volume that a flow is expected to carry in a day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Demand {
    /// The volume that plans are made for.
    pub per_day: Bytes,
    /// The origin of that volume.
    pub basis: VolumeSource,
    /// The volume that is declared.
    pub declared: Bytes,
    /// The forecast, whether or not it counts; absent: the history is too short.
    pub forecast: Option<Forecast>,
}

/// The origin of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeSource {
    /// The declaration of the flow.
    Declared,
    /// The forecast.
    Forecast,
}

/// The forecast of what a flow carries in the next 24 hours, and its back-test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Forecast {
    /// The volume.
    pub per_day: Bytes,
    /// The sessions.
    pub sessions: u64,
    /// The most sessions that are open at the same time, at one gateway; 0: agents do not tell.
    pub concurrent: u64,
    /// The days of the history.
    pub days: usize,
    /// The days at its end that were forecast in the back-test.
    pub tested_days: usize,
    /// The method that forecasts the volume: the one with the least error so far.
    pub method: String,
    /// The error of the forecasts of the volume in the back-test, as a share of what came; absent
    /// if nothing came.
    pub error_ratio: Option<f64>,
    /// The error of the declaration on the same days.
    pub declared_error_ratio: Option<f64>,
    /// True if the forecasts were nearer to what came than the declaration.
    pub is_better: bool,
}

impl Demand {
    /// Returns what is declared, what is forecast, and which of both counts, in one line.
    #[must_use]
    pub fn in_words(&self) -> String {
        let declared = self.declared;
        let Some(forecast) = &self.forecast else {
            return format!("declared {declared} a day; no forecast before {MIN_DAYS} days");
        };
        let percent = |ratio: Option<f64>| {
            ratio.map_or("of all, as nothing came".to_owned(), |ratio| {
                format!("{:.0} %", ratio * 100.0)
            })
        };
        let used = match self.basis {
            VolumeSource::Declared => "declaration",
            VolumeSource::Forecast => "forecast",
        };
        format!(
            "declared {declared} a day (error {}), forecast {} a day from {} days (error {}): the \
             {used} is used",
            percent(forecast.declared_error_ratio),
            forecast.per_day,
            forecast.days,
            percent(forecast.error_ratio)
        )
    }
}
