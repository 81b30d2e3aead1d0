//! A round trip and how it varies, smoothed (RFC 6298).

use tradewind_units::Duration;

/// Least that a round trip may take longer than usual. Chosen: what hosts' schedulers add.
const LEAST_SLACK: Duration = Duration::from_millis(5);

/// What measurements have shown so far; nothing before the first.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoundTrip(Option<(Duration, Duration)>);

impl RoundTrip {
    /// Takes a measurement.
    pub(crate) fn learn(&mut self, sample: Duration) {
        self.0 = Some(match self.0 {
            None => (sample, sample / 2),
            Some((smoothed, deviation)) => {
                ((smoothed * 7 + sample) / 8, (deviation * 3 + smoothed.abs_diff(sample)) / 4)
            }
        });
    }

    /// How long an answer may take: the round trip and four deviations; `unknown` before any is
    /// measured.
    pub(crate) fn reply_timeout(&self, unknown: Duration) -> Duration {
        let learned =
            self.0.map(|(smoothed, deviation)| smoothed + (deviation * 4).max(LEAST_SLACK));
        learned.unwrap_or(unknown)
    }
}
