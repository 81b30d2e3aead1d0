//! What goes in beside datagrams, and what comes out.

use std::ops::Range;

use tradewind_grant::PublicIdentity;
use tradewind_units::{Duration, Timestamp};

use super::{Link, PeerId};

/// The time by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// By a clock that never jumps, from any zero: for spans.
    pub steady: Timestamp,
    /// Since the Unix epoch: for grants, and for the time of issue in handshakes.
    pub unix: Timestamp,
}

/// Why a datagram was dropped. Nothing but the count of its reason changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// It has no form of this version.
    Malformed,
    /// No session has its id, or none yet.
    UnknownSession,
    /// Its tag is false: forged, altered, truncated or reflected.
    AuthenticationFailed,
    /// Its counter was seen before, or is too old to tell.
    Replayed,
    /// An initiation by somebody who does not know the identity here.
    FirstTag,
    /// An initiation while many come, without a cookie; a cookie was sent.
    CookieNeeded,
    /// An initiation while too many come that bring cookies.
    Busy,
    /// An initiation or response whose Noise message does not open.
    Handshake,
    /// An initiation by nobody who may: no neighbour, no grant, an expired one, or one for other
    /// relays.
    NotGranted,
    /// An initiation that was issued too long ago or seen before.
    Stale,
    /// As many neighbours as are allowed, or as many of this identity.
    Full,
    /// A response or cookie that nobody awaits.
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

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownSession => "unknown_session",
            Self::AuthenticationFailed => "false_tag",
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

/// Why a payload cannot be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// No session with this neighbour is open (yet, or any more).
    #[error("no session is open")]
    NoSession,
    /// The buffer is shorter than header and tag, or longer than a datagram.
    #[error("{0} bytes are no datagram")]
    Length(usize),
}

/// A payload that was opened in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Who sealed it.
    pub peer: PeerId,
    /// Where it lies in the datagram.
    pub payload: Range<usize>,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A session with this neighbour is open: the first, or the first after a silence, or one with
    /// new keys.
    Established {
        /// The neighbour.
        peer: PeerId,
        /// Its identity.
        identity: PublicIdentity,
        /// Where it is.
        link: Link,
    },
    /// A question was answered.
    Answered {
        /// The neighbour.
        peer: PeerId,
        /// The way that question and answer went.
        link: Link,
        /// How long it took.
        round_trip: Duration,
        /// How long the datagram was that asked.
        bytes: usize,
    },
    /// The neighbour is at another address, and proved it.
    Moved {
        /// The neighbour.
        peer: PeerId,
        /// Where it is.
        link: Link,
    },
    /// The neighbour is gone; its id will not come back. Never for neighbours that this side
    /// connects to.
    Closed {
        /// The neighbour.
        peer: PeerId,
        /// Its identity.
        identity: PublicIdentity,
    },
}
