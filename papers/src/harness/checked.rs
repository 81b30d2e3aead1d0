//! Measurements with the lab's validity: repeated when the lab was late, and reported with the
//! broken bounds.

use std::time::{Duration, Instant};

use super::{ProcessError, RunOptions};

/// Attempts of a measurement until one is valid. Chosen: a shared machine is late for a moment,
/// seldom for minutes.
const TRIES: usize = 5;
/// Attempts of a measurement that took longer than [`LONG`].
const LONG_TRIES: usize = 2;
/// The duration from which a measurement is repeated less often. Chosen: a few downloads at high
/// loss take a minute, and five attempts of each would take longer than all others together.
const LONG: Duration = Duration::from_secs(30);
/// The number of reasons of a kind that are reported with the names of their measurements.
const SHOWN: usize = 3;

/// A reason why a measurement is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Doubt {
    /// The measurement's name.
    of: String,
    /// A broken bound of the lab's validity record, or another defect.
    why: String,
}

/// The number of measurements, and the reasons why some are invalid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    count: usize,
    doubts: Vec<Doubt>,
}

impl Checked {
    /// Adds a measurement with the reasons why it is invalid, if any.
    pub(crate) fn add(&mut self, name: &str, reasons: Vec<String>) {
        self.count += 1;
        let doubts = reasons.into_iter().map(|why| Doubt { of: name.to_owned(), why });
        self.doubts.extend(doubts);
    }

    /// Measures, and repeats when `measure` returns reasons why the result is invalid: up to
    /// [`TRIES`] times, up to [`LONG_TRIES`] times if one takes longer than [`LONG`], and never in
    /// a quick run. The last attempt counts.
    ///
    /// # Errors
    /// The first error of `measure`.
    pub(crate) fn in_time<T>(
        &mut self,
        options: &RunOptions,
        name: &str,
        mut measure: impl FnMut() -> Result<(T, Vec<String>), ProcessError>,
    ) -> Result<T, ProcessError> {
        let mut tried = 0;
        loop {
            let began = Instant::now();
            let (measured, reasons) = measure()?;
            tried += 1;
            if reasons.is_empty() || tried >= tries(options, began.elapsed()) {
                self.add(name, reasons);
                return Ok(measured);
            }
        }
    }

    /// Merges the measurements of several parts.
    pub(crate) fn together<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = Self::default();
        for part in parts {
            all.count += part.count;
            all.doubts.extend(part.doubts.iter().cloned());
        }
        all
    }

    /// Returns whether all measurements are valid.
    pub(crate) fn is_clean(&self) -> bool {
        self.doubts.is_empty()
    }

    /// Returns a text with the number of measurements, and of those during which the lab was late.
    pub(crate) fn describe(&self) -> String {
        let mut late: Vec<&str> = self.doubts.iter().map(|doubt| doubt.of.as_str()).collect();
        late.sort_unstable();
        late.dedup();
        let plural = if self.count == 1 { "" } else { "s" };
        format!("{} measurement{plural}, {} late", self.count, late.len())
    }

    /// Returns why measurements are invalid: a line for each reason, or one for a kind of reasons
    /// with more than [`SHOWN`] members.
    pub(crate) fn invalid_because(&self) -> Vec<String> {
        let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
        for doubt in &self.doubts {
            let (kind, message) = (kind(&doubt.why), format!("{}: {}", doubt.of, doubt.why));
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, all)) if all.contains(&message) => {}
                Some((_, all)) => all.push(message),
                None => kinds.push((kind, vec![message])),
            }
        }
        let lines = kinds.into_iter().flat_map(|(_, mut all)| {
            let more = all.len().saturating_sub(SHOWN);
            if more == 0 {
                return all;
            }
            all.truncate(SHOWN);
            vec![format!("{}; and {more} more like these", all.join("; "))]
        });
        lines.collect()
    }
}

/// Returns the largest number of attempts for a measurement of which one took this long.
fn tries(options: &RunOptions, took: Duration) -> usize {
    match took {
        _ if options.quick => 1,
        _ if took > LONG => LONG_TRIES,
        _ => TRIES,
    }
}

/// Returns a reason without its figures.
fn kind(reason: &str) -> String {
    let is_figure = |letter: char| letter.is_ascii_digit() || letter == '.';
    reason.split(is_figure).filter(|part| !part.is_empty()).collect::<Vec<&str>>().join("#")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(quick: bool) -> RunOptions {
        RunOptions { quick, ..RunOptions::of_tests() }
    }

    #[test]
    fn late_measurement_is_repeated() {
        let tries_of = |quick: bool, late: usize| {
            let (mut checked, mut tries) = (Checked::default(), 0);
            let measured = checked.in_time(&options(quick), "a fetch", || {
                tries += 1;
                let reasons = if tries <= late { vec!["late".to_owned()] } else { Vec::new() };
                Ok((tries, reasons))
            });
            (measured.unwrap(), checked.invalid_because().len())
        };
        assert_eq!(tries_of(false, 0), (1, 0));
        assert_eq!(tries_of(false, 4), (5, 0));
        assert_eq!(tries_of(false, 5), (5, 1));
        assert_eq!(tries_of(true, 1), (1, 1));
        let took = |seconds| tries(&options(false), Duration::from_secs(seconds));
        assert_eq!([took(29), took(31)], [5, 2]);
    }

    #[test]
    fn reasons_of_a_kind_are_summarized_in_one_line() {
        let mut checked = Checked::default();
        for fetch in 1..=9 {
            checked.add(&format!("fetch {fetch}"), vec![format!("late by {fetch}.5 us")]);
        }
        checked.add("fetch 10", Vec::new());
        checked.add("fetch 11", vec!["altered".to_owned(), "late by 7 us".to_owned()]);
        let lines = checked.invalid_because();
        assert_eq!(
            lines[0],
            "fetch 1: late by 1.5 us; fetch 2: late by 2.5 us; fetch 3: late by 3.5 us; and 7 more \
             like these"
        );
        assert_eq!(lines[1..], ["fetch 11: altered"]);
        assert_eq!(checked.describe(), "11 measurements, 10 late");
        assert_eq!(Checked::together([&checked, &checked]).describe(), "22 measurements, 10 late");
    }
}
