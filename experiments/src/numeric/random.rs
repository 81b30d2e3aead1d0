//! Draws from a seed: the same on every machine.

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A sequence of draws.
pub struct Random(Pcg64Mcg);

impl Random {
    /// The sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// A number from 0 to below `count`, all equally likely.
    pub fn draw(&mut self, count: usize) -> usize {
        let wide = u128::from(self.0.next_u64()) * count as u128;
        usize::try_from(wide >> 64).expect("below the count")
    }

    /// A number from 0 to below 1, all equally likely.
    pub fn fraction(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number of the double exponential distribution around 0: half of all are within `median` of it.
    pub fn laplace(&mut self, median: f64) -> f64 {
        let scale = median / std::f64::consts::LN_2;
        let centred = self.fraction() - 0.5;
        -scale * centred.signum() * (1.0 - 2.0 * centred.abs()).ln()
    }

    /// A number from `least` to `most`, equal factors equally likely.
    pub fn log_uniform(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.fraction())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_double_exponential_is_within_its_median() {
        let mut random = Random::new(7);
        let values: Vec<f64> = (0..20_000).map(|_| random.laplace(0.07).abs()).collect();
        let within =
            |limit: f64| values.iter().filter(|v| **v < limit).count() as f64 / values.len() as f64;
        assert!((within(0.07) - 0.5).abs() < 0.02, "{}", within(0.07));
        assert!((within(0.2325) - 0.9).abs() < 0.02, "{}", within(0.2325));
        assert!(values.iter().all(|value| value.is_finite()));
    }

    #[test]
    fn draws_stay_in_their_ranges() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            assert!(random.draw(3) < 3);
            let value = random.log_uniform(0.01, 0.5);
            assert!((0.01..=0.5).contains(&value));
        }
    }
}
