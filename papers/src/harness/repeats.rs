//! Repeats on the lab. Complete repeats are retained when the run is stopped or fails: its record
//! then covers these repeats and is marked invalid. If the lab was late in a few parts despite all
//! attempts, they are measured again at the end.

use std::ops::Range;

use super::checked::Checked;
use super::parallel::{Done, until_error};
use super::{ExperimentError, Observer, ProcessError, Record, RunOptions};

/// One of this many parts may be measured again. Chosen: with fewer late parts, the machine was
/// late for some minutes; if it was late for longer, it will be again.
const ANEW: usize = 4;
/// The number of times that parts may be measured again. Chosen: on a shared machine any minute may
/// be a late one.
const TIMES_ANEW: usize = 3;

/// A part of a run that belongs to the repeat of some seed; the parts of a repeat are consecutive.
pub(crate) trait Part {
    /// Returns the repeat's seed.
    fn seed(&self) -> u64;
}

impl Part for u64 {
    fn seed(&self) -> u64 {
        *self
    }
}

impl<T> Part for (u64, T) {
    fn seed(&self) -> u64 {
        self.0
    }
}

/// The results of the complete repeats.
#[derive(Debug)]
pub(crate) struct Completed<T> {
    /// Their parts, in order.
    parts: Vec<T>,
    /// All their measurements with their validity.
    checked: Checked,
    /// The options of a run with just these repeats.
    options: RunOptions,
    /// The reason for an early end.
    ended_early: Option<String>,
    /// The seeds of parts that were measured again.
    anew: Vec<u64>,
}

/// Runs `work` for each part, `at_once` at a time; `work` adds its measurements to the [`Checked`]
/// it gets. Reports each complete repeat.
///
/// # Errors
/// When the run is stopped or fails before any repeat is complete.
pub(crate) fn each<P: Part + Sync, T: Send, E: Into<ExperimentError>>(
    step: &str,
    parts: &[P],
    at_once: usize,
    options: &RunOptions,
    observer: &mut dyn Observer,
    work: impl Fn(&P, &mut Checked) -> Result<T, E> + Sync,
) -> Result<Completed<T>, ExperimentError> {
    let parts = if options.first_part { &parts[..parts.len().min(1)] } else { parts };
    let repeats = ranges(parts);
    let once = |part: &P| -> Result<(T, Checked), ExperimentError> {
        options.stop.check()?;
        let mut checked = Checked::default();
        work(part, &mut checked).map(|done| (done, checked)).map_err(Into::into)
    };
    let note = |observer: &mut dyn Observer, index: usize, results: &[Option<(T, Checked)>]| {
        let found = repeats.iter().enumerate().find(|(_, range)| range.contains(&index));
        let (number, range) = found.expect("each part is one of a repeat's");
        let done: Vec<&(T, Checked)> = results[range.clone()].iter().flatten().collect();
        if done.len() == range.len() {
            let checked = Checked::together(done.iter().map(|(_, checked)| checked));
            report_repeat(observer, number, repeats.len(), &checked);
        }
    };
    let Done { mut results, error } = until_error(step, parts, at_once, observer, once, note);
    let mut anew = Vec::new();
    if error.is_none() && !options.quick {
        anew = do_anew(step, parts, &mut results, observer, once);
    }
    let is_whole = |range: &&Range<usize>| results[(*range).clone()].iter().all(Option::is_some);
    let whole = repeats.iter().take_while(is_whole).count();
    let end = whole.checked_sub(1).map_or(0, |last| repeats[last].end);
    let done = results.into_iter().take(end).flatten().collect();
    Ok(Completed { anew, ..Completed::of(done, (whole, repeats.len()), error, options)? })
}

/// Repeats the parts during which the lab was late, if they are few, one at a time, until it is
/// late in none; returns the seeds of those that became valid.
fn do_anew<P: Part + Sync, T: Send>(
    step: &str,
    parts: &[P],
    results: &mut [Option<(T, Checked)>],
    observer: &mut dyn Observer,
    once: impl Fn(&P) -> Result<(T, Checked), ExperimentError> + Sync,
) -> Vec<u64> {
    let is_late =
        |result: &Option<(T, Checked)>| result.as_ref().is_some_and(|it| !it.1.is_clean());
    let step = format!("{step} anew where the lab was late");
    let mut better = Vec::new();
    for _ in 0..TIMES_ANEW {
        let late: Vec<usize> = (0..parts.len()).filter(|index| is_late(&results[*index])).collect();
        if late.is_empty() || late.len() > parts.len().div_ceil(ANEW) {
            break;
        }
        let again = |index: &usize| once(&parts[*index]);
        // A part that fails, or is stopped, keeps its earlier result.
        let Done { results: done, error } =
            until_error(&step, &late, 1, observer, again, |_, _, _| {});
        for (index, result) in late.into_iter().zip(done) {
            let Some((part, checked)) = result else { continue };
            let seed = parts[index].seed();
            observer.report(&format!("anew with seed {seed}: {}", checked.describe()));
            if checked.is_clean() {
                results[index] = Some((part, checked));
                better.push(seed);
            }
        }
        if error.is_some() {
            break;
        }
    }
    better.sort_unstable();
    better.dedup();
    better
}

