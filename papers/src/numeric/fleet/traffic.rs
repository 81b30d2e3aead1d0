//! The requests to the PoPs that send.

use serde::Deserialize;
use tradewind_units::{Bytes, Duration, Segments, time::as_text};

use super::super::sizes::{Exceeding, Sizes};
use super::sender::MSS;
use crate::harness::{Random, ScenarioError};

/// A scenario's traffic.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// Two points of the distribution of sizes, in segments of `PAPER_SEGMENT` bytes.
    pub exceeding: [Exceeding; 2],
    /// Largest size.
    pub largest: Bytes,
    /// Least and greatest rate of a PoP, towards each of the others.
    pub requests_per_hour: [f64; 2],
    /// Time for which an idle connection stays open.
    #[serde(with = "as_text")]
    pub keep_idle: Duration,
    /// Time from one round of probes to the next.
    #[serde(with = "as_text")]
    pub probe_every: Duration,
    /// Sizes of a round's probes.
    pub probes: Vec<Bytes>,
    /// Least and greatest share lost on a path, in per cent.
    pub loss_percent: [f64; 2],
    /// Segments in flight at most.
    pub window_most: Segments,
}

impl Traffic {
    /// Segment in which the paper counts sizes.
    const PAPER_SEGMENT: Bytes = Bytes::new(1500);

    /// Refuses traffic that makes no sense.
    ///
    /// # Errors
    /// When a value makes no sense; the error names its key.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |what: &str| Err(ScenarioError::Inconsistent { what: what.to_owned() });
        let ordered = |[least, most]: [f64; 2]| least >= 0.0 && least <= most && most.is_finite();
        if Sizes::through(self.exceeding, Self::PAPER_SEGMENT).is_none() {
            return wrong("traffic.exceeding: more segments, fewer files, shares between 0 and 1");
        }
        if !ordered(self.requests_per_hour) || self.requests_per_hour[0] <= 0.0 {
            return wrong("traffic.requests_per_hour: above zero, the least first");
        }
        if !ordered(self.loss_percent) || self.loss_percent[0] <= 0.0 || self.loss_percent[1] > 50.0
        {
            return wrong("traffic.loss_percent: above zero to 50, the least first");
        }
        if self.probe_every < Duration::from_secs(1) || self.largest < MSS {
            return wrong("traffic.probe_every, largest: at least 1 s and a segment");
        }
        Ok(())
    }

    /// Draws the size of a request.
    pub(super) fn size(&self, random: &mut Random) -> Bytes {
        let sizes = Sizes::through(self.exceeding, Self::PAPER_SEGMENT).expect("checked when read");
        sizes.draw(random).min(self.largest)
    }

    /// Draws the time to the next request; beyond any day where there are none.
    pub(super) fn next_request(&self, per_hour: f64, random: &mut Random) -> Duration {
        if per_hour <= 0.0 {
            return Duration::MAX / 4;
        }
        Duration::from_secs_f64(random.exponential(3600.0 / per_hour))
    }
}

#[cfg(test)]
pub(crate) mod tests_support {
    use super::*;

    /// Returns the traffic of `papers/scenarios/rt-cmax.toml`.
    pub(crate) fn traffic() -> Traffic {
        let text = include_str!("../../../scenarios/rt-cmax.toml");
        crate::numeric::fleet::cmax::Scenario::parse(text).unwrap().traffic
    }

    #[test]
    fn bad_traffic_is_refused_by_key() {
        let text = include_str!("../../../scenarios/rt-cmax.toml");
        let refused = |from: &str, to: &str| {
            let changed = text.replace(from, to);
            crate::numeric::fleet::cmax::Scenario::parse(&changed).unwrap_err().to_string()
        };
        assert!(refused("[2, 600]", "[600, 2]").contains("requests_per_hour"));
        assert!(refused("[0.001, 0.1]", "[0, 0.1]").contains("loss_percent"));
        assert!(refused("probe_every = \"1 h\"", "probe_every = \"1 ms\"").contains("probe_every"));
        assert!(refused("senders = 34", "senders = 35").contains("senders"));
    }
}
