//! The next value of one series, and what its forecasts were worth.

use super::{Predictor, predictors};

/// The forecast of a series' next value.
#[derive(Debug, Clone, PartialEq)]
pub struct NextValue {
    /// The forecast.
    pub value: f64,
    /// The predictor that made it: the one with the least error over the series' second half.
    pub predictor: Predictor,
    /// The forecasts of the values of the second half, each as it would have been made then: by
    /// the predictor that was best before it, from the values before it.
    pub back_test: Vec<f64>,
}

impl NextValue {
    /// Returns the sum of the absolute errors in the back-test; `values` is the same series.
    #[must_use]
    pub fn error(&self, values: &[f64]) -> f64 {
        let tested = values.iter().rev().zip(self.back_test.iter().rev());
        tested.map(|(came, forecast)| (came - forecast).abs()).sum()
    }
}

/// Forecasts the value after a series, as [`forecast`](super::forecast()) does the period after a
/// log; `None` for fewer than two values.
#[must_use]
pub fn next_value(values: &[f64]) -> Option<NextValue> {
    let periods = values.len();
    if periods < 2 {
        return None;
    }
    let tried: Vec<Tried> = predictors(first_tested(periods), periods, None)
        .unwrap_or_default()
        .into_iter()
        .map(|predictor| Tried::new(predictor, values))
        .collect();
    let at = |period: usize| {
        let from = first_tested(period);
        let candidates = tried.iter().filter(|tried| tried.begins <= from);
        // Among equals the first is taken, which is the simplest.
        let errors = candidates.map(|tried| (tried.error(values, from, period), tried));
        errors.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, best)| best)
    };
    let best = at(periods)?;
    let back_test =
        (first_tested(periods)..periods).filter_map(|period| Some(at(period)?.of(period)));
    Some(NextValue {
        value: best.of(periods),
        predictor: best.predictor,
        back_test: back_test.collect(),
    })
}

/// Returns the first period of a log of this length that predictors are tested on.
fn first_tested(periods: usize) -> usize {
    (periods / 2).max(1)
}

/// A predictor and its forecasts.
struct Tried {
    predictor: Predictor,
    /// The first period that it forecasts.
    begins: usize,
    guesses: Vec<f64>,
}

impl Tried {
    fn new(predictor: Predictor, values: &[f64]) -> Self {
        let begins = match predictor {
            Predictor::Seasonal { periods } => periods,
            Predictor::Last | Predictor::Weighted { .. } => 1,
        };
        Self { predictor, begins, guesses: predictor.rolling(values, begins) }
    }

    fn of(&self, period: usize) -> f64 {
        self.guesses[period - self.begins]
    }

    /// Returns the sum of its absolute errors from period `from` until before `to`.
    fn error(&self, values: &[f64], from: usize, to: usize) -> f64 {
        (from..to).map(|period| (self.of(period) - values[period]).abs()).sum()
    }
}

#[cfg(test)]
mod tests {
    use tradewind_units::{Bytes, Duration, SiteId, Timestamp};

    use super::*;
    use crate::forecast::{History, PastFlow, forecast};

    /// Returns what the forecaster of logs says of the same series.
    fn of_log(values: &[f64]) -> (Predictor, f64) {
        let site = |name: &str| SiteId::new(name).unwrap();
        let flow = |(index, value): (usize, &f64)| PastFlow {
            at: Timestamp::ZERO + Duration::from_secs(index as u64),
            source: site("a"),
            destination: site("b"),
            volume: Bytes::new(*value as u64),
        };
        let flows: Vec<PastFlow> = values.iter().enumerate().map(flow).collect();
        let forecast =
            forecast(&History::new(&flows, Duration::from_secs(1)).unwrap(), None).unwrap();
        let value = forecast.flows.first().map_or(0.0, |flow| flow.volume.as_u64() as f64);
        (forecast.predictor(), value)
    }

    #[test]
    fn next_value_and_its_back_test_are_those_of_a_log() {
        let weekly = |day: usize| [500.0, 500.0, 480.0, 510.0, 700.0, 20.0, 10.0][day % 7];
        let noise = |day: usize| ((day * 7919) % 101) as f64;
        let values: Vec<f64> = (0..30).map(|day| weekly(day) + noise(day)).collect();
        for length in 2..=values.len() {
            let values = &values[..length];
            let next = next_value(values).unwrap();
            let (predictor, value) = of_log(values);
            assert_eq!(next.predictor, predictor, "{length}");
            assert!((next.value - value).abs() <= 0.5, "{length}: {next:?}");
            let first = length - next.back_test.len();
            assert_eq!(first, (length / 2).max(1));
            for (index, forecast) in next.back_test.iter().enumerate() {
                let then = of_log(&values[..first + index]);
                assert!((forecast - then.1).abs() <= 0.5, "{length}, {index}: {then:?}");
            }
        }
        assert_eq!(next_value(&values).unwrap().predictor, Predictor::Seasonal { periods: 7 });
        assert_eq!(next_value(&values[..1]), None);
    }

    #[test]
    fn error_is_of_the_back_test() {
        let next = next_value(&[4.0, 4.0, 6.0, 4.0]).unwrap();
        assert_eq!(next.back_test, [4.0, 6.0]);
        assert_eq!(next.error(&[4.0, 4.0, 6.0, 4.0]), 4.0);
    }
}
