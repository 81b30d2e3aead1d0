//! A count that goes into the log when it grows, at once and then seldom.

use tradewind_units::{Duration, Timestamp};

/// Least time between two lines. Chosen: who looks at a log sees that it goes on, and still sees the rest.
const PAUSE: Duration = Duration::from_secs(60);

/// What of a count was told.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    told: u64,
    not_before: Timestamp,
}

impl Seldom {
    /// By how much the count has grown since it was last told, where that is to be told at `now`.
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
    fn growth_is_told_at_once_then_seldom_and_nothing_is_left_out() {
        let mut seldom = Seldom::default();
        let mut news =
            |seconds, total| seldom.news(Timestamp::ZERO + Duration::from_secs(seconds), total);
        assert_eq!([news(1, 0), news(2, 3), news(3, 4), news(61, 5)], [None, Some(3), None, None]);
        assert_eq!([news(62, 5), news(63, 9), news(900, 9)], [Some(2), None, Some(4)]);
        assert_eq!(news(1000, 9), None);
    }
}
