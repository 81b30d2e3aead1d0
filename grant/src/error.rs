//! Everything this crate refuses, each with the offending value.

use std::net::IpAddr;

use tradewind_units::shown;

use crate::date::Date;
use crate::forbidden::Class;
use crate::{KeyId, PublicIdentity};

/// Why an identity, a grant, a header, a reply or a destination was refused.
///
/// Each prints as one line. No variant ever holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// A key or grant in text form cannot be read. The text itself may be a secret: it is not kept.
    #[error("{what}: {problem}; expected {expected}")]
    BadText {
        /// What was read, e.g. `public identity`.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
        /// What would have been right.
        expected: String,
    },
    /// A public identity that shares a secret with everybody (a point of low order).
    #[error("identity {0} is a weak key that no honest gateway or relay has")]
    WeakIdentity(PublicIdentity),

    /// Bytes that do not follow the format.
    #[error("malformed {what} at byte {at}")]
    Malformed {
        /// The field that is wrong, e.g. `header length`.
        what: &'static str,
        /// Where the field begins.
        at: usize,
    },
    /// More bytes than the format allows.
    #[error("{what} takes {bytes} bytes, at most {limit} fit")]
    TooLong {
        /// `hop header`, `grant` or `reply`.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A name, rule or route that makes no sense.
    #[error("{what} `{}`: expected {expected}", shown(value))]
    Invalid {
        /// What was given, e.g. `destination rule`.
        what: &'static str,
        /// The offending value.
        value: String,
        /// What would have been right.
        expected: &'static str,
    },

    /// The grant is signed with a key that is not trusted here.
    #[error("grant is signed with operator key {0}, which is not trusted here")]
    UnknownKey(KeyId),
    /// The grant's signature is not that of the key it names.
    #[error("the signature of the grant by operator key {0} is false")]
    BadSignature(KeyId),
    /// The grant is not valid yet.
    #[error(
        "grant is valid from {} on, in {} s by the clock here",
        Date(*not_before_s),
        not_before_s.saturating_sub(*now_s)
    )]
    NotYetValid {
        /// When it begins, in seconds since the Unix epoch.
        not_before_s: u64,
        /// The reader's clock.
        now_s: u64,
    },
    /// The grant has expired.
    #[error(
        "grant expired at {}, {} s ago by the clock here",
        Date(*expired_s),
        now_s.saturating_sub(*expired_s)
    )]
    Expired {
        /// When it ended, in seconds since the Unix epoch.
        expired_s: u64,
        /// The reader's clock.
        now_s: u64,
    },
    /// The grant was issued to another gateway.
    #[error("grant was issued to gateway {granted}, not to {found}")]
    WrongGateway {
        /// Whom it was issued to.
        granted: PublicIdentity,
        /// Who holds it.
        found: PublicIdentity,
    },
    /// The grant does not allow this relay.
    #[error("grant does not allow relay {0}")]
    RelayNotGranted(PublicIdentity),
    /// The grant does not cover the destination.
    #[error("grant does not cover destination {0}")]
    DestinationNotGranted(String),

    /// The gateway's tag for this relay is false: forged, altered, or meant for another relay.
    #[error("header was not sealed by gateway {gateway} for hop {hop}")]
    GatewayTag {
        /// Who should have sealed it.
        gateway: PublicIdentity,
        /// The hop it was opened at.
        hop: usize,
    },
    /// The hop that the header has reached is another relay than this one.
    #[error("hop {hop} of the route is relay {expected}, not this relay")]
    NotOnRoute {
        /// The hop the header says it has reached.
        hop: usize,
        /// The relay that the route has there.
        expected: PublicIdentity,
    },
    /// The neighbour's tag is false: the header did not come from the hop before this one.
    #[error("header for hop {hop} did not come from its neighbour {neighbour}")]
    WrongNeighbour {
        /// The hop it was opened at.
        hop: usize,
        /// Who should have sent it.
        neighbour: PublicIdentity,
    },
    /// The header's time is too far from the reader's clock.
    #[error(
        "header was issued at unix time {issued_ms} ms, more than {tolerated_s} s away from {now_ms} ms"
    )]
    Skew {
        /// When the gateway issued it.
        issued_ms: u64,
        /// The reader's clock.
        now_ms: u64,
        /// The skew that is tolerated.
        tolerated_s: u64,
    },
    /// The header is older than this relay's memory.
    #[error(
        "header was issued at unix time {issued_ms} ms, before this relay started, or its clock was set back, at {begin_ms} ms"
    )]
    BeforeStart {
        /// When the gateway issued it.
        issued_ms: u64,
        /// Since when this relay remembers headers.
        begin_ms: u64,
    },
    /// The header was seen before.
    #[error("header with nonce {0} was seen before")]
    Replayed(crate::Nonce),
    /// Too many headers of one gateway in too short a time to remember them all; refused rather than
    /// forgotten.
    #[error("{0} headers of this gateway fill its share of the replay table")]
    ReplayTableFull(usize),

    /// A hello of somebody who was not a proven neighbour before.
    #[error("hello of {0}, who was no neighbour here before")]
    UnknownNeighbour(PublicIdentity),
    /// The hello's tag is false.
    #[error("hello was not sealed by {0}")]
    HelloTag(PublicIdentity),

    /// The join's tag is false.
    #[error("join was not sealed by the other end of session {0}")]
    JoinTag(crate::SessionName),

    /// The reply's tag is false.
    #[error("reply was not sealed by hop {0} for this session")]
    ReplyTag(usize),

    /// The address is one that is never dialled.
    #[error("{address} is {} {class} address, which is never dialled", class.article())]
    Forbidden {
        /// The address.
        address: IpAddr,
        /// Its class.
        class: Class,
    },
    /// A private address that no rule names.
    #[error("{0} is a private address, which is dialled only when a rule names its range")]
    UnnamedPrivate(IpAddr),
    /// No rule of this relay covers the destination or next hop.
    #[error("no rule of this relay allows {0}")]
    Denied(String),

    /// A grant's specification cannot be read.
    #[error("grant specification: {0}")]
    Spec(String),
}

impl GrantError {
    pub(crate) fn invalid(
        what: &'static str,
        value: impl std::fmt::Display,
        expected: &'static str,
    ) -> Self {
        Self::Invalid { what, value: value.to_string(), expected }
    }
}
