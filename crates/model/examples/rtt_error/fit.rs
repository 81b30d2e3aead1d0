//! Fits the cable map's coefficients, and a straight line to compare with, by the same rule.
//!
//! Both minimise the mean of `|ln(predicted / measured)|`, by steps along one coefficient at a time
//! that are halved when none helps. No randomness: the same table gives the same coefficients.

use tradewind_model::geo::{Coefficients, distance_km};
use tradewind_model::{Coordinates, RttModel};

use crate::table::Pair;

/// A straight line from great-circle distance to RTT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    pub(crate) fixed_ms: f64,
    pub ms_per_1000_km: f64,
}

impl Line {
    pub(crate) fn rtt_ms(self, a: Coordinates, b: Coordinates) -> f64 {
        self.fixed_ms + self.ms_per_1000_km * distance_km(a, b) / 1000.0
    }
}

pub(crate) fn model(pairs: &[&Pair]) -> Coefficients {
    let start = [1.3, 1.2, 30.0, 2.0];
    let steps = [0.1, 0.1, 20.0, 0.5];
    let of = |x: &[f64]| Coefficients {
        land_detour: x[0],
        sea_detour: x[1],
        city_km: x[2],
        fixed_ms: x[3],
    };
    let objective = |x: &[f64]| {
        let model = RttModel::new(of(x));
        mean_log_error(pairs, |a, b| model.rtt_between(a, b).as_secs_f64() * 1e3)
    };
    of(&descend(&start, &steps, &[1.0, 1.0, 0.0, 0.1], objective))
}

pub(crate) fn line(pairs: &[&Pair]) -> Line {
    let of = |x: &[f64]| Line { fixed_ms: x[0], ms_per_1000_km: x[1] };
    let objective = |x: &[f64]| mean_log_error(pairs, |a, b| of(x).rtt_ms(a, b));
    of(&descend(&[5.0, 15.0], &[2.0, 2.0], &[0.1, 1.0], objective))
}

/// Returns the mean of `|ln(predicted / measured)|` over all pairs. Pairs of the same places are
/// neighbours and predicted once.
fn mean_log_error(pairs: &[&Pair], predict: impl Fn(Coordinates, Coordinates) -> f64) -> f64 {
    let mut sum = 0.0;
    let mut last: Option<((Coordinates, Coordinates), f64)> = None;
    for pair in pairs {
        let predicted = match last {
            Some((ends, predicted)) if ends == pair.ends => predicted,
            _ => predict(pair.ends.0, pair.ends.1),
        };
        last = Some((pair.ends, predicted));
        sum += (predicted / pair.measured_ms).ln().abs();
    }
    sum / pairs.len() as f64
}

fn descend(
    start: &[f64],
    steps: &[f64],
    least: &[f64],
    objective: impl Fn(&[f64]) -> f64,
) -> Vec<f64> {
    let mut at = start.to_vec();
    let mut best = objective(&at);
    for halvings in 0..6 {
        let scale = 0.5f64.powi(halvings);
        loop {
            let mut moved = false;
            for index in 0..at.len() {
                for sign in [1.0, -1.0] {
                    let mut candidate = at.clone();
                    candidate[index] =
                        (candidate[index] + sign * scale * steps[index]).max(least[index]);
                    let value = objective(&candidate);
                    if value < best - 1e-9 {
                        (at, best, moved) = (candidate, value, true);
                    }
                }
            }
            if !moved {
                break;
            }
        }
    }
    at
}
