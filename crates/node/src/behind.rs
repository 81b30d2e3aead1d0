//! The age of packets that have waited in devices, which report no time of arrival.
//!
//! A worker looks at all its sources when its next deadline has passed, at the latest. The time by
//! which it is behind is the time it has stood still, stopped or starved, and packets that are
//! there by then have waited about as long.

use std::collections::BTreeMap;

use tradewind_units::{Duration, Timestamp};

use crate::ticks::TICK;

/// Devices whose packets have waited since the worker stood still, by their tokens.
#[derive(Debug, Default)]
pub(crate) struct Backlog(BTreeMap<u64, Duration>);

impl Backlog {
    /// Records at `now` which devices have input, the deadline having been `due`.
    pub(crate) fn note(
        &mut self,
        (now, due): (Timestamp, Timestamp),
        ready: impl Iterator<Item = u64>,
    ) {
        let late = now.since(due);
        // The scheduler causes such delays now and then.
        if late >= TICK {
            self.0.extend(ready.map(|token| (token, late)));
        }
    }

    /// Returns how long the packets in a device have waited, if that is long.
    pub(crate) fn age(&self, token: u64) -> Option<Duration> {
        self.0.get(&token).copied()
    }

    /// Records that a device is empty: packets that come from now on are fresh.
    pub(crate) fn is_drained(&mut self, token: u64) {
        self.0.remove(&token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn packet_age_includes_worker_delay() {
        let mut behind = Backlog::default();
        behind.note((at(110), at(100)), [3, 7].into_iter());
        assert_eq!(behind.age(3), None, "that is usual");
        behind.note((at(20_100), at(100)), [3].into_iter());
        assert_eq!((behind.age(3), behind.age(7)), (Some(Duration::from_secs(20)), None));
        // It held more than is fetched at a time.
        behind.note((at(20_101), at(20_150)), [3, 7].into_iter());
        assert_eq!(behind.age(3), Some(Duration::from_secs(20)));
        behind.is_drained(3);
        assert_eq!(behind.age(3), None);
    }
}
