//! The places and the time that an operator states of a file; the summary of its replies.

use tradewind_control::imported::ImportedRtt;
use tradewind_probe::statistics::{ascending, quantile};
use tradewind_units::SiteId;

/// The ends of a leg, and the time of a measurement that has none of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) ends: Option<(SiteId, SiteId)>,
    pub(super) at: Option<u64>,
}

impl Given {
    /// Returns the ends, which only tables hold themselves.
    pub(super) fn ends(&self) -> Result<(SiteId, SiteId), String> {
        let none = || "holds no places: name them by --from and --to".to_owned();
        self.ends.clone().ok_or_else(none)
    }

    /// Returns the time of a measurement: its own, or else the one that `--at` names.
    pub(super) fn time(&self, own: Option<u64>, hint: &str) -> Result<u64, String> {
        let none = || format!("holds no time: {hint}, or name it by --at 2026-11-27T13:00:00Z");
        own.or(self.at).ok_or_else(none)
    }
}

/// Returns the summary of round-trip times, in milliseconds; `None` if there are none.
pub(super) fn summary(times: Vec<f64>) -> Option<ImportedRtt> {
    let sorted = ascending(times);
    Some(ImportedRtt {
        min_ms: *sorted.first()?,
        median_ms: quantile(&sorted, 0.5)?,
        spread_ms: quantile(&sorted, 0.9)? - quantile(&sorted, 0.1)?,
        samples: u32::try_from(sorted.len()).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns two places, and no time.
    pub(in crate::measure) fn given() -> Given {
        let site = |name: &str| SiteId::new(name).unwrap();
        Given { ends: Some((site("office"), site("plant"))), at: None }
    }

    #[test]
    fn summaries_have_the_spread_of_the_middle_eight_tenths() {
        let rtt = summary((0..=10).map(f64::from).rev().collect()).unwrap();
        assert_eq!((rtt.min_ms, rtt.median_ms, rtt.spread_ms, rtt.samples), (0.0, 5.0, 8.0, 11));
        assert_eq!(summary(Vec::new()), None);
    }
}
