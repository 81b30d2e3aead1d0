//! Rate-limited logging of a count: at once when it grows, then seldom.

use tradewind_units::{Duration, Timestamp};

/// Least time between two lines. Chosen: shows that it goes on, and does not hide the rest of the
/// log.
const PAUSE: Duration = Duration::from_secs(60);

/// State of a count's log.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    told: u64,
    not_before: Timestamp,
}

impl Seldom {
    /// Returns by how much the count has grown since it was last logged, if that is to be logged at
    /// `now`.
    pub(crate) fn news(&mut self, now: Timestamp, total: u64) -> Option<u64> {
        let more = total.saturating_sub(self.told);
        if more == 0 || now < self.not_before {
            return None;
        }
        self.told = total;
        self.not_before = now + PAUSE;
        Some(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_logged_at_once_then_seldom() {
        let mut seldom = Seldom::default();
        let mut news =
            |seconds, total| seldom.news(Timestamp::ZERO + Duration::from_secs(seconds), total);
        assert_eq!([news(1, 0), news(2, 3), news(3, 4), news(61, 5)], [None, Some(3), None, None]);
        assert_eq!([news(62, 5), news(63, 9), news(900, 9)], [Some(2), None, Some(4)]);
        assert_eq!(news(1000, 9), None);
    }
}
