//! How far measured speedups were from those that plans had predicted: the interval that a
//! prediction has.
//!
//! The model knows of round trips, rates and windows, and not of what else the Internet does. So
//! its interval is taken from its own past: eight of ten flows and days were within.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::{FlowId, Timestamp};

use crate::gain::{self, FlowGain};
use crate::state::State;

/// Fewest flows and days of which an interval is told. Chosen: of fewer than ten, its ends would be
/// beyond the extremes.
const MIN_DAYS: usize = 10;
/// The part of them that is beyond either end.
const BEYOND: f64 = 0.1;

/// The measured speedup divided by the predicted one, over flows and days: their interval from the
/// 10th to the 90th percentile. The chance in what was measured makes it wider, never narrower.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PredictionError {
    /// The 10th percentile.
    pub low: f64,
    /// The 90th percentile.
    pub high: f64,
    /// The flows and days of which both are known.
    pub days: usize,
}

/// Returns the interval of these flows and days; `None` of fewer than ten that were compared.
#[must_use]
pub fn of(gains: &[FlowGain]) -> Option<PredictionError> {
    let quotient = |gain: &FlowGain| Some(gain.speedup?.value / gain.speedup_predicted?);
    let mut quotients: Vec<f64> = gains.iter().filter_map(quotient).collect();
    quotients.sort_by(f64::total_cmp);
    let days = quotients.len();
    // So many of them, or one part of one, are beyond an end.
    let beyond = (BEYOND * days as f64) as usize;
    (days >= MIN_DAYS).then(|| PredictionError {
        low: quotients[beyond],
        high: quotients[days - 1 - beyond],
        days,
    })
}

/// Returns the interval of one flow in the last `days`: by its own days if they suffice, else by
/// those of all flows.
#[must_use]
pub fn of_flow(state: &State, now: Timestamp, days: u64, flow: &FlowId) -> Option<PredictionError> {
    let own = of(&gain::of_flow(state, now, days, flow));
    own.or_else(|| of(&gain::flows(state, now, days)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::DAY_MS;
    use crate::event::Event;
    use crate::gain::Estimate;
    use crate::message::Arm;
    use crate::testing::{Bench, PATH, tally};

    #[test]
    fn eight_of_ten_are_within() {
        let mut bench = Bench::in_service();
        bench.sessions(1, 1, vec![tally(Arm::Overlay, &PATH, &[1.0; 5])]);
        let one = gain::flows(bench.state(), bench.time(), 1).pop().unwrap();
        let with = |speedup: Option<f64>, predicted: Option<f64>| FlowGain {
            speedup: speedup.map(|value| Estimate { value, low: value, high: value }),
            speedup_predicted: predicted,
            ..one.clone()
        };
        let mut gains: Vec<FlowGain> =
            (1..=9).rev().map(|n| with(Some(2.0 * f64::from(n)), Some(2.0))).collect();
        gains.push(with(None, Some(2.0)));
        gains.push(with(Some(3.0), None));
        assert_eq!(of(&gains), None, "nine are known");
        gains.push(with(Some(20.0), Some(2.0)));
        let expected = PredictionError { low: 2.0, high: 9.0, days: 10 };
        assert_eq!(of(&gains), Some(expected));
        gains.extend((11..=40).map(|n| with(Some(2.0 * f64::from(n)), Some(2.0))));
        let expected = PredictionError { low: 5.0, high: 36.0, days: 40 };
        assert_eq!(of(&gains), Some(expected));
    }

    #[test]
    fn flow_with_few_days_has_the_interval_of_all() {
        let mut bench = Bench::in_service();
        let (state, now) = (bench.state().clone(), bench.time());
        let flow = state.flows.keys().next().unwrap().clone();
        assert_eq!(of_flow(&state, now, 31, &flow), None);
        for day in 1..=10 {
            let over_relays = tally(Arm::Overlay, &PATH, &[1.0, 1.1, 1.0, 1.1, 1.0]);
            let direct = tally(Arm::Control, &[], &[2.0, 2.1, 2.0, 2.1, 2.0]);
            bench.sessions(1, day, vec![over_relays, direct]);
            bench.now += DAY_MS;
            bench.event(Event::Tick);
        }
        let (state, now) = (bench.state(), bench.time());
        let own = of_flow(state, now, 31, &flow).unwrap();
        assert_eq!(own.days, 10);
        assert!(own.low <= own.high && own.low > 0.0, "{own:?}");
        assert_eq!(of_flow(state, now, 31, &"unknown".parse().unwrap()), Some(own));
        assert_eq!(of_flow(state, now, 9, &flow), None);
    }
}
