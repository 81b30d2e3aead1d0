//! Shared parts of examples: command-line arguments, and clocks of wall and CPU time.

#![allow(
    dead_code,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "each example uses its part; a command reads words and clocks, unlike the library"
)]

use std::str::FromStr;
use std::time::Instant;

use tradewind_units::Duration;

/// The arguments of an example.
pub(crate) struct Words {
    name: &'static str,
    words: Vec<String>,
}

impl Words {
    /// Reads the arguments of the example of this name.
    pub(crate) fn of(name: &'static str) -> Self {
        Self { name, words: std::env::args().skip(1).collect() }
    }

    /// Removes an option; returns whether it was there.
    pub(crate) fn take(&mut self, option: &str) -> bool {
        let at = self.words.iter().position(|word| word == option);
        at.map(|at| self.words.remove(at)).is_some()
    }

    /// Returns the argument at this index.
    pub(crate) fn at(&self, place: usize) -> Option<&str> {
        self.words.get(place).map(String::as_str)
    }

    /// Returns the number at this index, or `default` if there is no argument. Anything else ends
    /// the example with exit code 2.
    pub(crate) fn number<T: FromStr>(&self, place: usize, default: T) -> T {
        let Some(word) = self.at(place) else { return default };
        word.parse().unwrap_or_else(|_| {
            eprintln!("{}, word {}: expected a number, not `{word}`", self.name, place + 1);
            std::process::exit(2)
        })
    }

    /// Returns all numbers from this index on.
    pub(crate) fn numbers_from<T: FromStr + Copy>(&self, place: usize, none: T) -> Vec<T> {
        (place..self.words.len()).map(|at| self.number(at, none)).collect()
    }
}

/// A start time, in wall-clock time and in this thread's CPU time.
#[derive(Clone, Copy)]
pub(crate) struct Since(Instant, Duration);

impl Since {
    pub(crate) fn now() -> Self {
        Self(Instant::now(), processor())
    }

    pub(crate) fn wall_s(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }

    pub(crate) fn cpu_s(self) -> f64 {
        processor().saturating_sub(self.1).as_secs_f64()
    }

    /// Returns the elapsed time: wall-clock time, or CPU time (`by_cpu`).
    pub(crate) fn passed(self, by_cpu: bool) -> Duration {
        Duration::from_secs_f64(if by_cpu { self.cpu_s() } else { self.wall_s() })
    }
}

/// Returns the CPU time of this thread, which the kernel counts in nanoseconds.
fn processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0);
    Duration::from_nanos(nanos)
}
