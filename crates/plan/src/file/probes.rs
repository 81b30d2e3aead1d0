//! Own measurements: the JSON output of `tradewind probe rtt` and `probe rate`, listed in
//! `[[probes]]`.
//!
//! A report has its target, but not the place where it was made: that is the section's `from`, and
//! its `targets` map targets to places whose names differ from the target's host.
//! docs/how-to/measure.md documents a report's fields; those that are not needed here may change.

use serde_json::{Map, Value};
use toml::Spanned;
use tradewind_units::time::duration_from_millis;
use tradewind_units::{Bandwidth, Duration, UnitError};

use super::error::FileError;
use super::pairs::{Pair, Stated, Texts, robust_rtt};
use super::places::Places;
use super::tables::{self, shown};
use super::text::{File, ProbesSection};
use crate::problem::LegEnd;

/// The supported version of reports: `schema_version` of `probe`.
const SCHEMA_VERSION: u64 = 1;

type Report = Map<String, Value>;

/// Adds the measurements of all `[[probes]]`; refuses duplicate statements.
pub(super) fn stated(
    file: &File,
    places: &Places<'_>,
    texts: &Texts,
    robust: f64,
    stated: &mut Stated,
) -> Result<(), FileError> {
    for section in &file.probes {
        let from = place(&section.from, places)?;
        for stands_for in section.targets.values() {
            place(stands_for, places)?;
        }
        for name in &section.reports {
            let name = name.get_ref();
            let reports = Reports { name, text: &texts[name] };
            for (index, report) in reports.parse()?.iter().enumerate() {
                let at = Reported { reports: &reports, index, report };
                let to = at.target(section, places)?;
                if to == from && matches!(to, LegEnd::Site(_)) {
                    return Err(at.refuse("target", format!("{to} is where the probe ran")));
                }
                at.add((from.clone(), to), robust, stated)?;
            }
        }
    }
    Ok(())
}

fn place(name: &Spanned<String>, places: &Places<'_>) -> Result<LegEnd, FileError> {
    let found = places.place(name.get_ref());
    found.map_err(|problem| places.source.refuse_at(name, problem))
}

/// A file of reports.
struct Reports<'a> {
    name: &'a str,
    text: &'a str,
}

impl Reports<'_> {
    /// Parses one report, or a list of them.
    fn parse(&self) -> Result<Vec<Report>, FileError> {
        let value = serde_json::from_str(self.text).map_err(|error| {
            let message = tables::shown_message(&error.to_string());
            let problem =
                format!("a report of `tradewind probe .. -o json` is expected: {message}");
            self.refuse(error.line().max(1), None, problem)
        })?;
        let values = match value {
            Value::Array(values) => values,
            single => vec![single],
        };
        if values.is_empty() {
            return Err(self.refuse(1, None, "no reports: the probe reached none of its targets"));
        }
        let object = |value| match value {
            Value::Object(report) => Ok(report),
            _ => Err(self.refuse(1, None, "a report, or a list of reports, is expected")),
        };
        values.into_iter().map(object).collect()
    }

    fn refuse(&self, line: usize, field: Option<&str>, problem: impl Into<String>) -> FileError {
        let (table, field) = (Some(shown(self.name)), field.map(str::to_owned));
        FileError { table, line, field, problem: problem.into() }
    }
}

/// One report of a file.
struct Reported<'a> {
    reports: &'a Reports<'a>,
    index: usize,
    report: &'a Report,
}

impl Reported<'_> {
    /// Returns the error of a field; the line is that of the report's target, which every report
    /// has once.
    fn refuse(&self, field: &str, problem: impl Into<String>) -> FileError {
        let text = self.reports.text;
        let at = text.match_indices("\"target\"").nth(self.index).map_or(0, |(at, _)| at);
        let line = 1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
        self.reports.refuse(line, Some(field), problem)
    }

    fn text(&self, field: &str) -> Result<&str, FileError> {
        let text = self.report.get(field).and_then(Value::as_str);
        text.ok_or_else(|| self.refuse(field, "a text is missing: no report of ours"))
    }

    fn value<T>(
        &self,
        field: &str,
        make: impl FnOnce(f64) -> Result<T, UnitError>,
    ) -> Result<T, FileError> {
        let number = self.report.get(field).and_then(Value::as_f64);
        let number = number.ok_or_else(|| self.refuse(field, "a number is missing"))?;
        make(number).map_err(|error| self.refuse(field, error.to_string()))
    }

    /// Returns the measured place: by `targets`, else by the host's name.
    fn target(&self, section: &ProbesSection, places: &Places<'_>) -> Result<LegEnd, FileError> {
        let version = self.report.get("schema_version").and_then(Value::as_u64);
        if version != Some(SCHEMA_VERSION) {
            let found = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
            let problem = format!("reports of version {SCHEMA_VERSION} are read, not {found}");
            return Err(self.refuse("schema_version", problem));
        }
        let target = self.text("target")?;
        let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
        let named = section.targets.get(target).or_else(|| section.targets.get(host));
        let name = named.map_or(host, |name| name.get_ref());
        places.place(name).map_err(|problem| {
            let target = shown(target);
            let hint = format!("say which place it is: `targets = {{ \"{target}\" = \"..\" }}`");
            self.refuse("target", format!("{problem}; {hint}"))
        })
    }

    /// Adds the report's measurement of this pair, from the place of the probe to its target.
    fn add(&self, pair: Pair, robust: f64, stated: &mut Stated) -> Result<(), FileError> {
        if self.report.contains_key("rate_mbps") {
            let rate = self.rate(robust)?;
            let pair = match self.text("direction")? {
                "upload" => pair,
                "download" => (pair.1, pair.0),
                other => {
                    let problem = format!("`upload` or `download`, not `{}`", shown(other));
                    return Err(self.refuse("direction", problem));
                }
            };
            if let Some(twice) = stated.rates.insert(pair.clone(), rate).map(|_| pair) {
                return Err(self.twice("rate_mbps", &twice));
            }
        } else {
            let rtt = self.value("rtt_min_ms", tables::rtt)?;
            let spread: Duration = self.value("rtt_spread_ms", duration_from_millis)?;
            let rtt = robust_rtt(rtt, spread, robust);
            if let Some(twice) = stated.rtts.insert(pair.clone(), rtt).map(|_| pair) {
                return Err(self.twice("rtt_min_ms", &twice));
            }
        }
        Ok(())
    }

    /// Returns the steady-state rate, the robust margin subtracted.
    fn rate(&self, robust: f64) -> Result<Bandwidth, FileError> {
        let rate = self.value("rate_mbps", tables::rate)?;
        if robust == 0.0 {
            return Ok(rate);
        }
        let spread = self.value("rate_spread_mbps", |spread| {
            if spread >= 0.0 {
                Ok(spread)
            } else {
                Err(UnitError::new("spread", "0 or more", spread))
            }
        })?;
        tables::rate(rate.as_mbps() - robust * spread).map_err(|_| {
            let problem = format!("{robust} times the spread leaves nothing of {rate}");
            self.refuse("rate_spread_mbps", problem)
        })
    }

    fn twice(&self, field: &str, pair: &Pair) -> FileError {
        self.refuse(field, format!("a second one from {} to {}", pair.0, pair.1))
    }
}
