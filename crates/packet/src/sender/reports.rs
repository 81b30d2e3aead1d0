//! The reports of a flow's receiver, which may get lost, and come in another order.

use crate::message::{Feedback, Report};

/// The newest report of a receiver on a flow.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reports(Option<Report>);

impl Reports {
    /// Takes a report; returns what has become of packets since the newest before, `None` if it
    /// tells nothing new.
    pub fn take(&mut self, report: Report) -> Option<Feedback> {
        let before = self.0.filter(|newest| newest.begun == report.begun);
        let news = match before {
            Some(newest) => report.sums.since(&newest.sums)?,
            None => report.sums,
        };
        self.0 = Some(report);
        (news.expected > 0).then_some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::FlowNumber;

    fn counts(expected: u64, in_time: u64) -> Feedback {
        let (flow, late) = (FlowNumber(1), expected - in_time);
        Feedback { flow, expected, in_time, late, lost_by_internet: late, recovered: [late, 0, 0] }
    }

    #[test]
    fn each_packet_counts_once_in_whatever_order_reports_come() {
        let report = |expected, in_time| Report { begun: 7, sums: counts(expected, in_time) };
        let mut reports = Reports::default();
        assert_eq!(reports.take(report(0, 0)), None);
        assert_eq!(reports.take(report(100, 90)), Some(counts(100, 90)));
        assert_eq!(reports.take(report(100, 90)), None, "it is repeated");
        assert_eq!(reports.take(report(150, 130)), Some(counts(50, 40)));
        assert_eq!(reports.take(report(120, 105)), None, "it comes late");
        assert_eq!(reports.take(report(160, 140)), Some(counts(10, 10)));
        // More would have come than were expected since, or the sums are not those before.
        assert_eq!(reports.take(report(161, 161)), None);
        assert_eq!(reports.take(report(u64::MAX, 0)), None);
        assert_eq!(reports.take(report(170, 145)), Some(counts(10, 5)));
    }

    #[test]
    fn receiver_that_begins_anew_counts_from_zero() {
        let mut reports = Reports::default();
        for (begun, expected) in [(7, 100), (9, 20), (11, 300)] {
            let sums = counts(expected, expected);
            assert_eq!(reports.take(Report { begun, sums }), Some(sums));
        }
    }
}
