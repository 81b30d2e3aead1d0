//! How many connections are worth it, found by trying \[TRN\].
//!
//! The number doubles as long as that brings the stream a share of what it would bring if each connection carried
//! as much as those before. A path that one connection fills gains nothing from a second, and stays at two.

use std::time::Duration;

use tradewind_units::Timestamp;

/// What each added connection must bring, as a share of what one carried before. Chosen: half of it; what noise
/// alone brings is less, and less would be taken from others rather than found.
const WORTH: f64 = 0.5;

/// Grows the number of a stream's connections while its goodput grows.
#[derive(Debug, Clone)]
pub struct Growth {
    most: usize,
    wanted: usize,
    period: Duration,
    /// What was carried when the period began, and when that was.
    began: Option<(Timestamp, u64)>,
    /// Whether the period is the first after a change, in which new connections gather speed.
    gathers: bool,
    /// Bytes a second with so many connections.
    before: Option<(usize, f64)>,
    settled: bool,
}

impl Growth {
    /// Begins with `first` connections and goes up to `most`. A period is a measurement, and as long a wait
    /// before it for new connections to gather speed.
    #[must_use]
    pub fn new(first: usize, most: usize, period: Duration) -> Self {
        let wanted = first.clamp(1, most.max(1));
        let (began, before) = (None, None);
        Self { most, wanted, period, began, gathers: true, before, settled: wanted >= most }
    }

    /// How many connections there should be.
    #[must_use]
    pub const fn wanted(&self) -> usize {
        self.wanted
    }

    /// When to look next; `None` once nothing is tried any more.
    #[must_use]
    pub fn next_look(&self) -> Option<Timestamp> {
        let due = self.began.map_or(Timestamp::ZERO, |(since, _)| since + self.period);
        (!self.settled).then_some(due)
    }

    /// Looks at what the stream has carried by `now` over `open` connections, in both directions.
    pub fn look(&mut self, now: Timestamp, carried: u64, open: usize) {
        let Some((since, before)) = self.began else {
            self.began = Some((now, carried));
            return;
        };
        let span = now.since(since);
        if self.settled || span < self.period {
            return;
        }
        self.began = Some((now, carried));
        if std::mem::take(&mut self.gathers) {
            return;
        }
        let rate = carried.saturating_sub(before) as f64 / span.as_secs_f64();
        let gained = self.before.is_none_or(|(count, slower)| {
            let added = open.saturating_sub(count) as f64 / count as f64;
            added > 0.0 && rate >= slower * (1.0 + WORTH * added)
        });
        if gained && rate > 0.0 && self.wanted < self.most {
            self.before = Some((open.max(1), rate));
            self.wanted = (2 * self.wanted).min(self.most);
            self.gathers = true;
        } else {
            self.settled = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a path that gives `each` connection so much, and `all` of them at most so much, settles.
    fn settles(each: u64, all: u64, most: usize) -> usize {
        let mut growth = Growth::new(1, most, Duration::from_secs(1));
        let (mut now, mut carried) = (Timestamp::from_nanos(5), 0);
        for _ in 0..100 {
            growth.look(now, carried, growth.wanted());
            carried += (each * growth.wanted() as u64).min(all);
            now = now + Duration::from_secs(1);
        }
        assert_eq!(growth.next_look(), None, "it settles");
        growth.wanted()
    }

    #[test]
    fn connections_grow_while_they_bring_something() {
        assert_eq!(settles(10, 1_000_000, 8), 8, "each brings the same: to the maximum");
        assert_eq!(settles(100, 100, 8), 2, "one fills the path");
        assert_eq!(settles(25, 100, 32), 8, "four fill it: eight bring nothing more");
        assert_eq!(settles(0, 0, 8), 1, "nothing moves");
        assert_eq!(settles(10, 1_000_000, 1), 1);
    }
}
