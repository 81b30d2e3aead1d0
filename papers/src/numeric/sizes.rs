//! File sizes through the points that the paper's prose gives of its distribution `[RT II-B, Fig.
//! 2]`.
//!
//! The plot itself is not in the text. A log-normal distribution has two parameters and two points
//! fix it; that its form is right is an assumption.

use serde::Deserialize;
use tradewind_units::{Bytes, Ratio};

use crate::harness::Random;
use crate::harness::random::normal_quantile;

/// A share of files that do not fit into so many segments.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exceeding {
    /// Segments.
    pub segments: u32,
    /// Share of files that need more.
    pub share: Ratio,
}

/// Log-normal file sizes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Logarithm of the median, in bytes.
    location: f64,
    scale: f64,
}

impl Sizes {
    /// Fits sizes through two points, in segments of so many bytes; none where the points are no
    /// distribution.
    pub(super) fn through(points: [Exceeding; 2], segment: Bytes) -> Option<Self> {
        let point = |of: Exceeding| {
            let bytes = f64::from(of.segments) * segment.as_u64() as f64;
            (normal_quantile(1.0 - of.share.as_f64()), bytes.ln())
        };
        let [(low_z, low), (high_z, high)] = points.map(point);
        let scale = (high - low) / (high_z - low_z);
        let fits = scale > 0.0 && scale.is_finite() && low.is_finite() && low_z.is_finite();
        fits.then_some(Self { location: low - low_z * scale, scale })
    }

    /// Draws one size, at least a byte.
    pub(super) fn draw(&self, random: &mut Random) -> Bytes {
        let bytes = (self.location + self.scale * random.normal()).exp();
        Bytes::new((bytes as u64).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_sizes_match_the_papers_shares() {
        let point = |segments, share| Exceeding { segments, share: Ratio::new(share).unwrap() };
        let sizes = Sizes::through([point(10, 0.54), point(100, 0.15)], Bytes::new(1500)).unwrap();
        let mut random = Random::new(5);
        let drawn: Vec<u64> = (0..20_000).map(|_| sizes.draw(&mut random).as_u64()).collect();
        for (bytes, share) in [(15_000, 0.54), (150_000, 0.15)] {
            let above = drawn.iter().filter(|size| **size > bytes).count() as f64 / 20_000.0;
            assert!((above - share).abs() < 0.015, "{bytes}: {above}");
        }
        assert!(Sizes::through([point(10, 0.54), point(10, 0.15)], Bytes::new(1500)).is_none());
        assert!(Sizes::through([point(10, 1.0), point(100, 0.15)], Bytes::new(1500)).is_none());
    }
}
