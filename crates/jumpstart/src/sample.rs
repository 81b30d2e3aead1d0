//! A sample of one connection at one moment: the columns of `ss -tin` that matter here.

use std::net::IpAddr;

use tradewind_units::{Bandwidth, Bytes, Duration, Segments};

/// One connection's figures, as its kernel reported them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// A number that no other connection of this host has at the same time.
    pub connection: u64,
    /// The other end.
    pub remote: IpAddr,
    /// Congestion window.
    pub window: Segments,
    /// Window at which slow start ended; `None` while it has not.
    pub slow_start_threshold: Option<Segments>,
    /// Payload of a full segment.
    pub mss: Bytes,
    /// Least round-trip time seen; `None` before the first, or when the kernel does not report it.
    pub rtt_min: Option<Duration>,
    /// Rate of the last delivery sample; `None` when the kernel does not report it.
    pub delivery_rate: Option<Bandwidth>,
    /// True if that sample shows the application's rate instead of the path's.
    pub application_limited: bool,
    /// Highest rate at which the connection may send, set by its application or by us; `None`: no
    /// limit.
    pub rate_limit: Option<Bandwidth>,
    /// Payload that the other end acknowledged since the connection began.
    pub acked: Bytes,
    /// Segments sent again since the connection began.
    pub retransmitted_segments: u32,
    /// Time in which the connection had something to send.
    pub busy: Duration,
}

impl Sample {
    /// Returns the acknowledged payload in full segments, rounded up. A connection cannot have
    /// shown that its path carries more than this at once.
    #[must_use]
    pub fn acked_segments(&self) -> f64 {
        (self.acked.as_u64() as f64 / self.mss.as_u64().max(1) as f64).ceil()
    }
}
