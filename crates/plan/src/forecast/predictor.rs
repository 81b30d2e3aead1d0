//! Predictors of a period's volume from those before it.

use serde::{Deserialize, Serialize};

/// Weight of the newest season. Chosen: with noise the last season alone predicts worse than a
/// mean, and a multiple of the true season would win by chance.
const SEASONAL_ALPHA: f64 = 0.5;

/// A method of prediction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Predictor {
    /// The volume of the last period.
    Last,
    /// The mean of all periods, newer ones counting more: each older one counts `1 - alpha` times
    /// the one after it.
    Weighted {
        /// Weight of the newest period, above 0 and below 1.
        alpha: f64,
    },
    /// The mean of the same periods of all seasons, each older one counting half the one after it.
    Seasonal {
        /// Length of a season in periods.
        periods: usize,
    },
}

impl std::fmt::Display for Predictor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Last => f.pad("last period"),
            Self::Weighted { alpha } => f.pad(&format!("weighted, alpha {alpha}")),
            Self::Seasonal { periods } => f.pad(&format!("seasonal, {periods} periods")),
        }
    }
}

impl Predictor {
    /// Predicts every period from `from` on, each from the volumes before it; the last prediction
    /// is for the period after all of them. `from` is at least 1, and at least a season's length.
    pub(super) fn rolling(self, volumes: &[f64], from: usize) -> Vec<f64> {
        let ends = from..=volumes.len();
        match self {
            Self::Last => ends.map(|end| volumes[end - 1]).collect(),
            Self::Seasonal { periods } => {
                let mut levels = volumes[..periods].to_vec();
                let mut guesses = Vec::new();
                for end in periods..=volumes.len() {
                    let level = &mut levels[end % periods];
                    if end >= from {
                        guesses.push(*level);
                    }
                    if let Some(volume) = volumes.get(end) {
                        *level += SEASONAL_ALPHA * (volume - *level);
                    }
                }
                guesses
            }
            Self::Weighted { alpha } => {
                let mut level = volumes.first().copied().unwrap_or_default();
                let mut guesses = Vec::new();
                for (index, volume) in volumes.iter().enumerate() {
                    level += alpha * (volume - level);
                    if index + 1 >= from {
                        guesses.push(level);
                    }
                }
                guesses
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictors_use_earlier_periods() {
        let volumes = [8.0, 4.0, 0.0, 16.0];
        assert_eq!(Predictor::Last.rolling(&volumes, 2), [4.0, 0.0, 16.0]);
        assert_eq!(Predictor::Seasonal { periods: 2 }.rolling(&volumes, 2), [8.0, 4.0, 4.0]);
        let weighted = Predictor::Weighted { alpha: 0.5 };
        assert_eq!(weighted.rolling(&volumes, 1), [8.0, 6.0, 3.0, 9.5]);
        assert_eq!(weighted.rolling(&volumes, 4), [9.5]);
    }
}
