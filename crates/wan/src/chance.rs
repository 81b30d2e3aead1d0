//! Random number generators of links: one for each purpose, derived from the run's seed and a name,
//! so that events elsewhere do not change a link's behaviour.

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;
use tradewind_units::Ratio;

/// Mixes a 64-bit number until every input bit reaches every output bit (the SplitMix64 finaliser).
pub(crate) const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns a number for `(seed, owner, purpose)`; other names give unrelated numbers.
pub(crate) fn derive(seed: u64, owner: &str, purpose: &str) -> u64 {
    // FNV-1a over both names with a separator that no name contains.
    let bytes = owner.bytes().chain([0]).chain(purpose.bytes());
    let hash = bytes.fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    mix(mix(seed) ^ hash)
}

/// Returns the generator of `(seed, owner, purpose)`.
pub(crate) fn generator(seed: u64, owner: &str, purpose: &str) -> Pcg64Mcg {
    let low = derive(seed, owner, purpose);
    Pcg64Mcg::new(u128::from(mix(low)) << 64 | u128::from(low))
}

/// A share as a threshold for 64 random bits, exact at zero and one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chance(u128);

impl Chance {
    pub(crate) fn new(share: Ratio) -> Self {
        Self((share.as_f64() * 2f64.powi(64)) as u128)
    }

    pub(crate) fn hits(self, random: u64) -> bool {
        u128::from(random) < self.0
    }
}

/// Independent trials with one chance.
#[derive(Debug, Clone)]
pub(crate) struct Trials {
    pub(crate) chance: Chance,
    generator: Pcg64Mcg,
}

impl Trials {
    pub(crate) fn new(share: Ratio, generator: Pcg64Mcg) -> Self {
        Self { chance: Chance::new(share), generator }
    }

    /// Runs the next trial. It consumes a random number even with a chance of zero, so that the
    /// trials after a change of the chance do not depend on the time of the change.
    pub(crate) fn hits(&mut self) -> bool {
        self.chance.hits(self.generator.next_u64())
    }
}

/// Converts 64 random bits to a number in [0, 1).
pub(crate) fn unit_interval(random: u64) -> f64 {
    (random >> 11) as f64 / 2f64.powi(53)
}

/// Returns an exponential variate of mean one, by von Neumann's comparisons: without a logarithm,
/// so that every machine computes the same bits.
pub(crate) fn exponential(generator: &mut Pcg64Mcg) -> f64 {
    let mut whole = 0.0;
    loop {
        let first = unit_interval(generator.next_u64());
        let mut previous = first;
        let mut run_length = 1u32;
        loop {
            let next = unit_interval(generator.next_u64());
            if next >= previous {
                break;
            }
            previous = next;
            run_length += 1;
        }
        if run_length % 2 == 1 {
            return whole + first;
        }
        whole += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_zero_and_one_never_and_always_hit() {
        assert!(!Chance::new(Ratio::ZERO).hits(0));
        assert!(Chance::new(Ratio::ONE).hits(u64::MAX));
    }

    #[test]
    fn names_and_seeds_give_unrelated_numbers() {
        let base = derive(1, "a->b", "loss");
        for other in [derive(2, "a->b", "loss"), derive(1, "b->a", "loss"), derive(1, "a->b", "x")]
        {
            assert!((base ^ other).count_ones() > 10, "{base:x} {other:x}");
        }
    }

    #[test]
    fn exponential_variates_have_mean_and_deviation_one() {
        let mut generator = generator(7, "test", "exponential");
        let n = 200_000;
        let draws: Vec<f64> = (0..n).map(|_| exponential(&mut generator)).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert!((variance - 1.0).abs() < 0.03, "{variance}");
        let beyond = draws.iter().filter(|x| **x > 2.0).count() as f64 / f64::from(n);
        assert!((beyond - (-2.0f64).exp()).abs() < 0.003, "{beyond}");
    }
}
