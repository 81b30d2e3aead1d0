//! Quality of a call: the E-model of ITU-T Rec. G.107, with its default values for everything that
//! a network does not change.
//!
//! ```text
//! R      = 93.2 - Idd - Ie,eff                                       (7.1; no advantage factor)
//! Idd    = 25 ((1 + X^6)^(1/6) - 3 (1 + (X/3)^6)^(1/6) + 2)          (7.4; 0 up to 100 ms)
//!          with X = log2(Ta/100 ms)
//! Ie,eff = Ie + (95 - Ie) Ppl / (Ppl/BurstR + Bpl)                   (7.5)
//! MOS    = 1 + 0.035 R + R (R - 60) (100 - R) 7e-6, within 1 and 4.5 (Annex B)
//! ```
//!
//! Ta is the delay from mouth to ear, Ppl the share of packets lost in per cent. Echo is assumed to
//! be cancelled, so that of the delay impairments Idd alone is left. Numbers are the standard's
//! clauses.

use tradewind_units::Duration;

/// R of a connection with the standard's default values that loses nothing and takes no time.
pub const BEST_RATING: f64 = 93.2;
/// Longest delay without impairment.
const FREE_DELAY_MS: f64 = 100.0;
/// Limit of Ie,eff as losses grow.
const WORST_IMPAIRMENT: f64 = 95.0;

/// A codec's impairment without losses, and its robustness to them (ITU-T Rec. G.113, Appendix I).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Codec {
    /// Ie: equipment impairment without losses.
    pub impairment: f64,
    /// Bpl: robustness to losses.
    pub robustness: f64,
}

impl Codec {
    /// G.711, 64 kbit/s, which conceals losses.
    pub const G711_CONCEALED: Self = Self { impairment: 0.0, robustness: 25.1 };
    /// G.711 that plays silence for what is lost.
    pub const G711: Self = Self { impairment: 0.0, robustness: 4.3 };
    /// G.729A, 8 kbit/s, with voice activity detection.
    pub const G729A: Self = Self { impairment: 11.0, robustness: 19.0 };
    /// G.723.1, 6.3 kbit/s, with voice activity detection.
    pub const G723_1: Self = Self { impairment: 15.0, robustness: 16.1 };
}

/// Losses of a call's packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loss {
    /// Share of packets that had not arrived when they were to be played, 0 to 1.
    pub share: f64,
    /// BurstR: the mean length of bursts over that of independent losses; 1 when they are
    /// independent, and when bursts were shorter.
    pub burst_ratio: f64,
}

impl Loss {
    /// No losses.
    pub const NONE: Self = Self { share: 0.0, burst_ratio: 1.0 };

    /// Counts the losses of packets in their order, each played or not.
    #[must_use]
    pub fn of(played: impl IntoIterator<Item = bool>) -> Self {
        let (mut packets, mut lost, mut bursts, mut was_played) = (0_u32, 0_u32, 0_u32, true);
        for is_played in played {
            packets += 1;
            lost += u32::from(!is_played);
            bursts += u32::from(was_played && !is_played);
            was_played = is_played;
        }
        if lost == 0 {
            return Self::NONE;
        }
        let share = f64::from(lost) / f64::from(packets);
        // Bursts of independent losses have 1 / (1 - share) packets on average.
        let burst_ratio = f64::from(lost) / f64::from(bursts) * (1.0 - share);
        Self { share, burst_ratio: burst_ratio.max(1.0) }
    }
}

/// Returns R, the rating of a call, from 0 to 93.2.
#[must_use]
pub fn rating(mouth_to_ear: Duration, codec: Codec, loss: Loss) -> f64 {
    (BEST_RATING - delay_impairment(mouth_to_ear) - loss_impairment(codec, loss)).max(0.0)
}

/// Returns Idd, the impairment by delay, without echo.
#[must_use]
pub fn delay_impairment(mouth_to_ear: Duration) -> f64 {
    let millis = mouth_to_ear.as_secs_f64() * 1e3;
    if millis <= FREE_DELAY_MS {
        return 0.0;
    }
    let x = (millis / FREE_DELAY_MS).log2();
    let root = |base: f64| (1.0 + base.powi(6)).powf(1.0 / 6.0);
    25.0 * (root(x) - 3.0 * root(x / 3.0) + 2.0)
}

/// Returns Ie,eff, the impairment by the codec and losses.
#[must_use]
pub fn loss_impairment(codec: Codec, loss: Loss) -> f64 {
    let Codec { impairment, robustness } = codec;
    let percent = 100.0 * loss.share;
    impairment
        + (WORST_IMPAIRMENT - impairment) * percent / (percent / loss.burst_ratio + robustness)
}

