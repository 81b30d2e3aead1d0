//! Estimation of the standing queue of a flow's own uplink from its round-trip times.
//!
//! A packet waits before the first hop on any path: round-trip times over the Internet and to the
//! first relay rise together. An increase of only one of them is not due to the uplink. Both are
//! compared with their minimum over recent minutes.

use tradewind_units::{Duration, Timestamp};

/// Minutes whose minimum is remembered. Chosen: a standing queue drains once in this time, and a
/// path that has become longer is mistaken for a queue no longer than this.
const MINUTES: usize = 10;
const NANOS_OF_A_MINUTE: u64 = 60_000_000_000;

/// The minimum of each of the recent minutes.
#[derive(Debug, Clone, Default)]
struct Least {
    by_minute: [Option<Duration>; MINUTES],
    minute: u64,
}

impl Least {
    /// Adds a value; returns by how much it exceeds the minimum.
    fn rise(&mut self, minute: u64, value: Duration) -> Duration {
        // Minutes without a value have no minimum.
        let passed = minute.saturating_sub(self.minute).min(MINUTES as u64);
        self.minute = self.minute.max(minute);
        for step in 0..passed {
            self.by_minute[place(self.minute - step)] = None;
        }
        let least = self.by_minute[place(self.minute)].get_or_insert(value);
        *least = value.min(*least);
        let least = self.by_minute.iter().flatten().min().copied();
        value.saturating_sub(least.unwrap_or(value))
    }
}

fn place(minute: u64) -> usize {
    (minute % MINUTES as u64) as usize
}

/// The estimate of the queue before the first hop.
#[derive(Debug, Clone, Default)]
pub struct StandingQueue {
    internet: Least,
    access: Least,
}

impl StandingQueue {
    /// Adds round-trip times over the Internet and to the first relay; returns the queueing delay
    /// before the hop that both share.
    pub fn note(&mut self, now: Timestamp, internet: Duration, access: Duration) -> Duration {
        let minute = now.as_nanos() / NANOS_OF_A_MINUTE;
        let internet = self.internet.rise(minute, internet);
        internet.min(self.access.rise(minute, access))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Adds round-trip times once a second in `seconds`; returns the queueing delay at the end.
    fn noted(
        queue: &mut StandingQueue,
        seconds: std::ops::Range<u64>,
        internet: u64,
        access: u64,
    ) -> Duration {
        let mut last = Duration::ZERO;
        for second in seconds {
            let now = Timestamp::ZERO + Duration::from_secs(second);
            last = queue.note(now, ms(internet), ms(access));
        }
        last
    }

    #[test]
    fn common_delay_rise_is_queue_at_shared_hop() {
        let mut queue = StandingQueue::default();
        assert_eq!(noted(&mut queue, 0..10, 100, 20), ms(0));
        assert_eq!(noted(&mut queue, 10..20, 400, 310), ms(290));
        assert_eq!(noted(&mut queue, 20..30, 100, 20), ms(0));
    }

    #[test]
    fn queue_beyond_uplink_is_not_counted() {
        let mut queue = StandingQueue::default();
        noted(&mut queue, 0..10, 100, 20);
        assert_eq!(noted(&mut queue, 10..20, 400, 20), ms(0), "on the Internet");
        assert_eq!(noted(&mut queue, 20..30, 100, 300), ms(0), "at the relay");
    }

    #[test]
    fn lasting_delay_rise_is_no_queue() {
        let mut queue = StandingQueue::default();
        noted(&mut queue, 0..10, 100, 20);
        assert_eq!(noted(&mut queue, 10..590, 200, 120), ms(100));
        assert_eq!(noted(&mut queue, 590..620, 200, 120), ms(0));
        // The same without any value in between.
        noted(&mut queue, 620..630, 100, 20);
        assert_eq!(noted(&mut queue, 5000..5001, 200, 120), ms(0));
    }
}
