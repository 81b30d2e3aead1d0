//! Backing off after a lost first flight: half of the window, until starts succeed again.
//!
//! A loss belongs to the first flight when it came before slow start could have grown far beyond
//! the given window: slow start ended at or below that window, or no more than twice that window
//! has been acknowledged. Later losses are left to congestion control.

use crate::Sample;

/// Share of the window that one loss leaves.
const AFTER_LOSS: f64 = 0.5;
/// Factor by which a round of starts without loss raises the share. Chosen: three clean rounds undo
/// one loss, so that probing upwards is slower than backing off.
const AFTER_CLEAN: f64 = 1.26;
/// Least share. Chosen: from the default bound of 100 this is below any default window.
const MIN: f64 = 1.0 / 16.0;

/// The share of the learned window that is used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guard(f64);

impl Default for Guard {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Guard {
    /// Returns the share, above 0 and up to 1.
    #[must_use]
    pub const fn share(self) -> f64 {
        self.0
    }

    /// Returns the guard after a round with `lost` lost first flights and `clean` ones that
    /// arrived.
    #[must_use]
    pub fn after(self, lost: u32, clean: u32) -> Self {
        if lost > 0 {
            Self((self.0 * AFTER_LOSS).max(MIN))
        } else if clean > 0 {
            Self((self.0 * AFTER_CLEAN).min(1.0))
        } else {
            self
        }
    }
}

/// State of a first flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstFlight {
    /// Not yet known.
    Open,
    /// It arrived.
    Arrived,
    /// Part of it was lost.
    Lost,
}

impl FirstFlight {
    /// Judges the first flight of `given` segments by the latest sample.
    #[must_use]
    pub fn of(sample: &Sample, given: u32) -> Self {
        let given_segments = f64::from(given);
        let early = sample.acked_segments() <= 2.0 * given_segments;
        let ended_there =
            sample.slow_start_threshold.is_some_and(|threshold| threshold.as_u32() <= given);
        if sample.retransmitted_segments > 0 {
            if early || ended_there { Self::Lost } else { Self::Arrived }
        } else if sample.acked_segments() >= given_segments {
            Self::Arrived
        } else {
            Self::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::tests_support::sample;
    use tradewind_units::{Bytes, Segments};

    #[test]
    fn loss_halves_and_clean_starts_recover() {
        let guard = Guard::default().after(3, 0);
        assert_eq!(guard.share(), 0.5);
        assert_eq!(guard.after(0, 0), guard);
        assert!(guard.after(0, 5).after(0, 5).share() < 1.0);
        assert_eq!(guard.after(0, 1).after(0, 1).after(0, 1).share(), 1.0);
        let worst = (0..99).fold(guard, |guard, _| guard.after(1, 0));
        assert_eq!(worst.share(), MIN);
    }

    #[test]
    fn only_early_losses_belong_to_the_first_flight() {
        let mut seen = sample(1, "10.0.0.1");
        (seen.acked, seen.retransmitted_segments) = (Bytes::new(150_000), 4);
        assert_eq!(FirstFlight::of(&seen, 80), FirstFlight::Lost);
        seen.acked = Bytes::new(5_000_000);
        assert_eq!(FirstFlight::of(&seen, 80), FirstFlight::Arrived);
        seen.slow_start_threshold = Some(Segments::new(56).unwrap());
        assert_eq!(FirstFlight::of(&seen, 80), FirstFlight::Lost);
        (seen.acked, seen.retransmitted_segments) = (Bytes::new(79_000), 0);
        assert_eq!(FirstFlight::of(&seen, 80), FirstFlight::Open);
    }
}
