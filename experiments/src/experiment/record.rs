//! What a run of an experiment came to, as data.

use serde::{Deserialize, Serialize};
use tradewind_model::statistics::{mean, median};

/// Raised when a field is renamed or its meaning changes; new fields do not raise it.
pub const SCHEMA_VERSION: u32 = 1;

/// The outcome of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the experiment.
    pub name: String,
    /// What it assumes and what it shortened, a sentence each.
    pub assumptions: Vec<String>,
    /// Whether the lab kept time in every repeat; numeric experiments always do.
    pub valid: bool,
    /// Broken bounds of the validity records, a sentence each.
    pub invalid_because: Vec<String>,
    /// What was found.
    pub rows: Vec<Row>,
}

/// One figure, the paper's beside ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub case: String,
    /// The paper's value, if its text has one.
    pub paper: Option<f64>,
    /// Ours: the mean of the repeats.
    pub ours: f64,
    /// Lower end of its 95 % confidence interval, with two repeats or more.
    pub ours_low: Option<f64>,
    /// Upper end of it.
    pub ours_high: Option<f64>,
    /// Unit of all of these.
    pub unit: String,
    /// What else is to be known, such as the median of the repeats.
    pub note: String,
}

impl Row {
    /// A row of the repeats' values; NaN without any.
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
        }
    }
}

fn median_or_nan(values: &[f64]) -> f64 {
    if values.is_empty() { f64::NAN } else { median(values) }
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
    fn repeats_have_an_interval_around_their_mean() {
        let row = Row::of("acceleration", None, &[2.0, 3.0, 4.0], "x", "all hashes right");
        assert_eq!(row.ours, 3.0);
        assert!(row.ours_low < Some(2.0) && row.ours_high > Some(4.0));
        assert_eq!(row.note, "all hashes right; median of 3: 3.000");
    }
}
