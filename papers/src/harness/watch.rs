//! Bytes over time on a link of the lab, during other work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tradewind_wan::counters::LinkName;

use super::LabContext;
use super::ProcessError;

/// The bytes delivered by a link, sampled over time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Arrivals {
    /// Seconds since the begin, and IP bytes until then.
    pub(crate) counts: Vec<(f64, u64)>,
}

/// Runs `work` and samples the bytes delivered by `link` meanwhile, once in `every`.
///
/// # Errors
/// When the emulator has stopped.
pub(crate) fn arrivals<T>(
    context: &LabContext,
    link: &LinkName,
    every: Duration,
    work: impl FnOnce() -> T,
) -> Result<(T, Arrivals), ProcessError> {
    let delivered = || -> Result<u64, ProcessError> {
        let counters = context.lab.counters()?;
        let known = counters.links.iter().find(|known| known.name == *link);
        Ok(known.map_or(0, |known| known.tally.delivered_bytes))
    };
    let before = delivered()?;
    let (over, began) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| -> Result<Arrivals, ProcessError> {
            let mut counts = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let bytes = delivered()?;
                counts.push((began.elapsed().as_secs_f64(), bytes - before));
                std::thread::sleep(every);
            }
            Ok(Arrivals { counts })
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        Ok((done, watching.join().expect("counting does not panic")?))
    })
}

impl Arrivals {
    /// Returns the time from the first to the last byte.
    pub(crate) fn span_s(&self) -> f64 {
        let first = self.steps().next().map_or(0.0, |(from_s, _)| from_s);
        self.steps().last().map_or(0.0, |(_, to_s)| to_s) - first
    }

    /// Returns the seconds of that span in gaps without data of at least `gap_s`.
    pub(crate) fn idle_s(&self, gap_s: f64) -> f64 {
        let gaps = self.steps().zip(self.steps().skip(1)).map(|(one, next)| next.0 - one.1);
        gaps.filter(|gap| *gap >= gap_s).sum()
    }

    /// Returns the rate in Mbit/s of IP outside such gaps.
    pub(crate) fn busy_mbps(&self, gap_s: f64) -> f64 {
        let bytes = self.counts.last().map_or(0, |(_, bytes)| *bytes);
        bytes as f64 * 8.0 / 1e6 / (self.span_s() - self.idle_s(gap_s))
    }

    /// Returns the bytes until `at_s`, as of the last sample before it.
    pub(crate) fn until(&self, at_s: f64) -> u64 {
        let looks = self.counts.partition_point(|(look_s, _)| *look_s <= at_s);
        looks.checked_sub(1).map_or(0, |last| self.counts[last].1)
    }

    /// Returns the intervals between samples in which bytes arrived.
    fn steps(&self) -> impl Iterator<Item = (f64, f64)> {
        let steps = self.counts.windows(2).filter(|two| two[1].1 > two[0].1);
        steps.map(|two| (two[0].0, two[1].0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_have_idle_time_between_them() {
        let counts = [(0.0, 0), (0.1, 0), (0.2, 250), (0.3, 250), (0.4, 500), (0.5, 500)];
        let bursts = Arrivals { counts: counts.map(|(at_s, kb)| (at_s, kb * 1000)).to_vec() };
        assert!((bursts.span_s() - 0.3).abs() < 1e-12);
        assert!((bursts.idle_s(0.05) - 0.1).abs() < 1e-12);
        assert_eq!(bursts.idle_s(0.2), 0.0, "no gap is as long");
        assert!((bursts.busy_mbps(0.05) - 20.0).abs() < 1e-9);
        assert_eq!([0.19, 0.2, 9.0].map(|at_s| bursts.until(at_s)), [0, 250_000, 500_000]);
    }

    #[test]
    fn even_arrivals_are_never_idle() {
        let none = Arrivals { counts: (0..10).map(|step| (f64::from(step), 100)).collect() };
        assert_eq!(none.span_s(), 0.0, "nothing came after the first look");
        let counts = (0..10_u32).map(|step| (f64::from(step), u64::from(step))).collect();
        assert_eq!(Arrivals { counts }.idle_s(0.5), 0.0);
    }
}
