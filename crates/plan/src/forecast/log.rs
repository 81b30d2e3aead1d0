//! A log of past flows, and its sums by pair of sites and period.
//!
//! The log is CSV with the header `time_s,source,destination,volume`, a row for each flow in any
//! order: its start in seconds since any epoch (fractions allowed), its ends, and its volume with a
//! unit (`2 GB`); with the header's last field `volume_bytes` volumes are plain numbers of bytes.
//!
//! Periods begin at whole multiples of their length. The log is assumed to cover all periods from
//! that of its earliest flow to that of its latest. Cut it at a period's end: otherwise the volume
//! of the last one is too low.

use std::collections::BTreeMap;

use tradewind_units::{Bytes, Duration, SiteId, Timestamp};

use super::PredictedFlow;

/// The headers of logs.
const WITH_UNITS: &str = "time_s,source,destination,volume";
const IN_BYTES: &str = "time_s,source,destination,volume_bytes";
/// Latest time that a row may have, in seconds: five hundred years after the epoch.
const LATEST_S: f64 = 500.0 * 366.0 * 86_400.0;
/// Limit on pairs times periods. Chosen: about a second's work with all predictors.
const MAX_SUMS: u64 = 2_000_000;

/// The reason why a log was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// An invalid row.
    #[error("line {line}: {message}")]
    Line {
        /// Its number, counted from 1.
        line: usize,
        /// The error, with the field and its value.
        message: String,
    },
    /// No flows.
    #[error("the log holds no flows")]
    Empty,
    /// A period of no length.
    #[error("period: a span above zero is expected")]
    NoPeriod,
    /// A period far too short for the log.
    #[error("period: {pairs} pairs over {periods} periods are too many; a longer period is needed")]
    TooManyPeriods {
        /// Pairs of sites in the log.
        pairs: usize,
        /// Periods that it spans.
        periods: u64,
    },
}

/// A flow that was carried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastFlow {
    /// Its start.
    pub at: Timestamp,
    /// The site it started at.
    pub source: SiteId,
    /// The site it ended at.
    pub destination: SiteId,
    /// Its volume.
    pub volume: Bytes,
}

/// Reads a log; empty lines are ignored.
///
/// # Errors
/// When the header is unknown, a row does not have four fields, or one of them is invalid, with its
/// line; a log without flows is an error of the line after its header.
pub fn parse_log(text: &str) -> Result<Vec<PastFlow>, LogError> {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let header = lines.next().map_or("", |(_, line)| line.trim_start_matches('\u{feff}'));
    let volume: fn(&str) -> Result<Bytes, String> = match header {
        WITH_UNITS => |field| field.parse().map_err(|error| format!("volume: {error}")),
        IN_BYTES => |field| {
            let bytes = field.parse().map(Bytes::new);
            bytes.map_err(|_| format!("volume_bytes: a whole number is expected, not {field:?}"))
        },
        _ => {
            let message = format!("the header `{WITH_UNITS}` is expected, not {header:?}");
            return Err(LogError::Line { line: 1, message });
        }
    };
    let flows: Vec<PastFlow> = lines
        .filter(|(_, row)| !row.is_empty())
        .map(|(line, row)| {
            read_row(row, volume).map_err(|message| LogError::Line { line, message })
        })
        .collect::<Result<_, _>>()?;
    if flows.is_empty() {
        let message = "at least one flow is expected".to_owned();
        return Err(LogError::Line { line: 2, message });
    }
    Ok(flows)
}

/// Returns the line numbers of the flows of a log that [`parse_log`] reads, counted from 1.
pub(crate) fn lines_of_flows(text: &str) -> impl Iterator<Item = usize> {
    let rows = text.lines().enumerate().skip(1).filter(|(_, row)| !row.trim().is_empty());
    rows.map(|(index, _)| index + 1)
}