/// Runs `work` for one repeat after the other, with the results of the earlier ones.
///
/// # Errors
/// When the run is stopped or fails before any repeat is complete.
pub(crate) fn in_turn<T, E: Into<ExperimentError>>(
    count: usize,
    options: &RunOptions,
    observer: &mut dyn Observer,
    mut work: impl FnMut(&[(T, Checked)], &mut Checked, &mut dyn Observer) -> Result<T, E>,
) -> Result<Completed<T>, ExperimentError> {
    let count = if options.first_part { 1 } else { count };
    let (mut done, mut error) = (Vec::new(), None);
    while done.len() < count && error.is_none() {
        let mut checked = Checked::default();
        match work(&done, &mut checked, observer) {
            Ok(outcome) => {
                report_repeat(observer, done.len(), count, &checked);
                done.push((outcome, checked));
            }
            Err(why) => error = Some(why.into()),
        }
    }
    let whole = done.len();
    Completed::of(done, (whole, count), error, options)
}

/// Reports the validity of a repeat, if there are several.
fn report_repeat(observer: &mut dyn Observer, index: usize, count: usize, checked: &Checked) {
    if count > 1 {
        observer.report(&format!("repeat {} of {count}: {}", index + 1, checked.describe()));
    }
}

/// Returns the indices of each repeat's parts.
fn ranges<P: Part>(parts: &[P]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for repeat in parts.chunk_by(|one, next| one.seed() == next.seed()) {
        let begin = ranges.last().map_or(0, |before| before.end);
        ranges.push(begin..begin + repeat.len());
    }
    ranges
}

impl<T> Completed<T> {
    /// Collects the results of `whole` of `count` repeats, up to `error` if there was one.
    fn of(
        done: Vec<(T, Checked)>,
        (whole, count): (usize, usize),
        error: Option<ExperimentError>,
        options: &RunOptions,
    ) -> Result<Self, ExperimentError> {
        let checked = Checked::together(done.iter().map(|(_, checked)| checked));
        let parts = done.into_iter().map(|(part, _)| part).collect();
        let options_then = options.clone();
        let mut completed =
            Self { parts, checked, options: options_then, ended_early: None, anew: Vec::new() };
        let Some(error) = error else { return Ok(completed) };
        // A part that ends because of the stop request may report another error.
        let error = if options.stop.is_set() { ProcessError::Stopped.into() } else { error };
        if whole == 0 {
            return Err(error);
        }
        completed.options.repeat = u32::try_from(whole).ok();
        completed.ended_early = Some(format!("only {whole} of {count} repeats are whole: {error}"));
        Ok(completed)
    }

