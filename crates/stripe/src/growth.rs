//! The number of connections that pays, found by trying \[TRN\].
//!
//! The number doubles as long as the stream's goodput rises by a share of what the added
//! connections would bring if each carried as much as those before. A path that one connection
//! fills gains nothing from a second, and stays at two.

use std::time::Duration;

use tradewind_units::Timestamp;

/// Least gain of an added connection, as a share of what one carried before. Chosen: half of it;
/// noise alone gains less, and a smaller gain would rather be taken from other streams than found.
const WORTH: f64 = 0.5;

/// Grows the number of a stream's connections while its goodput grows.
#[derive(Debug, Clone)]
pub struct Growth {
    most: usize,
    wanted: usize,
    period: Duration,
    /// The begin of the period, and the bytes carried by then.
    began: Option<(Timestamp, u64)>,
    /// True in the first period after a change, in which new connections ramp up.
    gathers: bool,
    /// The number of connections before the last change, and the bytes a second that they carried.
    before: Option<(usize, f64)>,
    settled: bool,
}

impl Growth {
    /// Creates a growth that begins with `first` connections and goes up to `most`. Each
    /// measurement lasts a `period`, after another one in which new connections ramp up.
    #[must_use]
    pub fn new(first: usize, most: usize, period: Duration) -> Self {
        let wanted = first.clamp(1, most.max(1));
        let (began, before) = (None, None);
        Self { most, wanted, period, began, gathers: true, before, settled: wanted >= most }
    }

    /// Returns the number of connections that there should be.
    #[must_use]
    pub const fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns the time of the next measurement; `None` once the number is settled.
    #[must_use]
    pub fn next_look(&self) -> Option<Timestamp> {
        let due = self.began.map_or(Timestamp::ZERO, |(since, _)| since + self.period);
        (!self.settled).then_some(due)
    }

    /// Notes the bytes that the stream has carried by `now` over `open` connections, in both
    /// directions.
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

    /// Returns the number that growth settles at on a path that gives each connection `each` bytes
    /// a second, and all together at most `all`.
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