fn read_row(row: &str, volume: fn(&str) -> Result<Bytes, String>) -> Result<PastFlow, String> {
    let fields: Vec<&str> = row.split(',').map(str::trim).collect();
    let [time, source, destination, size] = fields[..] else {
        return Err(format!("four fields are expected, not {}", fields.len()));
    };
    let seconds: Option<f64> = time.parse().ok().filter(|time| (0.0..=LATEST_S).contains(time));
    let seconds = seconds.ok_or_else(|| {
        format!("time_s: seconds from 0 to {LATEST_S} are expected, not {time:?}")
    })?;
    let site =
        |field: &str, name: &str| SiteId::new(name).map_err(|error| format!("{field}: {error}"));
    let (source, destination) = (site("source", source)?, site("destination", destination)?);
    if source == destination {
        return Err(format!("destination: another site than the source `{source}` is expected"));
    }
    let volume = volume(size)?;
    if volume == Bytes::ZERO {
        return Err("volume: above zero is expected".to_owned());
    }
    Ok(PastFlow {
        at: Timestamp::ZERO + Duration::from_secs_f64(seconds),
        source,
        destination,
        volume,
    })
}

/// The volumes of one pair of sites.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The source of its flows.
    pub source: SiteId,
    /// Their destination.
    pub destination: SiteId,
    /// Their sum in each period, in bytes.
    pub volumes: Vec<f64>,
}

/// A log summed up by pair and period.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    period: Duration,
    /// Number of the first period since the log's epoch.
    first: u64,
    periods: usize,
    series: Vec<Series>,
}

impl History {
    /// Sums up flows; each counts in the period in which it began.
    ///
    /// # Errors
    /// When there are no flows, the period is zero, or the log spans too many periods.
    pub fn new(flows: &[PastFlow], period: Duration) -> Result<Self, LogError> {
        let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        if nanos == 0 {
            return Err(LogError::NoPeriod);
        }
        let number = |flow: &PastFlow| flow.at.as_nanos() / nanos;
        let (Some(first), Some(last)) =
            (flows.iter().map(number).min(), flows.iter().map(number).max())
        else {
            return Err(LogError::Empty);
        };
        let mut sums: BTreeMap<(&SiteId, &SiteId), BTreeMap<u64, f64>> = BTreeMap::new();
        for flow in flows {
            let periods = sums.entry((&flow.source, &flow.destination)).or_default();
            *periods.entry(number(flow) - first).or_default() += flow.volume.as_u64() as f64;
        }
        let spanned = last - first + 1;
        if spanned.saturating_mul(sums.len() as u64) > MAX_SUMS {
            return Err(LogError::TooManyPeriods { pairs: sums.len(), periods: spanned });
        }
        let series = sums.into_iter().map(|((source, destination), sums)| {
            let volume = |period| sums.get(&period).copied().unwrap_or_default();
            Series {
                source: source.clone(),
                destination: destination.clone(),
                volumes: (0..spanned).map(volume).collect(),
            }
        });
        let periods = usize::try_from(spanned).unwrap_or(usize::MAX);
        Ok(Self { period, first, periods, series: series.collect() })
    }

    /// Returns the length of a period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// Returns the number of periods that the log spans; at least one.
    #[must_use]
    pub const fn periods(&self) -> usize {
        self.periods
    }

    /// Returns the end of the last period, at which the next one begins.
    #[must_use]
    pub fn ends(&self) -> Timestamp {
        let nanos = u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX);
        let number = self.first.saturating_add(self.periods as u64);
        Timestamp::from_nanos(nanos.saturating_mul(number))
    }

    /// Returns the log's first `periods` periods, at least one and at most all.
    #[must_use]
    pub fn until(&self, periods: usize) -> Self {
        let periods = periods.clamp(1, self.periods);
        let cut = |series: &Series| Series {
            volumes: series.volumes[..periods].to_vec(),
            ..series.clone()
        };
        Self { periods, series: self.series.iter().map(cut).collect(), ..*self }
    }

    /// Returns the flows of the period with this index, counted from 0, by source and destination.
    #[must_use]
    pub fn flows_of(&self, period: usize) -> Vec<PredictedFlow> {
        let flow = |series: &Series| {
            let volume = Bytes::new(series.volumes.get(period)?.round() as u64);
            let (source, destination) = (series.source.clone(), series.destination.clone());
            (volume > Bytes::ZERO).then_some(PredictedFlow { source, destination, volume })
        };
        self.series.iter().filter_map(flow).collect()
    }

    /// Returns the pairs, by source and destination.
    #[must_use]
    pub fn series(&self) -> &[Series] {
        &self.series
    }
}
