//! Results of an experiment's run, as data.

use serde::{Deserialize, Serialize};
use tradewind_model::statistics::{mean, median, median_interval, median_or_nan};
use tradewind_output::chart::{Chart, Line, Point, Scale};

use super::{RunOptions, Runs};

/// Version of the record, raised when a field is renamed or its meaning changes; new fields do not
/// raise it.
pub const SCHEMA_VERSION: u32 = 1;

/// The outcome of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the experiment.
    pub name: String,
    /// Its assumptions and how it was shortened, a sentence each.
    pub assumptions: Vec<String>,
    /// True if the lab kept time in every repeat, and each that was asked for is complete; numeric
    /// experiments always are.
    pub valid: bool,
    /// Broken bounds of the validity records and other reasons against the figures, a sentence
    /// each.
    pub invalid_because: Vec<String>,
    /// Figures found.
    pub rows: Vec<Row>,
    /// The plots that rows with [`Row::at`] are points of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    /// The paper's statements, and whether they hold here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
}

/// A plot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure {
    /// Title above it.
    pub title: String,
    /// Label of the horizontal axis.
    pub x_label: String,
    /// Label of the vertical axis.
    pub y_label: String,
    /// Scale of the horizontal axis.
    pub scale: Scale,
}

/// Position at which a row is drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spot {
    /// Index of the figure in [`Record::figures`].
    pub figure: usize,
    /// The line's name.
    pub line: String,
    /// Horizontal position.
    pub x: f64,
    /// The same for people, such as `30 flows`.
    pub x_name: String,
}

/// A sentence of the paper, compared with our result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The paper's statement.
    pub paper: String,
    /// True if it holds in this run.
    pub holds: bool,
    /// This run's result.
    pub ours: String,
}

impl Finding {
    /// Creates a finding.
    #[must_use]
    pub fn new(paper: &str, holds: bool, ours: String) -> Self {
        Self { paper: paper.to_owned(), holds, ours }
    }
}

impl Record {
    /// Creates a record of tables alone, without reasons against it.
    pub(crate) fn of_tables(
        name: &str,
        assumptions: Vec<String>,
        (rows, findings): (Vec<Row>, Vec<Finding>),
    ) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            name: name.to_owned(),
            assumptions,
            valid: true,
            invalid_because: Vec::new(),
            rows,
            figures: Vec::new(),
            findings,
        }
    }

    /// Creates a record of repeats with successive seeds, without figures yet.
    pub(crate) fn of_runs(
        name: &str,
        assumptions: &[String],
        runs: &Runs,
        options: &RunOptions,
    ) -> Self {
        let mut assumptions = assumptions.to_vec();
        assumptions.push(runs.describe(options));
        Self::of_tables(name, assumptions, (Vec::new(), Vec::new()))
    }

    /// Adds reasons against its figures.
    pub(crate) fn doubt(&mut self, reasons: impl IntoIterator<Item = String>) {
        self.invalid_because.extend(reasons);
        self.valid = self.invalid_because.is_empty();
    }

    /// Returns its figures as charts, lines in the order of the rows.
    #[must_use]
    pub fn charts(&self) -> Vec<Chart> {
        let chart = |(index, figure): (usize, &Figure)| {
            let mut lines: Vec<Line> = Vec::new();
            for row in &self.rows {
                let Some(spot) = row.at.as_ref().filter(|spot| spot.figure == index) else {
                    continue;
                };
                let point = Point {
                    x: spot.x,
                    y: row.ours,
                    interval: row.ours_low.zip(row.ours_high),
                    name: spot.x_name.clone(),
                };
                match lines.iter_mut().find(|line| line.name == spot.line) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Line { name: spot.line.clone(), points: vec![point] }),
                }
            }
            Chart {
                title: format!("{}: {}", self.name, figure.title),
                x_label: figure.x_label.clone(),
                y_label: figure.y_label.clone(),
                scale: figure.scale,
                lines,
            }
        };
        self.figures.iter().enumerate().map(chart).collect()
    }

    /// Returns the rows that are in no figure.
    pub fn other_rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.at.is_none())
    }
}

/// One figure, the paper's and ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the measured case.
    pub case: String,
    /// The paper's value, if its text has one.
    pub paper: Option<f64>,
    /// Ours: the mean of the repeats, or their median where the record's assumptions say so.
    pub ours: f64,
    /// Lower end of its 95 % confidence interval, with two repeats or more.
    pub ours_low: Option<f64>,
    /// Upper end of it.
    pub ours_high: Option<f64>,
    /// Unit of all of these.
    pub unit: String,
    /// Further notes, such as the median of the repeats.
    pub note: String,
    /// Position at which it is drawn, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Spot>,
}

