//! Ratio of sums over paired runs, with bounds by resampling the pairs.
//!
//! Counts of retransmissions are often zero in single runs, so the ratio is that of the sums, and
//! its interval is the bootstrap's: pairs drawn again with replacement, two thousand times, from a
//! fixed seed.

use crate::harness::{Random, quantile};

/// Number of resamplings. Chosen: the 97.5 % quantile then stands on fifty values.
const DRAWS: usize = 2000;
/// Seed of the resamplings; the same runs always give the same bounds.
const SEED: u64 = 1;

/// A ratio of sums with its bounds of 95 %, two-sided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    /// The first's sum over the second's.
    pub(crate) ratio: f64,
    /// Lower bound; none of a single pair.
    pub(crate) low: Option<f64>,
    /// Upper bound; infinite where too few of the second's are above zero for one.
    pub(crate) high: Option<f64>,
}

/// Returns the ratio of the sums of `ours` and `theirs`, which are pairs; none where theirs sum up
/// to zero. A resampling in which only theirs do counts as infinite; one in which both do is left
/// out.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> Option<Ratio> {
    let pairs: Vec<(f64, f64)> = ours.iter().copied().zip(theirs.iter().copied()).collect();
    let of = |picked: &mut dyn Iterator<Item = (f64, f64)>| {
        let (one, other) = picked.fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        (one > 0.0 || other > 0.0).then_some(one / other)
    };
    let ratio = of(&mut pairs.iter().copied()).filter(|ratio| ratio.is_finite())?;
    if pairs.len() < 2 {
        return Some(Ratio { ratio, low: None, high: None });
    }
    let mut random = Random::new(SEED);
    let drawn: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            let places: Vec<usize> = pairs.iter().map(|_| random.draw(pairs.len())).collect();
            of(&mut places.into_iter().map(|place| pairs[place]))
        })
        .collect();
    Some(Ratio { ratio, low: Some(quantile(&drawn, 0.025)), high: Some(quantile(&drawn, 0.975)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_ratio_has_no_spread() {
        let same = ratio(&[2.0, 4.0, 6.0], &[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((same.ratio, same.low, same.high), (2.0, Some(2.0), Some(2.0)));
        assert_eq!(ratio(&[1.0, 2.0], &[0.0, 0.0]), None);
        assert_eq!(ratio(&[3.0], &[2.0]).unwrap().high, None);
    }

    #[test]
    fn few_nonzero_runs_give_no_upper_bound() {
        // One of five pairs has all of theirs: a third of the resamplings have none of it, but
        // still ours.
        let found = ratio(&[1.0; 5], &[10.0, 0.0, 0.0, 0.0, 0.0]).unwrap();
        assert_eq!((found.ratio, found.high), (0.5, Some(f64::INFINITY)));
        assert!(found.low.unwrap() < 0.5);
        // Where ours are none, the resamplings without theirs are left out.
        let none = ratio(&[0.0; 5], &[10.0, 0.0, 0.0, 0.0, 0.0]).unwrap();
        assert_eq!((none.ratio, none.high), (0.0, Some(0.0)));
    }

    #[test]
    fn bounds_contain_the_ratio_despite_zeros() {
        let ours = [0.0, 3.0, 1.0, 0.0, 2.0, 5.0, 1.0, 0.0];
        let theirs = [10.0, 12.0, 9.0, 0.0, 11.0, 8.0, 10.0, 13.0];
        let found = ratio(&ours, &theirs).unwrap();
        assert!(found.low.unwrap() < found.ratio && found.ratio < found.high.unwrap());
        assert!(found.high.unwrap() < 1.0);
    }
}
