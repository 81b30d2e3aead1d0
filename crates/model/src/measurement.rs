//! A probe's results for a leg, as the planner reads them, and the leg that follows from them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::{Bandwidth, Bytes, Duration, Ratio, SiteId, time};

use crate::leg::{Leg, Loss};
use crate::tcp::LossResponse;

/// Share of `n * window / RTT` from which on a measured rate counts as limited by the probe's own
/// window. Chosen: a probe's ramp and acknowledgements cost a few percent.
const WINDOW_BOUND_SHARE: f64 = 0.8;

/// Method of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// TCP handshakes, and a TCP transfer for the rate.
    Tcp,
    /// TCP handshakes, and for the rate what connections of applications have shown.
    Passive,
    /// ICMP echo; no rate.
    Ping,
    /// Read from a table of someone else's.
    Imported,
    /// Not measured at all: the distance model's estimate.
    Distance,
}

/// Round-trip times of repeated probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RttSummary {
    /// The least: the path without queues.
    #[serde(with = "time::as_text")]
    #[schemars(with = "time::Written")]
    pub min: Duration,
    /// Half the probes took no longer.
    #[serde(with = "time::as_text")]
    #[schemars(with = "time::Written")]
    pub median: Duration,
    /// From the 10th to the 90th percentile.
    #[serde(with = "time::as_text")]
    #[schemars(with = "time::Written")]
    pub spread: Duration,
    /// Probes answered.
    pub count: u32,
}

impl RttSummary {
    /// Returns the summary of a single figure, as imports and the distance model have it.
    #[must_use]
    pub const fn single(rtt: Duration) -> Self {
        Self { min: rtt, median: rtt, spread: Duration::ZERO, count: 1 }
    }
}

/// The rate of a probe's transfer, after its start-up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateSummary {
    /// Payload rate of all connections together, in the steady part of the transfer.
    pub rate: Bandwidth,
    /// Connections used.
    pub connections: u32,
    /// Most bytes one connection had in flight, if the probe reported it.
    pub window: Option<Bytes>,
    /// Share of segments sent again, if the probe reported it.
    pub retransmitted: Option<Ratio>,
}

/// All that is known of one leg in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LegMeasurement {
    /// The sender.
    pub source: SiteId,
    /// The receiver.
    pub destination: SiteId,
    /// Round-trip times.
    pub rtt: RttSummary,
    /// The rate, if it was measured.
    pub rate: Option<RateSummary>,
    /// The method.
    pub method: Method,
    /// Time of the measurement, in milliseconds of Unix time; none for the distance model.
    pub measured_at_unix_ms: Option<u64>,
}

impl LegMeasurement {
    /// Returns the leg as measured: `template` with the measured RTT, and the measured rate as a
    /// cap.
    ///
    /// The rate caps the model's and never raises it. It applies to each connection when the leg
    /// has more of them than the probe had. A probe limited by its own window says nothing about a
    /// leg with a larger one, so its rate then caps nothing.
    #[must_use]
    pub fn leg(&self, template: Leg) -> Leg {
        let leg = Leg { rtt: self.rtt.min, ..template };
        let Some(measured) = self.rate else { return leg };
        if self.window_bound_below(&measured, &leg) {
            return leg;
        }
        if leg.connections > measured.connections {
            let each = measured.rate.scaled(1.0 / f64::from(measured.connections.max(1)));
            leg.capped_per_connection_at(each)
        } else {
            leg.capped_at(measured.rate)
        }
    }

    /// Returns the same as [`LegMeasurement::leg`], with the retransmitted share counted as random
    /// loss.
    #[must_use]
    pub fn lossy_leg(&self, template: Leg, response: LossResponse) -> Leg {
        let leg = self.leg(template);
        match self.rate.and_then(|rate| rate.retransmitted) {
            Some(ratio) if ratio > Ratio::ZERO => leg.with_loss(Loss { ratio, response }),
            _ => leg,
        }
    }

    /// Checks whether the probe's window, smaller than the leg's, explains the measured rate.
    fn window_bound_below(&self, measured: &RateSummary, leg: &Leg) -> bool {
        let Some(window) = measured.window else { return false };
        let probe = leg.with_window(window).with_connections(measured.connections);
        window < leg.window
            && measured.rate.as_mbps() >= WINDOW_BOUND_SHARE * probe.window_limit().as_mbps()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(mbps: f64, connections: u32, window: Option<u64>) -> LegMeasurement {
        LegMeasurement {
            source: SiteId::new("london").unwrap(),
            destination: SiteId::new("tokyo").unwrap(),
            rtt: RttSummary::single(Duration::from_millis(230)),
            rate: Some(RateSummary {
                rate: Bandwidth::from_mbps(mbps).unwrap(),
                connections,
                window: window.map(Bytes::new),
                retransmitted: Ratio::new(0.001).ok(),
            }),
            method: Method::Tcp,
            measured_at_unix_ms: Some(1_700_000_000_000),
        }
    }

    fn template() -> Leg {
        Leg::new(Duration::from_millis(1))
    }

    #[test]
    fn measured_rate_caps_modelled_rate() {
        let model_mbps = 100.0;
        assert_eq!(measured(80.0, 1, None).leg(template()).rate().as_mbps(), 80.0);
        assert_eq!(measured(300.0, 1, None).leg(template()).rate().as_mbps(), model_mbps);
        assert_eq!(measured(300.0, 1, None).leg(template()).rtt, Duration::from_millis(230));
    }

    #[test]
    fn measured_rate_applies_to_each_connection() {
        let leg = measured(80.0, 1, None).leg(template().with_connections(4));
        assert_eq!(leg.rate().as_mbps(), 320.0);
        let leg = measured(80.0, 4, None).leg(template());
        assert_eq!(leg.rate().as_mbps(), 80.0);
    }

    #[test]
    fn window_bound_probe_caps_no_larger_window() {
        let large = template().with_window(Bytes::new(500_000_000));
        let held_down = measured(96.0, 1, Some(2_875_000));
        assert_eq!(held_down.leg(large).cap, None);
        assert!(held_down.leg(template()).cap.is_some());
        let path_bound = measured(40.0, 1, Some(2_875_000));
        assert_eq!(path_bound.leg(large).rate().as_mbps(), 40.0);
    }

    #[test]
    fn retransmissions_count_as_loss_only_when_asked() {
        assert_eq!(measured(80.0, 1, None).leg(template()).loss, None);
        let lossy = measured(80.0, 1, None).lossy_leg(template(), LossResponse::Cubic);
        assert!(lossy.loss.is_some());
        assert!(lossy.rate().as_mbps() < 80.0);
    }
}
