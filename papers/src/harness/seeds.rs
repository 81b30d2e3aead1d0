//! Numeric repeats over successive seeds, on as many threads as the machine has processors.

use std::thread;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Unexpected};

use tradewind_output::progress::Observer;
use tradewind_plan::routing::table::RttTable;

use super::{NumericError, RunOptions, parallel};

/// Most runs of a scenario. Chosen: more prove nothing that these do not.
const MAX_RUNS: u32 = 10_000;

/// Number of runs of an experiment and their seeds, unless options state others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs {
    /// Seed of the first run.
    pub seed: u64,
    /// Number of runs, from 1 to 10,000.
    #[serde(deserialize_with = "runs")]
    pub count: u32,
    /// Number of runs in a quick run.
    #[serde(deserialize_with = "runs")]
    pub quick: u32,
}

fn runs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let count = u32::deserialize(deserializer)?;
    if !(1..=MAX_RUNS).contains(&count) {
        let expected = format!("a number of runs from 1 to {MAX_RUNS}");
        return Err(D::Error::invalid_value(Unexpected::Unsigned(count.into()), &&*expected));
    }
    Ok(count)
}

impl Runs {
    /// Returns the seeds of the runs, in order; at least one.
    #[must_use]
    pub fn seeds(&self, options: &RunOptions) -> Vec<u64> {
        let first = options.seed.unwrap_or(self.seed);
        let usual = if options.quick { self.quick } else { self.count };
        let count = options.repeat.unwrap_or(usual).max(1);
        (0..count).map(|run| first.wrapping_add(run.into())).collect()
    }

    /// Returns the same in words.
    pub(crate) fn describe(&self, options: &RunOptions) -> String {
        self.describe_figure("mean", options)
    }

    /// Returns the same in words, where figures are medians.
    pub(crate) fn describe_medians(&self, options: &RunOptions) -> String {
        self.describe_figure("median", options)
    }

    fn describe_figure(&self, figure: &str, options: &RunOptions) -> String {
        let seeds = self.seeds(options);
        let (runs, first) = (seeds.len(), seeds[0]);
        let shortened = if options.quick && options.repeat.is_none() {
            format!(" (quick: {runs} instead of {})", self.count)
        } else {
            String::new()
        };
        format!("each figure is the {figure} of {runs} runs with seeds from {first} on{shortened}")
    }
}

/// The options of a run, and its observer.
pub struct Job<'a> {
    /// Seeds, repeats, and whether to be quick.
    pub options: &'a RunOptions,
    /// The observer.
    pub observer: &'a mut dyn Observer,
    /// Measured RTTs, if given.
    pub table: Option<RttTable>,
}

/// Number of runs at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// As many as there are processors.
    All,
    /// One: the runs measure times.
    One,
}

/// Does `work` for each seed; returns the results in the seeds' order.
pub(crate) fn each<T: Send>(
    step: &str,
    seeds: &[u64],
    threads: Threads,
    job: &mut Job<'_>,
    work: impl Fn(u64) -> Result<T, NumericError> + Sync,
) -> Result<Vec<T>, NumericError> {
    let at_once = match threads {
        Threads::One => 1,
        Threads::All => thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    let stop = &job.options.stop;
    parallel::each(step, seeds, at_once, job.observer, |seed| {
        if stop.is_set() { Err(NumericError::Stopped) } else { work(*seed) }
    })
}
