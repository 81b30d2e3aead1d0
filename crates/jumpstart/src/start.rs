//! One connection's share when several start at once.
//!
//! The learned rate of a destination is lent to the connections that start: the loans of one
//! destination never exceed its rate times [`Config::pacing_share`](crate::Config::pacing_share),
//! and each ends by itself after [`LOAN_RTTS`] round-trip times, when its borrower has measured the
//! path. The share of the first one must be decided before the others come; it is the rate divided
//! by how many started at once recently. In `strict`, one borrows at a time (RFC 9959).

use std::collections::BTreeMap;

use tradewind_units::{Bandwidth, Duration, Segments, Timestamp};

/// Duration of a loan, in round-trip times. Chosen: a first flight is sent, acknowledged and
/// measured after two; as many again for delayed acknowledgements.
pub const LOAN_RTTS: u32 = 4;
/// Time for which the number of simultaneous starts is remembered, in loans. Chosen: such that a
/// burst a second at 100 ms is still known.
const CROWD_MEMORY_LOANS: u32 = 25;

/// Start of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Initial congestion window.
    pub window: Segments,
    /// Highest rate of the first round-trip times; none in mode `riptide`.
    pub pacing: Option<Bandwidth>,
    /// The time at which the limit on the rate is lifted.
    pub until: Timestamp,
}

/// The loans of one destination.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loans {
    /// Borrowers and bits per second, by end. Loans that end at once are stored as one.
    open: BTreeMap<Timestamp, (u32, f64)>,
    crowd: u32,
    crowd_until: Timestamp,
}

impl Loans {
    /// Lends a share of `budget_bps`, and none below `least_bps`.
    pub(crate) fn lend(
        &mut self,
        now: Timestamp,
        rtt: Duration,
        budget_bps: f64,
        least_bps: f64,
        at_once: Option<u32>,
    ) -> Option<f64> {
        self.open = self.open.split_off(&(now + Duration::from_nanos(1)));
        let (borrowers, lent) =
            self.open.values().fold((0, 0.0), |sum, loan| (sum.0 + loan.0, sum.1 + loan.1));
        if at_once.is_some_and(|most| borrowers >= most) {
            return None;
        }
        if now >= self.crowd_until {
            self.crowd = 0;
        }
        let crowd = self.crowd.max(borrowers + 1);
        let share = (budget_bps / f64::from(crowd)).min(budget_bps - lent);
        let span = rtt.saturating_mul(LOAN_RTTS).max(Duration::from_millis(1));
        // Connections that get nothing count too, so that the next crowd is divided better.
        self.crowd = crowd;
        self.crowd_until = now + span.saturating_mul(CROWD_MEMORY_LOANS);
        let share = if share >= least_bps { share } else { 0.0 };
        let loan = self.open.entry(now + span).or_insert((0, 0.0));
        *loan = (loan.0 + 1, loan.1 + share);
        (share > 0.0).then_some(share)
    }

    /// Returns the bits per second lent out at `now`.
    pub(crate) fn lent_bps(&self, now: Timestamp) -> f64 {
        let live = self.open.range(now + Duration::from_nanos(1)..);
        live.fold(0.0, |lent, (_, loan)| lent + loan.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RTT: Duration = Duration::from_millis(100);

    #[test]
    fn simultaneous_starts_share_evenly() {
        let mut loans = Loans::default();
        let at = |ms| Timestamp::ZERO + Duration::from_millis(ms);
        let first: Vec<_> = (0..8).map(|_| loans.lend(at(0), RTT, 80.0, 1.0, None)).collect();
        assert_eq!(first[0], Some(80.0));
        assert!(first[1..].iter().all(Option::is_none), "nothing is left: {first:?}");
        let later: Vec<_> = (0..8).map(|_| loans.lend(at(1000), RTT, 80.0, 1.0, None)).collect();
        assert_eq!(later, vec![Some(10.0); 8]);
        // Long after, a single start gets everything again.
        assert_eq!(loans.lend(at(60_000), RTT, 80.0, 1.0, None), Some(80.0));
    }

    #[test]
    fn strict_lends_to_one_at_a_time() {
        let mut loans = Loans::default();
        let at = |ms| Timestamp::ZERO + Duration::from_millis(ms);
        assert!(loans.lend(at(0), RTT, 80.0, 1.0, Some(1)).is_some());
        assert_eq!(loans.lend(at(399), RTT, 80.0, 1.0, Some(1)), None);
        assert!(loans.lend(at(400), RTT, 80.0, 1.0, Some(1)).is_some());
    }

    proptest! {
        #[test]
        fn loans_never_exceed_the_budget(
            gaps in prop::collection::vec((0u64..500, 1u64..300), 1..60),
        ) {
            let (mut loans, mut now) = (Loans::default(), Timestamp::ZERO);
            for (gap, rtt) in gaps {
                now = now + Duration::from_millis(gap);
                let _ = loans.lend(now, Duration::from_millis(rtt), 1000.0, 10.0, None);
                prop_assert!(loans.lent_bps(now) <= 1000.0 + 1e-6);
            }
        }
    }
}
