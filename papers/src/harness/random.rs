//! Draws from a seed: the same on every machine.

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A sequence of draws.
pub struct Random(Pcg64Mcg);

impl Random {
    /// Creates the sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// Draws a number from 0 to below `count`, all equally likely.
    pub fn draw(&mut self, count: usize) -> usize {
        let wide = u128::from(self.0.next_u64()) * count as u128;
        usize::try_from(wide >> 64).expect("below the count")
    }

    /// Draws a number from 0 to below 1, all equally likely.
    pub fn fraction(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws a number of the double exponential distribution around 0: half of all are within
    /// `median` of it.
    pub fn laplace(&mut self, median: f64) -> f64 {
        let scale = median / std::f64::consts::LN_2;
        let centred = self.fraction() - 0.5;
        -scale * centred.signum() * (1.0 - 2.0 * centred.abs()).ln()
    }

    /// Draws the numbers from 0 to below `count`, in any order.
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for place in (1..count).rev() {
            order.swap(place, self.draw(place + 1));
        }
        order
    }

    /// Draws a number of the standard normal distribution.
    pub fn normal(&mut self) -> f64 {
        normal_quantile(self.fraction().max(f64::MIN_POSITIVE))
    }

    /// Draws a span of the exponential distribution with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.fraction()).ln()
    }

    /// Draws a number from `least` to `most`, equal factors equally likely.
    pub fn log_uniform(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.fraction())
    }
}

/// Returns the value that a standard normal number is below with chance `p`, for `p` above 0 and
/// below 1: Acklam's rational approximation, off by less than 1.2e-9 of the value.
pub(crate) fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    /// Below this and above its complement the tails' formula holds.
    const TAIL: f64 = 0.02425;
    let polynomial = |factors: &[f64], x: f64| factors.iter().fold(0.0, |sum, a| sum * x + a);
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        polynomial(&C, q) / polynomial(&D, q)
    };
    if p < TAIL {
        tail(p)
    } else if p > 1.0 - TAIL {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        polynomial(&A, q * q) * q / polynomial(&B, q * q)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_quantiles_match_the_tables() {
        for (p, z) in [(0.5, 0.0), (0.975, 1.959_964), (0.46, -0.100_434), (0.01, -2.326_348)] {
            assert!((normal_quantile(p) - z).abs() < 1e-5, "{p}: {}", normal_quantile(p));
        }
    }

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
