//! Rate-limited logging of a count: at once when it grows, then rarely.

use tradewind_units::{Duration, Timestamp};

/// Least time between two lines. Chosen: shows that it goes on, and does not hide the rest of the
/// log.
const PAUSE: Duration = Duration::from_secs(60);

/// State of a count's log.
#[derive(Debug, Default)]
pub(crate) struct CountLog {
    logged: u64,
    not_before: Timestamp,
}

impl CountLog {
    /// Returns by how much the count has grown since it was last logged, if that is to be logged at
    /// `now`.
    pub(crate) fn growth(&mut self, now: Timestamp, total: u64) -> Option<u64> {
        let more = total.saturating_sub(self.logged);
        if more == 0 || now < self.not_before {
            return None;
        }
        self.logged = total;
        self.not_before = now + PAUSE;
        Some(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_logged_at_once_then_rarely() {
        let mut log = CountLog::default();
        let mut growth =
            |seconds, total| log.growth(Timestamp::ZERO + Duration::from_secs(seconds), total);
        assert_eq!(
            [growth(1, 0), growth(2, 3), growth(3, 4), growth(61, 5)],
            [None, Some(3), None, None]
        );
        assert_eq!([growth(62, 5), growth(63, 9), growth(900, 9)], [Some(2), None, Some(4)]);
        assert_eq!(growth(1000, 9), None);
    }
}
