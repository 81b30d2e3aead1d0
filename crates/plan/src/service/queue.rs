//! The standing queue of a flow's own uplink, as its round trips show it.
//!
//! A packet waits before the first hop whichever way it takes: round trips over the Internet and
//! to the first relay rise together. What only one of them rises by is not of the uplink. Both are
//! compared with the least of recent minutes.

use tradewind_units::{Duration, Timestamp};

/// Minutes whose least is remembered. Chosen: a queue that stands all the time drains once in so
/// many, and a way that has become longer is taken for a queue no longer than that.
const MINUTES: usize = 10;
const NANOS_OF_A_MINUTE: u64 = 60_000_000_000;

/// The least of recent minutes, each by itself.
#[derive(Debug, Clone, Default)]
struct Least {
    by_minute: [Option<Duration>; MINUTES],
    minute: u64,
}

impl Least {
    /// Takes a value; returns by how much it is above the least.
    fn rise(&mut self, minute: u64, value: Duration) -> Duration {
        // Those that nothing was told in hold nothing.
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

/// The queue before the first hop, as far as it is known.
#[derive(Debug, Clone, Default)]
pub struct StandingQueue {
    internet: Least,
    access: Least,
}

impl StandingQueue {
    /// Takes round trips over the Internet and to the first relay; returns how long packets wait
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

    /// Notes round trips once a second, from a second on; the queue at the end.
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
    fn what_both_ways_rise_by_stands_before_the_hop_they_share() {
        let mut queue = StandingQueue::default();
        assert_eq!(noted(&mut queue, 0..10, 100, 20), ms(0));
        assert_eq!(noted(&mut queue, 10..20, 400, 310), ms(290));
        assert_eq!(noted(&mut queue, 20..30, 100, 20), ms(0));
    }

    #[test]
    fn a_queue_further_on_is_none_of_the_uplink() {
        let mut queue = StandingQueue::default();
        noted(&mut queue, 0..10, 100, 20);
        assert_eq!(noted(&mut queue, 10..20, 400, 20), ms(0), "on the Internet");
        assert_eq!(noted(&mut queue, 20..30, 100, 300), ms(0), "at the relay");
    }

    #[test]
    fn ways_that_stay_longer_are_no_queue_after_ten_minutes() {
        let mut queue = StandingQueue::default();
        noted(&mut queue, 0..10, 100, 20);
        assert_eq!(noted(&mut queue, 10..590, 200, 120), ms(100));
        assert_eq!(noted(&mut queue, 590..620, 200, 120), ms(0));
        // Also where nothing was told meanwhile.
        noted(&mut queue, 620..630, 100, 20);
        assert_eq!(noted(&mut queue, 5000..5001, 200, 120), ms(0));
    }
}
