//! The result of a demo as data, and its presentations.
//!
//! [`table`] and [`html`] only render the [`DemoReport`], so the table, the JSON file and the page
//! can never disagree.

pub mod html;
mod map;
pub mod table;

use serde::{Deserialize, Serialize};
use tradewind_model::statistics::median_or_nan;

/// The version of the schema. It is raised when a field is renamed or its meaning changes; new
/// fields do not raise it.
pub const SCHEMA_VERSION: u32 = 2;

/// The outcome of one run of the demo `[CP VII-C]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DemoReport {
    /// The version of the schema, [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the experiment.
    pub name: String,
    /// Seed of the emulated network.
    pub seed: u64,
    /// The run's assumptions and shortenings, a sentence each.
    pub assumptions: Vec<String>,
    /// `true` when the lab kept time throughout and flows took their paths; otherwise
    /// [`DemoReport::invalid_because`] has the reasons.
    pub valid: bool,
    /// Broken bounds of the validity record, and flows that took other paths, a sentence each.
    pub invalid_because: Vec<String>,
    /// The flows.
    pub flows: Vec<FlowResult>,
    /// The relays that ran.
    pub relays: Vec<RelayResult>,
    /// The measured rates, in the order of their pairs.
    pub measured: Vec<MeasuredLeg>,
    /// Sites and regions, for the map.
    pub places: Vec<MapPoint>,
    /// Price of the plan for a day of nominal volumes, machines included, in dollars.
    pub cost_usd: f64,
    /// Budget of a day, in dollars.
    pub budget_usd: f64,
    /// Total measured FCT direct over total measured FCT planned.
    pub acceleration: f64,
    /// The same ratio of the predictions, made before any transfer.
    pub acceleration_predicted: f64,
    /// The median over all carried transfers of |measured - predicted| / predicted.
    pub prediction_error_median: f64,
    /// The largest value over all carried transfers of |measured - predicted| / predicted.
    pub prediction_error_most: f64,
    /// The durations of the steps.
    pub steps: Vec<StepTime>,
}

/// One flow, direct and over its planned path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowResult {
    /// Source site.
    pub source: String,
    /// Destination site.
    pub destination: String,
    /// Volume carried, in bytes.
    pub bytes: u64,
    /// Volume that was planned and priced, in bytes.
    pub bytes_nominal: u64,
    /// Regions of the relays in order; empty when direct is best.
    pub path: Vec<String>,
    /// Measured FCT of the direct transfer, in seconds.
    pub fct_direct_s: f64,
    /// Measured FCT over the path, in seconds; that of the direct transfer when the path is empty.
    pub fct_planned_s: f64,
    /// Predicted FCT of the direct transfer, in seconds.
    pub predicted_direct_s: f64,
    /// Predicted FCT over the path, in seconds.
    pub predicted_planned_s: f64,
    /// The egress cost of this flow at its nominal volume, in dollars, without the set-up of
    /// relays.
    pub egress_usd: f64,
    /// `true` when the SHA-256 of the received data equals that of the sent data, in both
    /// transfers.
    pub sha256_ok: bool,
    /// `true` when the lab kept time during both transfers, and the latter took its path.
    pub valid: bool,
}

/// One measured rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLeg {
    /// The sending site or region.
    pub source: String,
    /// The receiving site or region.
    pub destination: String,
    /// Least round-trip time, in milliseconds.
    pub rtt_ms: f64,
    /// Steady rate of one connection, in megabits of payload per second.
    pub rate_mbps: f64,
    /// The bound of the rate: `window` or `capacity`.
    pub bound_by: String,
}

/// One relay that ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelayResult {
    /// Its region.
    pub region: String,
    /// Instances there.
    pub count: u32,
    /// Flows that passed it.
    pub flows: u32,
}

/// A point of the map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MapPoint {
    /// Site or region.
    pub name: String,
    /// Degrees north.
    pub latitude_deg: f64,
    /// Degrees east.
    pub longitude_deg: f64,
    /// Its role in this run.
    pub role: Role,
}

/// The role of a place in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// An end point of flows.
    Site,
    /// A region where a relay ran.
    Relay,
    /// A region that was measured and not chosen.
    Candidate,
}

/// The duration of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    /// Its name.
    pub step: String,
    /// Its duration, in seconds.
    pub seconds: f64,
}

impl FlowResult {
    /// Returns the measured FCT direct over that of the planned path.
    #[must_use]
    pub fn acceleration(&self) -> f64 {
        self.fct_direct_s / self.fct_planned_s
    }

    /// Returns |measured - predicted| / predicted of every transfer of this flow: direct, then
    /// planned if it has a path.
    pub fn prediction_errors(&self) -> impl Iterator<Item = f64> {
        let error = |measured: f64, predicted: f64| (measured - predicted).abs() / predicted;
        let direct = error(self.fct_direct_s, self.predicted_direct_s);
        let planned =
            (!self.path.is_empty()).then(|| error(self.fct_planned_s, self.predicted_planned_s));
        std::iter::once(direct).chain(planned)
    }
}

