//! What may be asked of others: a bucket that fills at a rate.

use tradewind_units::{Duration, Timestamp};

/// How much a second, and how much at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Items a second.
    pub per_second: u32,
    /// Items at once after a silence.
    pub burst: u32,
}

/// A token bucket, exact in whole numbers: a token is a second's worth of nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    allowance: Allowance,
    nano_tokens: u128,
    at: Timestamp,
}

const TOKEN: u128 = 1_000_000_000;

impl Budget {
    /// A full bucket.
    pub(crate) fn new(allowance: Allowance) -> Self {
        let nano_tokens = u128::from(allowance.burst) * TOKEN;
        Self { allowance, nano_tokens, at: Timestamp::ZERO }
    }

    /// Takes `count` if as many are there.
    pub(crate) fn take(&mut self, now: Timestamp, count: u32) -> bool {
        self.take_above(now, count, 0)
    }

    /// Takes `count` if that leaves `reserve`.
    pub(crate) fn take_above(&mut self, now: Timestamp, count: u32, reserve: u32) -> bool {
        let since: Duration = now.since(self.at);
        self.at = self.at.max(now);
        let most = u128::from(self.allowance.burst) * TOKEN;
        let more = since.as_nanos().saturating_mul(u128::from(self.allowance.per_second));
        self.nano_tokens = self.nano_tokens.saturating_add(more).min(most);
        let wanted = u128::from(count) * TOKEN;
        let is_there = wanted + u128::from(reserve) * TOKEN <= self.nano_tokens;
        if is_there {
            self.nano_tokens -= wanted;
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_given_than_the_burst_and_the_rate() {
        let mut budget = Budget::new(Allowance { per_second: 100, burst: 10 });
        let mut given = 0;
        for millis in 0..1000_u64 {
            let now = Timestamp::from_nanos(millis * 1_000_000);
            given += u32::from(budget.take(now, 1));
        }
        assert!((108..=110).contains(&given), "{given}");
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let mut budget = Budget::new(Allowance { per_second: 1, burst: 1 });
        assert!(budget.take(Timestamp::from_nanos(5_000_000_000), 1));
        assert!(!budget.take(Timestamp::ZERO, 1));
        assert!(!budget.take(Timestamp::from_nanos(5_500_000_000), 1));
        assert!(budget.take(Timestamp::from_nanos(6_000_000_000), 1));
    }
}
