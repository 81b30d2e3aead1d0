//! How many initiations are worth a look.

use tradewind_units::{Duration, Timestamp};

use super::Limits;

/// A bucket that fills at a rate and holds what one second brings.
#[derive(Debug)]
struct Bucket {
    rate: u32,
    tokens: u64,
    filled: Timestamp,
}

const NANOS: u64 = Duration::from_secs(1).as_nanos() as u64;

impl Bucket {
    fn new(now: Timestamp, rate: u32) -> Self {
        Self { rate, tokens: u64::from(rate) * NANOS, filled: now }
    }

    fn take(&mut self, now: Timestamp) -> bool {
        let most = u64::from(self.rate) * NANOS;
        let since = (now.since(self.filled).as_nanos() as u64).min(NANOS);
        self.tokens = most.min(self.tokens + since * u64::from(self.rate));
        self.filled = self.filled.max(now);
        let is_there = self.tokens >= NANOS;
        self.tokens -= if is_there { NANOS } else { 0 };
        is_there
    }
}

/// Two buckets: strangers cannot empty that of those who proved their address.
#[derive(Debug)]
pub(super) struct Gate {
    strangers: Bucket,
    proven: Bucket,
}

impl Gate {
    pub(super) fn new(now: Timestamp, limits: &Limits) -> Self {
        Self {
            strangers: Bucket::new(now, limits.handshakes),
            proven: Bucket::new(now, limits.handshakes_with_cookie),
        }
    }

    /// Whether an initiation without a cookie is looked at.
    pub(super) fn lets_stranger_in(&mut self, now: Timestamp) -> bool {
        self.strangers.take(now)
    }

    /// Whether an initiation with a cookie is looked at.
    pub(super) fn lets_proven_in(&mut self, now: Timestamp) -> bool {
        self.proven.take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_rate_and_one_second_at_once() {
        let mut bucket = Bucket::new(Timestamp::ZERO, 10);
        let at = |millis: u64| Timestamp::ZERO + Duration::from_millis(millis);
        assert_eq!((0..20).filter(|_| bucket.take(at(0))).count(), 10);
        assert_eq!((0..20).filter(|_| bucket.take(at(500))).count(), 5);
        assert_eq!((0..99).filter(|_| bucket.take(at(60_000))).count(), 10);
        // A clock that runs back gives nothing.
        assert!(!bucket.take(at(0)) && !bucket.take(at(60_000)));
    }
}
