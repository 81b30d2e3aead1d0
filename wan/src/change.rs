//! Changes to a pair of sites while traffic flows: `hamina,tokyo rtt=30ms loss=0.01`.

use tradewind_units::{Bandwidth, Bytes, Duration, Ratio, SiteId};

/// New values for one pair of sites; what is `None` stays as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct PairChange {
    /// The site that sends.
    pub from: SiteId,
    /// The site that receives.
    pub to: SiteId,
    /// Whether the change holds for the way back, too.
    pub both_ways: bool,
    /// One-way delay, each way.
    pub delay: Option<Duration>,
    /// Largest extra delay.
    pub jitter: Option<Duration>,
    /// Rate in IP bytes; `Some(None)` lifts the limit.
    pub rate: Option<Option<Bandwidth>>,
    /// Room of the queue before the rate.
    pub queue: Option<Bytes>,
    /// Largest IP packet.
    pub mtu: Option<Bytes>,
    /// Share of segments lost at random.
    pub loss: Option<Ratio>,
    /// Share of segments that arrive twice.
    pub duplicate: Option<Ratio>,
}

/// Why a change was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The text names no pair.
    #[error("`{0}` is no pair of sites: write `a,b` (both ways) or `a->b` (one way)")]
    Pair(String),
    /// The topology has no such site.
    #[error("no site `{0}` in this topology")]
    UnknownSite(SiteId),
    /// The text is no `key=value` of a known key.
    #[error(
        "`{0}` cannot be set: write rtt, delay, jitter, rate, queue, mtu, loss or duplicate, `=` and a value"
    )]
    Setting(String),
    /// The value cannot be meant.
    #[error("{key}: {reason}")]
    Value {
        /// The key that was set.
        key: String,
        /// What is wrong with its value.
        reason: String,
    },
}

impl PairChange {
    /// Reads `pair` (`a,b` for both ways, `a->b` for one) and settings such as `rtt=30 ms`,
    /// `rate=none`, `loss=0.01`.
    ///
    /// # Errors
    /// When the pair, a key or a value makes no sense; the topology is not asked.
    pub fn parse<'a>(
        pair: &str,
        settings: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, ChangeError> {
        let _ = (pair, settings);
        todo!()
    }
}