    /// Returns the record that `make` builds from all parts and the options of a run with just
    /// these, with the reasons why it is invalid.
    pub(crate) fn record(&self, make: impl FnOnce(&[T], &RunOptions) -> Record) -> Record {
        if self.options.first_part {
            let mut record = Record::of_tables("", Vec::new(), (Vec::new(), Vec::new()));
            record.doubt(["one part alone was run".to_owned()]);
            return record;
        }
        let mut record = make(&self.parts, &self.options);
        if !self.anew.is_empty() {
            let seeds: Vec<String> = self.anew.iter().map(u64::to_string).collect();
            record.assumptions.push(format!(
                "the lab was late in some of what was measured with seed {}: all of that was \
                 measured anew, alone",
                seeds.join(", ")
            ));
        }
        record.doubt(self.ended_early.clone().into_iter().chain(self.checked.invalid_because()));
        record
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Messages(Vec<String>);

    impl Observer for Messages {
        fn begin(&mut self, _: &str, _: u64) {}
        fn advance_to(&mut self, _: u64) {}
        fn report(&mut self, line: &str) {
            self.0.push(line.to_owned());
        }
    }

    /// Runs three repeats of two parts; the part at `fails` fails, and the second is late `late`
    /// times.
    fn run(fails: usize, late: usize) -> (Result<Record, ExperimentError>, Vec<String>) {
        let parts: Vec<(u64, u64)> = (1..=3).flat_map(|seed| [(seed, 0), (seed, 1)]).collect();
        let (options, mut messages) = (RunOptions::of_tests(), Messages::default());
        let (failing, tries) = (parts.get(fails).copied(), AtomicUsize::new(0));
        let completed = each("fetch", &parts, 1, &options, &mut messages, |part, checked| {
            if Some(*part) == failing {
                return Err(ProcessError::Entropy(std::io::Error::other("gone")));
            }
            let is_late = *part == (1, 1) && tries.fetch_add(1, Ordering::Relaxed) < late;
            let reasons = if is_late { vec!["late".to_owned()] } else { Vec::new() };
            checked.add(&format!("seed {}", part.0), reasons);
            Ok(part.0)
        });
        let record = |parts: &[u64], options: &RunOptions| {
            let assumptions = vec![format!("{parts:?}, {:?} repeats", options.repeat)];
            Record::of_tables("fetches", assumptions, (Vec::new(), Vec::new()))
        };
        (completed.map(|completed| completed.record(record)), messages.0)
    }

    #[test]
    fn complete_repeats_before_error_are_invalid() {
        let (whole, messages) = run(9, 1 + TIMES_ANEW);
        let whole = whole.unwrap();
        assert_eq!(whole.assumptions, ["[1, 1, 2, 2, 3, 3], None repeats"]);
        assert_eq!(whole.invalid_because, ["seed 1: late"]);
        assert_eq!(messages[0], "repeat 1 of 3: 2 measurements, 1 late");
        assert_eq!(messages[3..], ["anew with seed 1: 1 measurement, 1 late"; TIMES_ANEW]);
        let broken = run(5, 2).0.unwrap();
        assert_eq!(broken.assumptions, ["[1, 1, 2, 2], Some(2) repeats"]);
        let why = "only 2 of 3 repeats are whole: no entropy for keys: gone";
        assert_eq!(broken.invalid_because, [why, "seed 1: late"]);
        assert!(!broken.valid);
        assert!(run(1, 0).0.is_err(), "the first repeat is not whole");
    }

    #[test]
    fn first_part_alone_is_run_and_has_no_figures() {
        let parts: Vec<(u64, u64)> = (1..=3).flat_map(|seed| [(seed, 0), (seed, 1)]).collect();
        let options = RunOptions { first_part: true, ..RunOptions::of_tests() };
        let run = AtomicUsize::new(0);
        let completed = each("fetch", &parts, 1, &options, &mut Messages::default(), |_, _| {
            run.fetch_add(1, Ordering::Relaxed);
            Ok::<_, ProcessError>(())
        });
        let record = completed.unwrap().record(|_, _| panic!("a part makes no record"));
        assert_eq!(run.into_inner(), 1);
        assert_eq!(record.invalid_because, ["one part alone was run"]);
        assert!(record.rows.is_empty());
        let completed =
            in_turn(3, &options, &mut Messages::default(), |_: &[((), Checked)], _, _| {
                Ok::<_, ProcessError>(())
            });
        assert_eq!(completed.unwrap().parts.len(), 1);
    }

    #[test]
    fn few_late_parts_are_measured_again_and_reported() {
        let (record, messages) = run(9, 2);
        let record = record.unwrap();
        assert!(record.valid, "{:?}", record.invalid_because);
        let assumption = "the lab was late in some of what was measured with seed 1: all of that \
                          was measured anew, alone";
        assert_eq!(record.assumptions, ["[1, 1, 2, 2, 3, 3], None repeats", assumption]);
        let anew = [1, 0].map(|late| format!("anew with seed 1: 1 measurement, {late} late"));
        assert_eq!(messages[3..], anew);
    }

    #[test]
    fn sequential_repeats_stop_on_request() {
        let (options, mut messages) = (RunOptions::of_tests(), Messages::default());
        let completed = in_turn(4, &options, &mut messages, |before: &[(u64, Checked)], _, _| {
            if before.len() == 2 {
                options.stop.set();
            }
            options.stop.check()?;
            Ok::<_, ProcessError>(before.last().map_or(7, |(seed, _)| seed + 1))
        });
        let completed = completed.unwrap();
        assert_eq!(completed.parts, [7, 8]);
        let why = completed.ended_early.unwrap();
        assert!(why.starts_with("only 2 of 4 repeats are whole: stopped on request"), "{why}");
        assert_eq!(messages.0.len(), 2);
    }
}
