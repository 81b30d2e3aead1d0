//! Rate limits of initiations.

use tradewind_units::{Duration, SharedRate, Source, Timestamp};

use super::{Limits, Link};

/// A token bucket that holds at most one second's tokens.
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

/// The time for which senders with proven addresses share a rate. Chosen: a sender that came too
/// late tries again within a second, in another such time.
const SHARED_FOR: Duration = Duration::from_millis(100);

/// A sender's key in the rate that those with proven addresses share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    /// All ports of a source address.
    Internet(Source),
    /// One path over relays; its owner bounds those of one gateway.
    Overlay(u32),
}

/// The rate limiter: senders without a cookie cannot use the rate of those with proven addresses,
/// each of which gets its share.
#[derive(Debug)]
pub(super) struct Gate {
    unauthenticated: Bucket,
    proven: SharedRate<Holder>,
}

impl Gate {
    pub(super) fn new(now: Timestamp, limits: &Limits) -> Self {
        Self {
            unauthenticated: Bucket::new(now, limits.handshakes),
            proven: SharedRate::new(in_span(limits.handshakes_with_cookie), SHARED_FOR),
        }
    }

    /// Returns whether an initiation without a cookie may be handled.
    pub(super) fn admits_unauthenticated(&mut self, now: Timestamp) -> bool {
        self.unauthenticated.take(now)
    }

    /// Returns whether an initiation with a cookie over `link` may be handled.
    pub(super) fn admits_proven(&mut self, now: Timestamp, link: Link) -> bool {
        let holder = match link {
            Link::Internet(pair) => Holder::Internet(Source::of(pair.remote.ip())),
            Link::Overlay(flow) => Holder::Overlay(flow),
        };
        self.proven.take(now, holder)
    }
}

/// Returns the number of events in [`SHARED_FOR`] at a rate per second.
fn in_span(rate: u32) -> usize {
    let events = u128::from(rate) * SHARED_FOR.as_nanos() / Duration::from_secs(1).as_nanos();
    usize::try_from(events).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_rate_is_shared_by_source() {
        let mut gate = Gate::new(Timestamp::ZERO, &Limits::default());
        let of = |host: u8, port: u16| Link::to(([192, 0, 2, host], port).into());
        let now = Timestamp::ZERO + Duration::from_secs(9);
        let in_all = (0..9999).filter(|port| gate.admits_proven(now, of(9, *port))).count();
        assert_eq!(in_all, 50, "half of 100 in a tenth of a second, whatever its port");
        assert!(gate.admits_proven(now, of(1, 1)));
        assert!(gate.admits_proven(now, Link::Overlay(1)));
        assert!(gate.admits_proven(now + SHARED_FOR, of(9, 1)));
    }

    #[test]
    fn bucket_rate_and_burst() {
        let mut bucket = Bucket::new(Timestamp::ZERO, 10);
        let at = |millis: u64| Timestamp::ZERO + Duration::from_millis(millis);
        assert_eq!((0..20).filter(|_| bucket.take(at(0))).count(), 10);
        assert_eq!((0..20).filter(|_| bucket.take(at(500))).count(), 5);
        assert_eq!((0..99).filter(|_| bucket.take(at(60_000))).count(), 10);
        // A clock that runs back adds no tokens.
        assert!(!bucket.take(at(0)) && !bucket.take(at(60_000)));
    }
}
