//! A smoothed round trip and its deviation (RFC 6298).

use tradewind_units::Duration;

/// The least allowance above the usual round trip. Chosen: what hosts' schedulers add.
const MIN_SLACK: Duration = Duration::from_millis(5);

/// The smoothed round trip and deviation; `None` before the first measurement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoundTrip(Option<(Duration, Duration)>);

impl RoundTrip {
    /// Adds a measurement.
    pub(crate) fn learn(&mut self, sample: Duration) {
        self.0 = Some(match self.0 {
            None => (sample, sample / 2),
            Some((smoothed, deviation)) => {
                ((smoothed * 7 + sample) / 8, (deviation * 3 + smoothed.abs_diff(sample)) / 4)
            }
        });
    }

    /// Returns how long an answer may take: the round trip and four deviations; `unknown` before
    /// any measurement.
    pub(crate) fn reply_timeout(&self, unknown: Duration) -> Duration {
        let learned = self.0.map(|(smoothed, deviation)| smoothed + (deviation * 4).max(MIN_SLACK));
        learned.unwrap_or(unknown)
    }
}
