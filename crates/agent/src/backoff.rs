//! Pauses between attempts: they double, with jitter, so that agents do not come back together.

use tradewind_units::Duration;

/// The pauses of one series of attempts.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates pauses from `first` up to `most`.
    #[must_use]
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, failures: 0 }
    }

    /// Counts a failure, and returns the pause after it: between half and all of what doubles.
    /// `entropy` chooses.
    pub fn fail(&mut self, entropy: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(16));
        self.failures += 1;
        let share = 0.5 + f64::from(entropy) / f64::from(u32::MAX) / 2.0;
        doubled.min(self.most).mul_f64(share)
    }

    /// Counts a success: the next pause is the first again.
    pub const fn succeed(&mut self) {
        self.failures = 0;
    }
}

/// Returns random bits; none where the system has no entropy, which takes the jitter alone.
pub(crate) fn entropy() -> u32 {
    tradewind_net::entropy::bytes().map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_most_with_jitter() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        let most: Vec<u64> = (0..7).map(|_| backoff.fail(u32::MAX).as_secs()).collect();
        assert_eq!(most, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(backoff.fail(0), Duration::from_secs(15));
        for _ in 0..40 {
            assert!(backoff.fail(7) <= Duration::from_secs(30));
        }
        backoff.succeed();
        assert_eq!(backoff.fail(u32::MAX), Duration::from_secs(1));
    }
}