impl Row {
    /// Creates a row of the repeats' values; NaN without any.
    #[must_use]
    pub fn of(case: &str, paper: Option<f64>, values: &[f64], unit: &str, note: &str) -> Self {
        let estimate = mean(values);
        let ours = estimate.map_or_else(|| median_or_nan(values), |estimate| estimate.mean);
        let median = match values.len() {
            0 | 1 => String::new(),
            count => format!("median of {count}: {:.3}", median(values)),
        };
        let notes = [note.to_owned(), median];
        let note: Vec<String> = notes.into_iter().filter(|note| !note.is_empty()).collect();
        Self {
            case: case.to_owned(),
            paper,
            ours,
            ours_low: estimate.map(|estimate| estimate.low),
            ours_high: estimate.map(|estimate| estimate.high),
            unit: unit.to_owned(),
            note: note.join("; "),
            at: None,
        }
    }

    /// Creates a row of the repeats' median and its interval, which needs six repeats; NaN without
    /// any. Completion times under loss have long tails, of which a mean says little.
    #[must_use]
    pub fn of_median(
        case: &str,
        paper: Option<f64>,
        values: &[f64],
        unit: &str,
        note: &str,
    ) -> Self {
        let interval = median_interval(values);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let range = match values.len() {
            0 | 1 => String::new(),
            count => format!("{count} repeats from {least:.3} to {most:.3}"),
        };
        let notes = [note.to_owned(), range];
        let notes: Vec<String> = notes.into_iter().filter(|note| !note.is_empty()).collect();
        Self {
            case: case.to_owned(),
            paper,
            ours: median_or_nan(values),
            ours_low: interval.map(|(low, _)| low),
            ours_high: interval.map(|(_, high)| high),
            unit: unit.to_owned(),
            note: notes.join("; "),
            at: None,
        }
    }

    /// Returns the same, drawn at `spot`.
    #[must_use]
    pub fn drawn_at(self, spot: Spot) -> Self {
        Self { at: Some(spot), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_repeat_has_a_value_and_no_interval() {
        let row = Row::of("acceleration", Some(2.0), &[2.5], "x", "");
        assert_eq!((row.ours, row.ours_low, row.ours_high), (2.5, None, None));
        assert_eq!(row.note, "");
    }

    #[test]
    fn drawn_rows_become_lines_and_old_records_parse() {
        let spot =
            |line: &str, x| Spot { figure: 0, line: line.to_owned(), x, x_name: String::new() };
        let row =
            |line, x, values: &[f64]| Row::of("c", None, values, "x", "").drawn_at(spot(line, x));
        let figure = Figure {
            title: "a".to_owned(),
            x_label: "b".to_owned(),
            y_label: "c".to_owned(),
            scale: Scale::Linear,
        };
        let mut record: Record = serde_json::from_str(
            r#"{"schema_version":1,"name":"n","assumptions":[],"valid":true,
                "invalid_because":[],"rows":[]}"#,
        )
        .unwrap();
        assert!(record.charts().is_empty());
        record.figures = vec![figure];
        record.rows =
            vec![row("p", 1.0, &[2.0, 3.0]), row("q", 1.0, &[1.0]), row("p", 2.0, &[4.0])];
        let [chart] = &record.charts()[..] else { panic!("one figure") };
        assert_eq!(chart.lines.len(), 2);
        assert_eq!(chart.lines[0].points.len(), 2);
        assert!(chart.lines[0].points[0].interval.is_some());
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }

    #[test]
    fn median_has_the_repeats_range_in_its_note() {
        let row = Row::of_median("time", None, &[2.0, 9.0, 4.0], "s", "");
        assert_eq!((row.ours, row.ours_low), (4.0, None));
        assert_eq!(row.note, "3 repeats from 2.000 to 9.000");
    }

    #[test]
    fn repeats_have_an_interval_around_their_mean() {
        let row = Row::of("acceleration", None, &[2.0, 3.0, 4.0], "x", "all hashes right");
        assert_eq!(row.ours, 3.0);
        assert!(row.ours_low < Some(2.0) && row.ours_high > Some(4.0));
        assert_eq!(row.note, "all hashes right; median of 3: 3.000");
    }
}
