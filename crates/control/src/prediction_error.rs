//! The error of predicted speedups against measured ones, which gives a prediction its interval.
//!
//! The model knows of round trips, rates and windows, and not of what else the Internet does. So
//! its interval is taken from how far off it was before.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gain::FlowGain;

/// Fewest flows and days of which an interval is told: the next one is between the least and the
/// greatest of nine in eight of ten cases.
const MIN_COMPARED: usize = 9;

/// The measured speedup divided by the predicted one, over flows and days: the interval in which
/// the next one is in eight of ten cases, the chance in what is measured included.
///
/// Source: the order statistics of exchangeable numbers (conformal prediction): of `n` of them, the
/// next is above the `k`-th least in `(n + 1 - k) / (n + 1)` of all cases.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PredictionError {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The number of flows and days of which both are known.
    pub compared: usize,
}

/// Returns the interval by these flows and days; `None` if fewer than nine were compared.
#[must_use]
pub fn of(gains: &[FlowGain]) -> Option<PredictionError> {
    let quotient = |gain: &FlowGain| Some(gain.speedup?.value / gain.speedup_predicted?);
    let mut quotients: Vec<f64> = gains.iter().filter_map(quotient).collect();
    quotients.sort_by(f64::total_cmp);
    let compared = quotients.len();
    (compared >= MIN_COMPARED).then(|| {
        // A tenth is beyond either end.
        let end = (compared + 1) / 10 - 1;
        let (low, high) = (quotients[end], quotients[compared - 1 - end]);
        PredictionError { low, high, compared }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gain::{self, Estimate};
    use crate::message::Arm;
    use crate::testing::{Bench, PATH, tally};

    /// Returns a flow's day.
    fn day() -> FlowGain {
        let mut bench = Bench::in_service();
        bench.sessions(1, 1, vec![tally(Arm::Overlay, &PATH, &[1.0; 5])]);
        gain::flows(bench.state(), bench.time(), 1).pop().unwrap()
    }

    /// Returns the same with another speedup and prediction.
    fn with(day: &FlowGain, speedup: Option<f64>, predicted: Option<f64>) -> FlowGain {
        FlowGain {
            speedup: speedup.map(|value| Estimate { value, low: value, high: value }),
            speedup_predicted: predicted,
            ..day.clone()
        }
    }

    #[test]
    fn eight_of_ten_are_within() {
        let day = day();
        let measured = |n: u32| with(&day, Some(2.0 * f64::from(n)), Some(2.0));
        let mut gains: Vec<FlowGain> = (1..=8).rev().map(measured).collect();
        gains.push(with(&day, None, Some(2.0)));
        gains.push(with(&day, Some(3.0), None));
        assert_eq!(of(&gains), None, "eight are known");
        gains.push(measured(9));
        assert_eq!(of(&gains), Some(PredictionError { low: 1.0, high: 9.0, compared: 9 }));
        gains.extend((10..=39).map(measured));
        assert_eq!(of(&gains), Some(PredictionError { low: 4.0, high: 36.0, compared: 39 }));
    }

    #[test]
    fn next_one_is_within_in_eight_of_ten_cases() {
        let day = day();
        let measured = |quotient: f64| with(&day, Some(quotient), Some(1.0));
        // Each rank of the next one among them is as likely.
        for known in [9_u32, 19, 29, 99] {
            let numbers: Vec<f64> = (0..=known).map(f64::from).collect();
            let is_within = |next: &usize| {
                let mut others = numbers.clone();
                let next = others.remove(*next);
                let interval = of(&others.into_iter().map(measured).collect::<Vec<_>>()).unwrap();
                (interval.low..=interval.high).contains(&next)
            };
            let within = (0..numbers.len()).filter(is_within).count();
            assert_eq!(within * 10, numbers.len() * 8, "of {known}");
        }
    }
}
