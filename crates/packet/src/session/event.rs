//! Inputs and outputs of sessions beside datagrams.

use std::ops::Range;

use tradewind_grant::PublicIdentity;
use tradewind_units::{Duration, Timestamp};

use super::{Link, PeerId};

/// The time on two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock, from any zero: for spans.
    pub steady: Timestamp,
    /// The time since the Unix epoch: for grants, and for the time of issue in handshakes.
    pub unix: Timestamp,
}

/// The reason why a datagram was dropped; only the count of the reason has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// It has no format of this version.
    Malformed,
    /// No open session has its id.
    UnknownSession,
    /// Its tag is wrong: it was forged, altered, truncated or reflected.
    AuthenticationFailed,
    /// Its counter was seen before, or is too old to be recognized.
    Replayed,
    /// An initiation of a peer that does not know the identity here.
    FirstTag,
    /// An initiation without a cookie while many come; a cookie was sent.
    CookieNeeded,
    /// An initiation with a cookie while too many of these come.
    Busy,
    /// An initiation or response whose Noise message cannot be opened.
    Handshake,
    /// An initiation of a peer that is no known neighbour and has no valid grant for this relay.
    NotGranted,
    /// An initiation that was issued too long ago or seen before.
    Stale,
    /// The limit of neighbours is reached, in all or of this identity.
    Full,
    /// A response or cookie that is not awaited.
    Unawaited,
}

impl DropReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 12] = [
        Self::Malformed,
        Self::UnknownSession,
        Self::AuthenticationFailed,
        Self::Replayed,
        Self::FirstTag,
        Self::CookieNeeded,
        Self::Busy,
        Self::Handshake,
        Self::NotGranted,
        Self::Stale,
        Self::Full,
        Self::Unawaited,
    ];

    /// Returns its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownSession => "unknown_session",
            Self::AuthenticationFailed => "authentication_failed",
            Self::Replayed => "replayed",
            Self::FirstTag => "first_tag",
            Self::CookieNeeded => "cookie_needed",
            Self::Busy => "busy",
            Self::Handshake => "handshake",
            Self::NotGranted => "not_granted",
            Self::Stale => "stale",
            Self::Full => "full",
            Self::Unawaited => "unawaited",
        }
    }
}

/// The reason why a payload cannot be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// No session with this neighbour is open.
    #[error("no session is open")]
    NoSession,
    /// The buffer is shorter than header and tag, or longer than a datagram.
    #[error("{0} bytes are no datagram")]
    Length(usize),
}

/// A payload that was opened in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The neighbour that sealed it.
    pub peer: PeerId,
    /// Its range in the datagram.
    pub payload: Range<usize>,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A session with this neighbour is open: the first, the first after a silence, or one with new
    /// keys.
    Established {
        /// The neighbour.
        peer: PeerId,
        /// Its identity.
        identity: PublicIdentity,
        /// The link to it.
        link: Link,
    },
    /// A ping was answered.
    Answered {
        /// The neighbour.
        peer: PeerId,
        /// The link of ping and pong.
        link: Link,
        /// The round trip.
        round_trip: Duration,
        /// The length of the ping's datagram.
        bytes: usize,
    },
    /// The neighbour is at another address, and has proven it.
    Moved {
        /// The neighbour.
        peer: PeerId,
        /// The link to it.
        link: Link,
    },
    /// The neighbour is gone; its id will not come back. Not sent for neighbours that this side
    /// connects to.
    Closed {
        /// The neighbour.
        peer: PeerId,
        /// Its identity.
        identity: PublicIdentity,
    },
}
