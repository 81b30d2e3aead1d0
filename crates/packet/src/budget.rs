//! Bounds on what may be requested of others: a token bucket.

use tradewind_units::{Duration, Timestamp};

/// A rate per second, and a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Items per second.
    pub per_second: u32,
    /// Items that may be taken at once after an idle time.
    pub burst: u32,
}

/// A token bucket, exact in whole numbers: a token is a second's worth of nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    allowance: Allowance,
    /// May be below zero after [`Budget::spend`].
    nano_tokens: i128,
    at: Timestamp,
}

const TOKEN: i128 = 1_000_000_000;

impl Budget {
    /// Returns a full bucket.
    pub(crate) fn new(allowance: Allowance) -> Self {
        let nano_tokens = i128::from(allowance.burst) * TOKEN;
        Self { allowance, nano_tokens, at: Timestamp::ZERO }
    }

    /// Takes `count` tokens if there are as many.
    pub(crate) fn take(&mut self, now: Timestamp, count: u32) -> bool {
        self.take_above(now, count, 0)
    }

    /// Takes `count` tokens if at least `reserve` are left afterwards.
    pub(crate) fn take_above(&mut self, now: Timestamp, count: u32, reserve: u32) -> bool {
        self.fill(now);
        let wanted = i128::from(count) * TOKEN;
        let is_there = wanted + i128::from(reserve) * TOKEN <= self.nano_tokens;
        if is_there {
            self.nano_tokens -= wanted;
        }
        is_there
    }

    /// Takes `count` tokens in any case. The deficit, of one burst at most, is paid back before any
    /// more tokens are granted.
    pub(crate) fn spend(&mut self, now: Timestamp, count: u32) {
        self.fill(now);
        let least = -i128::from(self.allowance.burst) * TOKEN;
        self.nano_tokens = (self.nano_tokens - i128::from(count) * TOKEN).max(least);
    }

    /// Gives back `count` tokens that were taken and not used.
    pub(crate) fn give_back(&mut self, count: u32) {
        let most = i128::from(self.allowance.burst) * TOKEN;
        self.nano_tokens = (self.nano_tokens + i128::from(count) * TOKEN).min(most);
    }

    fn fill(&mut self, now: Timestamp) {
        let since: Duration = now.since(self.at);
        self.at = self.at.max(now);
        let most = i128::from(self.allowance.burst) * TOKEN;
        let nanos = i128::try_from(since.as_nanos()).unwrap_or(i128::MAX);
        let more = nanos.saturating_mul(i128::from(self.allowance.per_second));
        self.nano_tokens = self.nano_tokens.saturating_add(more).min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_respects_burst_and_rate() {
        let mut budget = Budget::new(Allowance { per_second: 100, burst: 10 });
        let mut given = 0;
        for millis in 0..1000_u64 {
            let now = Timestamp::from_nanos(millis * 1_000_000);
            given += u32::from(budget.take(now, 1));
        }
        assert!((108..=110).contains(&given), "{given}");
    }

    #[test]
    fn forced_spending_is_repaid() {
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        let mut budget = Budget::new(Allowance { per_second: 100, burst: 10 });
        budget.spend(at(0), 15);
        assert!(!budget.take(at(50), 1), "nothing is left");
        assert!(budget.take(at(60), 1));
        budget.spend(at(60), 1_000_000);
        assert!(!budget.take(at(160), 1), "a burst is owed, and no more");
        assert!(budget.take(at(170), 1));
    }

    #[test]
    fn returned_tokens_are_reusable() {
        let mut budget = Budget::new(Allowance { per_second: 1, burst: 10 });
        assert!(budget.take(Timestamp::ZERO, 10));
        budget.give_back(4);
        assert!(budget.take(Timestamp::ZERO, 4));
        budget.give_back(100);
        assert!(!budget.take(Timestamp::ZERO, 11), "no more than a burst");
    }

    #[test]
    fn clock_going_back_adds_no_tokens() {
        let mut budget = Budget::new(Allowance { per_second: 1, burst: 1 });
        assert!(budget.take(Timestamp::from_nanos(5_000_000_000), 1));
        assert!(!budget.take(Timestamp::ZERO, 1));
        assert!(!budget.take(Timestamp::from_nanos(5_500_000_000), 1));
        assert!(budget.take(Timestamp::from_nanos(6_000_000_000), 1));
    }
}
