//! Statistics of repeated measurements: means and ratios with confidence intervals, medians.

use serde::Serialize;

/// A mean and its 95 % confidence interval, by Student's t.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeanEstimate {
    /// The mean.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Estimates the mean that `values` are drawn from; `None` without two values.
#[must_use]
pub fn mean(values: &[f64]) -> Option<MeanEstimate> {
    if values.len() < 2 {
        return None;
    }
    let (mean, half) = mean_and_half_width(values);
    Some(MeanEstimate { mean, low: mean - half, high: mean + half })
}

/// A ratio of two paired series: the geometric mean of the pairs' ratios and its 95 % confidence
/// interval, by Student's t on their logarithms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RatioEstimate {
    /// The geometric mean of the ratios.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of pairs.
    pub pairs: usize,
}

/// Estimates the ratio of `ours` to `theirs`, pair by pair; `None` without two pairs.
#[must_use]
pub fn ratio(ours: &[f64], theirs: &[f64]) -> Option<RatioEstimate> {
    let logs: Vec<f64> = ours.iter().zip(theirs).map(|(one, other)| (one / other).ln()).collect();
    let logs: Vec<f64> = logs.into_iter().filter(|log| log.is_finite()).collect();
    if logs.len() < 2 {
        return None;
    }
    let (mean, half) = mean_and_half_width(&logs);
    let pairs = logs.len();
    Some(RatioEstimate {
        ratio: mean.exp(),
        low: (mean - half).exp(),
        high: (mean + half).exp(),
        pairs,
    })
}

/// Returns the middle value, or the mean of the middle two; 0 for none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Returns the same, and NaN for none: where nothing was measured, no bound may hold.
#[must_use]
pub fn median_or_nan(values: &[f64]) -> f64 {
    if values.is_empty() { f64::NAN } else { median(values) }
}

/// Returns an interval that holds the median that `values` are drawn from with a chance of at least
/// 95 %, whatever their distribution: the narrowest pair of order statistics for which that is so.
/// `None` for fewer than six values, of which no pair does.
#[must_use]
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let count = values.len();
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    // The chance that fewer than `place + 1` of the values lie below the median, which halves them.
    let (mut outside, mut chance) = (0.0, 0.5_f64.powi(i32::try_from(count).ok()?));
    let mut interval = None;
    for place in 0..count / 2 {
        outside += chance;
        if 2.0 * outside > 0.05 {
            break;
        }
        interval = Some((sorted[place], sorted[count - 1 - place]));
        chance *= (count - place) as f64 / (place + 1) as f64;
    }
    interval
}

fn mean_and_half_width(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    let deviation = (square / (count - 1.0)).sqrt();
    (mean, t_975(count - 1.0) * deviation / count.sqrt())
}

/// Returns the 97.5 % quantile of Student's t with `freedom` degrees of freedom, at least 1: exact
/// values up to 10 and straight lines in the reciprocal between them, then the Cornish-Fisher
/// expansion around the normal one (Abramowitz and Stegun, 26.7.5; off by less than 0.001 there).
#[must_use]
pub fn t_975(freedom: f64) -> f64 {
    const EXACT: [f64; 10] =
        [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    const NORMAL: f64 = 1.959_964;
    let freedom = freedom.max(1.0);
    let whole = freedom as usize;
    if let Some(below) = EXACT.get(whole - 1) {
        let above = EXACT.get(whole).copied().unwrap_or_else(|| t_975(whole as f64 + 1.0));
        let (from, to) = (1.0 / whole as f64, 1.0 / (whole as f64 + 1.0));
        return below + (above - below) * (from - 1.0 / freedom) / (from - to);
    }
    let (z, n) = (NORMAL, freedom);
    z + (z.powi(3) + z) / (4.0 * n)
        + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
        + (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / (384.0 * n.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_ratio_has_a_narrow_interval() {
        let estimate = ratio(&[2.0, 4.0, 6.0], &[1.0, 2.0, 3.0]).unwrap();
        assert!((estimate.ratio - 2.0).abs() < 1e-12);
        assert!((estimate.high - estimate.low).abs() < 1e-9);
    }

    #[test]
    fn interval_is_that_of_students_t() {
        // Logs 0 and 1: mean 0.5, deviation 0.7071, half width 12.706 * 0.5.
        let estimate = ratio(&[1.0, std::f64::consts::E], &[1.0, 1.0]).unwrap();
        assert!((estimate.ratio.ln() - 0.5).abs() < 1e-9);
        assert!((estimate.high.ln() - 0.5 - 6.353).abs() < 1e-3);
        assert!(ratio(&[1.0], &[1.0]).is_none());
        for (freedom, exact) in
            [(1.0, 12.706), (2.0, 4.303), (10.0, 2.228), (11.0, 2.201), (30.0, 2.042)]
        {
            assert!((t_975(freedom) - exact).abs() < 1e-3, "{freedom}");
        }
        // By numeric integration of the density.
        assert!((t_975(4.5) - 2.659).abs() < 0.01);
        assert!(t_975(0.1) == t_975(1.0) && t_975(10.5) < t_975(10.0));
    }

    #[test]
    fn mean_has_students_interval() {
        let estimate = mean(&[0.0, 1.0]).unwrap();
        assert!((estimate.mean - 0.5).abs() < 1e-12);
        assert!((estimate.high - 0.5 - 6.353).abs() < 1e-3);
        assert_eq!(mean(&[1.0]), None);
    }

    #[test]
    fn medians_interval_is_that_of_the_sign_test() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        // With ten values, the second and the ninth: 1 - 2 * 11 / 1024 = 97.9 %.
        assert_eq!(median_interval(&values), Some((2.0, 9.0)));
        assert_eq!(median_interval(&values[..6]), Some((1.0, 6.0)));
        assert_eq!(median_interval(&values[..5]), None);
        let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(median_interval(&twenty), Some((6.0, 15.0)));
    }

    #[test]
    fn medians_of_odd_and_even_series() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