impl DemoReport {
    /// Returns the sums of measured direct, measured planned, predicted direct and predicted
    /// planned FCT, in seconds.
    #[must_use]
    pub fn totals(&self) -> [f64; 4] {
        let sum = |of: fn(&FlowResult) -> f64| self.flows.iter().map(of).sum::<f64>();
        [
            sum(|flow| flow.fct_direct_s),
            sum(|flow| flow.fct_planned_s),
            sum(|flow| flow.predicted_direct_s),
            sum(|flow| flow.predicted_planned_s),
        ]
    }

    /// Returns the reasons why the run is invalid, each once with its count.
    #[must_use]
    pub fn reasons(&self) -> String {
        let mut counted: Vec<(&str, usize)> = Vec::new();
        for reason in &self.invalid_because {
            match counted.iter_mut().find(|(known, _)| known == reason) {
                Some((_, times)) => *times += 1,
                None => counted.push((reason, 1)),
            }
        }
        let words = counted.iter().map(|(reason, times)| match times {
            1 => (*reason).to_owned(),
            _ => format!("{reason} ({times} times)"),
        });
        words.collect::<Vec<_>>().join("; ")
    }

    /// Computes the figures that follow from the flows.
    pub fn summarise(&mut self) {
        let [direct, planned, predicted_direct, predicted_planned] = self.totals();
        self.acceleration = direct / planned;
        self.acceleration_predicted = predicted_direct / predicted_planned;
        let errors: Vec<f64> = self.flows.iter().flat_map(FlowResult::prediction_errors).collect();
        self.prediction_error_median = median_or_nan(&errors);
        self.prediction_error_most = errors.iter().copied().fold(f64::NAN, f64::max);
        self.valid = self.flows.iter().all(|flow| flow.valid) && self.invalid_because.is_empty();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> DemoReport {
        let flow = |source: &str, destination: &str, path: &[&str], direct, planned| FlowResult {
            source: source.into(),
            destination: destination.into(),
            bytes: 64_000_000,
            bytes_nominal: 2_000_000_000,
            path: path.iter().map(ToString::to_string).collect(),
            fct_direct_s: direct,
            fct_planned_s: planned,
            predicted_direct_s: direct * 0.9,
            predicted_planned_s: planned * 1.1,
            egress_usd: 0.32,
            sha256_ok: true,
            valid: true,
        };
        let place = |name: &str, latitude_deg, longitude_deg, role| MapPoint {
            name: name.into(),
            latitude_deg,
            longitude_deg,
            role,
        };
        let mut report = DemoReport {
            schema_version: SCHEMA_VERSION,
            name: "cp-real".into(),
            seed: 1,
            assumptions: vec!["volumes are <scaled>".into()],
            valid: false,
            invalid_because: vec![],
            flows: vec![
                flow("tokyo", "london", &["gcp:asia-northeast1", "gcp:europe-west2"], 8.0, 2.0),
                flow("london", "hamina", &[], 1.0, 1.0),
            ],
            relays: vec![RelayResult { region: "gcp:asia-northeast1".into(), count: 1, flows: 1 }],
            measured: vec![],
            places: vec![
                place("tokyo", 35.7, 139.7, Role::Site),
                place("london", 51.5, -0.1, Role::Site),
                place("hamina", 60.6, 27.2, Role::Site),
                place("gcp:asia-northeast1", 35.6, 139.9, Role::Relay),
                place("gcp:europe-west2", 51.4, -0.3, Role::Relay),
                place("gcp:us-west1", 45.6, -121.2, Role::Candidate),
            ],
            cost_usd: 1.82,
            budget_usd: 6.0,
            acceleration: 0.0,
            acceleration_predicted: 0.0,
            prediction_error_median: 0.0,
            prediction_error_most: 0.0,
            steps: vec![],
        };
        report.summarise();
        report
    }

    #[test]
    fn the_totals_follow_from_the_flows() {
        let report = sample();
        assert_eq!(report.totals()[..2], [9.0, 3.0]);
        assert!((report.acceleration - 3.0).abs() < 1e-12);
        assert!(report.valid);
        // Errors: 8/7.2-1, 2/2.2-1, 1/0.9-1: a flow without a path counts once.
        assert!((report.prediction_error_median - 1.0 / 9.0).abs() < 1e-9);
    }

    #[test]
    fn repeated_reasons_are_listed_once() {
        let mut report = sample();
        report.invalid_because = ["busy", "late", "busy", "busy"].map(str::to_owned).to_vec();
        assert_eq!(report.reasons(), "busy (3 times); late");
    }

    #[test]
    fn the_json_survives_a_round_trip() {
        let report = sample();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<DemoReport>(&json).unwrap(), report);
    }
}
