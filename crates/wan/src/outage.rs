//! Outages: planned ones, and random ones from a schedule that is the same for all links that share
//! the outage.

use crate::{
    chance::{exponential, generator, unit_interval},
    segment::{Nanos, nanos},
    topology::{Outage, OutageTimes},
};
use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;

/// One link's view of one outage. Queries must not go back in time.
#[derive(Debug, Clone)]
pub(crate) enum OutageClock {
    Planned { start: Nanos, length: Nanos, every: Option<Nanos> },
    Random(RandomSchedule),
}

/// Outage windows drawn one after the other.
#[derive(Debug, Clone)]
pub(crate) struct RandomSchedule {
    generator: Pcg64Mcg,
    mean_gap: Nanos,
    shortest: Nanos,
    longest: Nanos,
    begin: Nanos,
    end: Nanos,
}

impl OutageClock {
    /// Returns the clock of `outage` in a run with `seed`: the same for every link that has it.
    pub(crate) fn new(outage: &Outage, seed: u64) -> Self {
        match outage.times {
            OutageTimes::Planned { start, length, every } => Self::Planned {
                start: nanos(start),
                length: nanos(length),
                every: every.map(nanos),
            },
            OutageTimes::Random { mean_gap, shortest, longest } => {
                let mut schedule = RandomSchedule {
                    generator: generator(seed, &outage.name, "outage"),
                    mean_gap: nanos(mean_gap),
                    shortest: nanos(shortest),
                    longest: nanos(longest),
                    begin: 0,
                    end: 0,
                };
                schedule.advance();
                Self::Random(schedule)
            }
        }
    }

    /// Returns whether the link is out at `now`: from a window's begin to just before its end.
    pub(crate) fn is_out(&mut self, now: Nanos) -> bool {
        match self {
            Self::Planned { start, length, every } => match now.checked_sub(*start) {
                None => false,
                Some(since) => every.map_or(since, |every| since % every) < *length,
            },
            Self::Random(schedule) => {
                while now >= schedule.end {
                    schedule.advance();
                }
                now >= schedule.begin
            }
        }
    }
}

impl RandomSchedule {
    fn advance(&mut self) {
        let gap = (exponential(&mut self.generator) * self.mean_gap as f64) as Nanos;
        let share = unit_interval(self.generator.next_u64());
        let length = self.shortest + ((self.longest - self.shortest) as f64 * share) as Nanos;
        self.begin = self.end.saturating_add(gap);
        // A window has at least a nanosecond, so that the schedule advances.
        self.end = self.begin.saturating_add(length.max(1));
    }
}
