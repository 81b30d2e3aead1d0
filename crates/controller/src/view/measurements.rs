//! The bodies of measurements.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_control::imported::Imported;
use tradewind_model::measurement::{LegMeasurement, Method};
use tradewind_units::time::as_millis_f64;
use tradewind_units::{Duration, SiteId};

use super::SCHEMA_VERSION;
use crate::store::MeasuredOnce;

/// The newest measurement of each leg.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurements {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The legs.
    pub legs: Vec<LegMeasurement>,
}

/// The measurements of one leg in the last week.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The sender.
    pub from: SiteId,
    /// The receiver.
    pub to: SiteId,
    /// The measurements, oldest first.
    pub measured: Vec<MeasuredOnce>,
}

/// Measurements of others to take in: all of them or none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// The measurements, 1 to [`MAX_IMPORTED`](tradewind_control::imported::MAX_IMPORTED).
    pub measurements: Vec<Imported>,
}

/// The newest measurement of each leg, or the model's estimate, in columns: for charts of many
/// legs, which read and draw numbers in a fraction of the time that [`Measurements`] take. All
/// columns have the same length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasurementColumns {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The sites and regions at the ends of the legs, by name.
    pub places: Vec<SiteId>,
    /// The sender of each leg, as its index in `places`.
    pub source: Vec<u32>,
    /// The receiver, as its index in `places`.
    pub destination: Vec<u32>,
    /// The least round-trip time, in milliseconds.
    pub rtt_min_ms: Vec<f64>,
    /// The median, in milliseconds.
    pub rtt_median_ms: Vec<f64>,
    /// The rate, in Mbit/s, where it was measured.
    pub rate_mbps: Vec<Option<f64>>,
    /// The share of segments sent again, where it was measured.
    pub retransmitted: Vec<Option<f64>>,
    /// The method.
    pub method: Vec<Method>,
    /// Time of the measurement, in milliseconds of Unix time; none for the distance model.
    pub measured_at_unix_ms: Vec<Option<u64>>,
}

impl MeasurementColumns {
    /// Returns the columns of these legs, in their order.
    #[must_use]
    pub fn of(legs: &[&LegMeasurement]) -> Self {
        let ends = legs.iter().flat_map(|leg| [&leg.source, &leg.destination]);
        let places: BTreeSet<&SiteId> = ends.collect();
        let places: Vec<SiteId> = places.into_iter().cloned().collect();
        let index = |of: &SiteId| {
            let index = places.binary_search(of).expect("all ends are places");
            u32::try_from(index).expect("there are fewer than 2^32 places")
        };
        Self {
            schema_version: SCHEMA_VERSION,
            source: legs.iter().map(|leg| index(&leg.source)).collect(),
            destination: legs.iter().map(|leg| index(&leg.destination)).collect(),
            rtt_min_ms: legs.iter().map(|leg| millis(leg.rtt.min)).collect(),
            rtt_median_ms: legs.iter().map(|leg| millis(leg.rtt.median)).collect(),
            rate_mbps: legs.iter().map(|leg| Some(leg.rate?.rate.as_mbps())).collect(),
            retransmitted: legs.iter().map(|leg| Some(leg.rate?.retransmitted?.as_f64())).collect(),
            method: legs.iter().map(|leg| leg.method).collect(),
            measured_at_unix_ms: legs.iter().map(|leg| leg.measured_at_unix_ms).collect(),
            places,
        }
    }
}

/// Returns the span in milliseconds, to the microsecond.
fn millis(span: Duration) -> f64 {
    (as_millis_f64(span) * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use tradewind_model::measurement::{RateSummary, RttSummary};
    use tradewind_units::{Bandwidth, Ratio};

    use super::*;

    #[test]
    fn columns_have_all_of_each_leg() {
        let modelled = LegMeasurement {
            source: "office".parse().unwrap(),
            destination: "gcp:us-east4".parse().unwrap(),
            rtt: RttSummary::single(Duration::from_micros(48_300)),
            rate: None,
            method: Method::Distance,
            measured_at_unix_ms: None,
        };
        let rate = RateSummary {
            rate: Bandwidth::from_mbps(84.5).unwrap(),
            connections: 2,
            window: None,
            retransmitted: Some(Ratio::new(0.01).unwrap()),
        };
        let measured = LegMeasurement {
            source: "gcp:us-east4".parse().unwrap(),
            destination: "berlin".parse().unwrap(),
            rtt: RttSummary { median: Duration::from_millis(50), ..modelled.rtt },
            rate: Some(rate),
            method: Method::Tcp,
            measured_at_unix_ms: Some(7),
        };
        let expected = MeasurementColumns {
            schema_version: SCHEMA_VERSION,
            places: ["berlin", "gcp:us-east4", "office"].map(|it| it.parse().unwrap()).to_vec(),
            source: vec![2, 1],
            destination: vec![1, 0],
            rtt_min_ms: vec![48.3, 48.3],
            rtt_median_ms: vec![48.3, 50.0],
            rate_mbps: vec![None, Some(84.5)],
            retransmitted: vec![None, Some(0.01)],
            method: vec![Method::Distance, Method::Tcp],
            measured_at_unix_ms: vec![None, Some(7)],
        };
        assert_eq!(MeasurementColumns::of(&[&modelled, &measured]), expected);
    }
}
