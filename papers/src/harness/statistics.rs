//! Means, quantiles and correlations of samples.

/// Returns the arithmetic mean; NaN of none.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns a quantile, interpolated between two values; 0 without any.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = share * sorted.len().saturating_sub(1) as f64;
    let value = |index: f64| sorted.get(index as usize).copied().unwrap_or_default();
    let (below, above) = (value(at.floor()), value(at.ceil()));
    // Also covers two infinite values.
    if below == above { below } else { below + (above - below) * at.fract() }
}

/// Returns Pearson's coefficient of pairs; 0 where one side never varies.
pub(crate) fn correlation(pairs: &[(f64, f64)]) -> f64 {
    let (first, second): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (x, y) = (mean(&first), mean(&second));
    let covariance: f64 = pairs.iter().map(|(a, b)| (a - x) * (b - y)).sum();
    let spread = |values: &[f64], mean: f64| -> f64 {
        values.iter().map(|value| (value - mean).powi(2)).sum()
    };
    let scale = (spread(&first, x) * spread(&second, y)).sqrt();
    if scale > 0.0 { covariance / scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_values() {
        assert_eq!(quantile(&[4.0, 1.0, 2.0, 3.0], 0.5), 2.5);
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[7.0], 0.9), 7.0);
        let infinite = [1.0, f64::INFINITY, f64::INFINITY];
        assert_eq!(
            [0.0, 0.2, 0.9].map(|share| quantile(&infinite, share)),
            [1.0, infinite[1], infinite[1]]
        );
    }

    #[test]
    fn correlation_of_line_and_constant() {
        assert!((correlation(&[(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]) - 1.0).abs() < 1e-12);
        assert!((correlation(&[(1.0, 2.0), (2.0, 1.0)]) + 1.0).abs() < 1e-12);
        assert_eq!(correlation(&[(1.0, 2.0), (2.0, 2.0)]), 0.0);
    }
}
