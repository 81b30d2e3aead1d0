//! Measurements of which the lab says whether it kept time: tried again where it did not, and told by what speaks against them.

use std::time::{Duration, Instant};

use crate::demo::DemoError;
use crate::experiment::RunOptions;

/// Tries of a measurement until the lab keeps time in one of them. Chosen: a shared machine is late for a moment, seldom for minutes.
const TRIES: usize = 5;
/// Tries of one that took longer than [`LONG`].
const LONG_TRIES: usize = 2;
/// Chosen: a few downloads at high loss take a minute, and five tries of each would take longer than all others together.
const LONG: Duration = Duration::from_secs(30);
/// So many reasons of a kind are told with the names of their measurements.
const TOLD: usize = 3;

/// What speaks against a measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Doubt {
    /// The measurement's name.
    of: String,
    /// A broken bound of the lab's validity record, or what else is wrong.
    why: String,
}

/// How many measurements there were, and what speaks against some.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    count: usize,
    doubts: Vec<Doubt>,
}

impl Checked {
    /// Adds a measurement, and what speaks against it.
    pub(crate) fn add(&mut self, name: &str, reasons: Vec<String>) {
        self.count += 1;
        let doubts = reasons.into_iter().map(|why| Doubt { of: name.to_owned(), why });
        self.doubts.extend(doubts);
    }

    /// Measures, again where the lab did not keep time (the returned reasons tell): [`TRIES`] times in all, [`LONG_TRIES`] times
    /// what takes longer than [`LONG`], and once in a quick run. The last try is what counts.
    ///
    /// # Errors
    /// The first of `measure`.
    pub(crate) fn in_time<T>(
        &mut self,
        options: &RunOptions,
        name: &str,
        mut measure: impl FnMut() -> Result<(T, Vec<String>), DemoError>,
    ) -> Result<T, DemoError> {
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

    /// All measurements of several parts together.
    pub(crate) fn together<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = Self::default();
        for part in parts {
            all.count += part.count;
            all.doubts.extend(part.doubts.iter().cloned());
        }
        all
    }

    /// Whether nothing speaks against any.
    pub(crate) fn is_clean(&self) -> bool {
        self.doubts.is_empty()
    }

    /// How many measurements there were, and during how many the lab was late.
    pub(crate) fn told(&self) -> String {
        let mut late: Vec<&str> = self.doubts.iter().map(|doubt| doubt.of.as_str()).collect();
        late.sort_unstable();
        late.dedup();
        let plural = if self.count == 1 { "" } else { "s" };
        format!("{} measurement{plural}, {} late", self.count, late.len())
    }

    /// Why they mean nothing: a line for each doubt, or for a kind of doubts where there are many, with the first of them.
    pub(crate) fn invalid_because(&self) -> Vec<String> {
        let mut kinds: Vec<(String, Vec<String>)> = Vec::new();
        for doubt in &self.doubts {
            let (kind, told) = (kind(&doubt.why), format!("{}: {}", doubt.of, doubt.why));
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, all)) if all.contains(&told) => {}
                Some((_, all)) => all.push(told),
                None => kinds.push((kind, vec![told])),
            }
        }
        let lines = kinds.into_iter().flat_map(|(_, mut all)| {
            let more = all.len().saturating_sub(TOLD);
            if more == 0 {
                return all;
            }
            all.truncate(TOLD);
            vec![format!("{}; and {more} more like these", all.join("; "))]
        });
        lines.collect()
    }
}

/// How often a measurement is made at most, of which one took so long.
fn tries(options: &RunOptions, took: Duration) -> usize {
    match took {
        _ if options.quick => 1,
        _ if took > LONG => LONG_TRIES,
        _ => TRIES,
    }
}

/// A reason without its figures.
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
    fn what_is_late_is_tried_again_and_the_last_try_counts() {
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
    fn many_reasons_of_a_kind_are_one_line_with_the_first_of_them() {
        let mut checked = Checked::default();
        for fetch in 1..=9 {
            checked.add(&format!("fetch {fetch}"), vec![format!("late by {fetch}.5 us")]);
        }
        checked.add("fetch 10", Vec::new());
        checked.add("fetch 11", vec!["altered".to_owned(), "late by 7 us".to_owned()]);
        let lines = checked.invalid_because();
        assert_eq!(
            lines[0],
            "fetch 1: late by 1.5 us; fetch 2: late by 2.5 us; fetch 3: late by 3.5 us; and 7 more like these"
        );
        assert_eq!(lines[1..], ["fetch 11: altered"]);
        assert_eq!(checked.told(), "11 measurements, 10 late");
        assert_eq!(Checked::together([&checked, &checked]).told(), "22 measurements, 10 late");
    }
}