/// Returns the mean opinion score (MOS) for a rating, from 1 (bad) to 4.5.
#[must_use]
pub fn mean_opinion(rating: f64) -> f64 {
    if rating <= 0.0 {
        return 1.0;
    }
    if rating >= 100.0 {
        return 4.5;
    }
    // Slightly below 1 for the worst ratings above 0, which the standard does not intend.
    (1.0 + 0.035 * rating + rating * (rating - 60.0) * (100.0 - rating) * 7e-6).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(ours: f64, published: f64, within: f64) {
        assert!((ours - published).abs() <= within, "{ours} instead of {published}");
    }

    #[test]
    fn opinions_are_those_of_annex_b() {
        for (rating, published) in
            [(93.2, 4.41), (90.0, 4.34), (80.0, 4.03), (70.0, 3.60), (60.0, 3.10), (50.0, 2.58)]
        {
            near(mean_opinion(rating), published, 0.01);
        }
        assert_eq!([-5.0, 0.0, 3.0, 100.0, 120.0].map(mean_opinion), [1.0, 1.0, 1.0, 4.5, 4.5]);
    }

    #[test]
    fn random_loss_impairment_matches_g_113() {
        let cases = [
            (Codec::G711_CONCEALED, 0.0, 0.0),
            (Codec::G711_CONCEALED, 2.0, 7.0),
            (Codec::G729A, 0.0, 11.0),
            (Codec::G729A, 2.0, 19.0),
            (Codec::G723_1, 0.0, 15.0),
            (Codec::G723_1, 2.0, 24.0),
        ];
        for (codec, percent, published) in cases {
            let loss = Loss { share: percent / 100.0, burst_ratio: 1.0 };
            near(loss_impairment(codec, loss), published, 0.5);
        }
    }

    #[test]
    fn delay_impairment_matches_published_values() {
        // Of a rating of 94 without delay and codec, as planners have taken G.107: 24 less what the
        // codec costs.
        for (millis, published) in [(400, 24.0), (342, 19.0), (294, 14.0), (251, 9.0)] {
            near(delay_impairment(Duration::from_millis(millis)), published, 0.2);
        }
        assert_eq!(delay_impairment(Duration::from_millis(100)), 0.0);
    }

    #[test]
    fn bursts_cost_more_than_the_same_losses_apart() {
        let apart = Loss { share: 0.05, burst_ratio: 1.0 };
        let bursts = Loss { share: 0.05, burst_ratio: 2.0 };
        let [apart, bursts] =
            [apart, bursts].map(|loss| loss_impairment(Codec::G711_CONCEALED, loss));
        // 95 x 5 / (5 + 25.1) and 95 x 5 / (2.5 + 25.1).
        near(apart, 15.781, 0.001);
        near(bursts, 17.210, 0.001);
        let rating = rating(Duration::ZERO, Codec::G711_CONCEALED, Loss::NONE);
        assert_eq!(rating, BEST_RATING);
    }

    #[test]
    fn losses_are_counted_with_their_bursts() {
        assert_eq!(Loss::of([true; 10]), Loss::NONE);
        assert_eq!(Loss::of([]), Loss::NONE);
        // Two bursts of two among eight: 2 packets where independent losses would have 1 / (1 -
        // 0.5) of them.
        let played = [false, false, true, true, true, false, false, true];
        assert_eq!(Loss::of(played), Loss { share: 0.5, burst_ratio: 1.0 });
        let long = (0..100).map(|packet| !(10..20).contains(&packet));
        let loss = Loss::of(long);
        near(loss.share, 0.1, 1e-12);
        near(loss.burst_ratio, 9.0, 1e-12);
        assert_eq!(Loss::of([false; 5]).share, 1.0);
    }

    #[test]
    fn ratings_fall_with_delay_and_loss_and_stay_in_range() {
        let mut before = f64::INFINITY;
        for step in 0..=20_u32 {
            let loss = Loss { share: f64::from(step) / 20.0, burst_ratio: 3.0 };
            let delay = Duration::from_millis(u64::from(step) * 50);
            let rating = rating(delay, Codec::G711, loss);
            assert!((0.0..=BEST_RATING).contains(&rating) && rating <= before, "{step}: {rating}");
            assert!((1.0..=4.5).contains(&mean_opinion(rating)));
            before = rating;
        }
    }
}
