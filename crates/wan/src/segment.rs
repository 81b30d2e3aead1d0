//! One segment in flight: small, copied from queue to queue, never allocated.

use tradewind_units::Duration;

/// Nanoseconds since the network's start, as a plain integer.
pub(crate) type Nanos = u64;

/// Converts a span to [`Nanos`], saturating.
pub(crate) fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).unwrap_or(Nanos::MAX)
}

/// A segment of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The bundle's slot.
    pub(crate) bundle: u32,
    /// Place in the bundle.
    pub(crate) index: u32,
    /// IP bytes.
    pub(crate) bytes: u32,
    /// The ordered pair of sites.
    pub(crate) pair: u32,
    pub(crate) source: u16,
    pub(crate) destination: u16,
    /// The next stage to enter; see [`crate::routes`].
    pub(crate) hop: u8,
    /// `true` when its transport understands ECN marks.
    pub(crate) ecn_capable: bool,
    /// `true` when it carries the mark.
    pub(crate) ce_marked: bool,
    /// `true` for the bundle's last segment.
    pub(crate) is_last: bool,
}

/// A segment and the time at which it leaves its FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timed {
    pub(crate) at: Nanos,
    pub(crate) segment: Segment,
}
