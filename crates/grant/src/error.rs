//! The errors of this crate, each with the offending value.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use tradewind_units::shown;

use crate::date::Date;
use crate::forbidden::Class;
use crate::{KeyId, PublicIdentity};

/// The reason why an identity, a grant, a header, a reply or a destination was refused.
///
/// Each prints as one line. No variant ever holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// A key or grant in text form cannot be parsed. The text itself may be a secret: it is not
    /// stored.
    #[error("{what}: {problem}; expected {expected}")]
    BadText {
        /// The expected kind, e.g. `public identity`.
        what: &'static str,
        /// The problem.
        problem: String,
        /// The accepted form.
        expected: String,
    },
    /// A public identity that yields the same shared secret with everybody (a point of low order).
    #[error("identity {0} is a weak key that no honest gateway or relay has")]
    WeakIdentity(PublicIdentity),

    /// Bytes that do not follow the format.
    #[error("malformed {what} at byte {at}")]
    Malformed {
        /// The malformed field, e.g. `header length`.
        what: &'static str,
        /// Offset of the field.
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
    /// An invalid name, rule or route.
    #[error("{what} `{}`: expected {expected}", shown(value))]
    Invalid {
        /// The kind of value, e.g. `destination rule`.
        what: &'static str,
        /// The offending value.
        value: String,
        /// The accepted values.
        expected: Cow<'static, str>,
    },

    /// The grant is signed with a key that is not trusted here.
    #[error("grant is signed with operator key {0}, which is not trusted here")]
    UnknownKey(KeyId),
    /// The grant's signature does not match the key that it names.
    #[error("the signature of the grant by operator key {0} is false")]
    BadSignature(KeyId),
    /// The grant is not valid yet.
    #[error(
        "grant is valid from {} on, in {} s by the clock here",
        Date(*not_before_s),
        not_before_s.saturating_sub(*now_s)
    )]
    NotYetValid {
        /// Begin of its validity, in seconds since the Unix epoch.
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
        /// End of its validity, in seconds since the Unix epoch.
        expired_s: u64,
        /// The reader's clock.
        now_s: u64,
    },
    /// The grant was revoked.
    #[error("{what} was revoked by operator key {operator}, in version {version} of its list")]
    Revoked {
        /// The revoked entry: the grant, its gateway, or a time of issue.
        what: String,
        /// The list's operator.
        operator: KeyId,
        /// The list's version.
        version: u64,
    },
    /// The signature of a revocation list does not match the key that it names.
    #[error("the signature of the revocation list by operator key {0} is false")]
    FalseRevocations(KeyId),
    /// A revocation list is not newer than the one in force.
    #[error(
        "version {found} of the revocation list of operator key {operator} does not come after \
         version {known}, which is in force and stays"
    )]
    OlderRevocations {
        /// The list's operator.
        operator: KeyId,
        /// Its version.
        found: u64,
        /// The version in force.
        known: u64,
    },
    /// The grant was issued to another gateway.
    #[error("grant was issued to gateway {granted}, not to {found}")]
    WrongGateway {
        /// The gateway that it was issued to.
        granted: PublicIdentity,
        /// The gateway that holds it.
        found: PublicIdentity,
    },
    /// The grant does not allow this relay.
    #[error("grant does not allow relay {0}")]
    RelayNotGranted(PublicIdentity),
    /// The grant does not cover the destination.
    #[error("grant does not cover destination {0}")]
    DestinationNotGranted(String),

    /// The gateway's tag for this relay is wrong: forged, altered, or meant for another relay.
    #[error("header was not sealed by gateway {gateway} for hop {hop}")]
    GatewayTag {
        /// The gateway that should have sealed it.
        gateway: PublicIdentity,
        /// The hop at which it was opened.
        hop: usize,
    },
    /// The hop that the header has reached is another relay.
    #[error("hop {hop} of the route is relay {expected}, not this relay")]
    NotOnRoute {
        /// The hop that the header names.
        hop: usize,
        /// The relay of the route at that hop.
        expected: PublicIdentity,
    },
    /// A request in the name of an identity that this side does not have, or no longer has.
    #[error("identity {0} is not this side's, or not any more")]
    NotOwnIdentity(PublicIdentity),
    /// The neighbour's tag is wrong: the header did not come from the previous hop.
    #[error("header for hop {hop} did not come from its neighbour {neighbour}")]
    WrongNeighbour {
        /// The hop at which it was opened.
        hop: usize,
        /// The neighbour that should have sent it.
        neighbour: PublicIdentity,
    },
    /// The header's time is too far from the reader's clock.
    #[error("{}", SkewText { issued_ms: *issued_ms, now_ms: *now_ms, tolerated_s: *tolerated_s })]
    Skew {
        /// Time of issue by the gateway's clock.
        issued_ms: u64,
        /// The reader's clock.
        now_ms: u64,
        /// The tolerated skew.
        tolerated_s: u64,
    },
    /// The header is older than this relay's replay table.
    #[error(
        "header was issued {} s before this relay started, or its clock was set back",
        begin_ms.saturating_sub(*issued_ms).div_ceil(1000)
    )]
    BeforeStart {
        /// Time of issue by the gateway's clock.
        issued_ms: u64,
        /// Begin of this relay's replay table.
        begin_ms: u64,
    },
    /// The header was seen before.
    #[error("header with nonce {0} was seen before")]
    Replayed(crate::Nonce),
    /// Too many headers of one gateway in too short a time to remember them all; refused rather
    /// than forgotten.
    #[error("{0} headers of this gateway fill its share of the replay table")]
    ReplayTableFull(usize),

    /// A hello from a sender that was not a proven neighbour before.
    #[error("hello of {0}, who was no neighbour here before")]
    UnknownNeighbour(PublicIdentity),
    /// The hello's tag is wrong.
    #[error("hello was not sealed by {0}")]
    HelloTag(PublicIdentity),

    /// The join's tag is wrong.
    #[error("join was not sealed by the other end of session {0}")]
    JoinTag(crate::SessionName),

    /// The reply's tag is wrong.
    #[error("reply was not sealed by hop {0} for this session")]
    ReplyTag(usize),

    /// An address that is never dialled.
    #[error("{address} is {} {class} address, which is never dialled", class.article())]
    Forbidden {
        /// The address.
        address: IpAddr,
        /// Its class.
        class: Class,
    },
    /// A private address that no rule covers explicitly.
    #[error("{0} is a private address, which is dialled only when a rule names its range")]
    UnnamedPrivate(IpAddr),
    /// A relay given as a destination.
    #[error("{0} is a relay, which may be the next hop of a route and no destination")]
    Relay(String),
    /// An address of this host that no rule covers explicitly.
    #[error("{0} is an address of this host itself, which only a rule for this one address opens")]
    LocalHost(IpAddr),
    /// No rule of this relay covers the destination or next hop.
    #[error("no rule of this relay allows {0}")]
    Denied(String),

    /// A grant's specification cannot be parsed.
    #[error("grant specification: {0}")]
    Spec(String),
}

impl GrantError {
    pub(crate) fn invalid(
        what: &'static str,
        value: impl std::fmt::Display,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Invalid { what, value: value.to_string(), expected: expected.into() }
    }
}

/// The text of a clock skew: which clock is ahead, and by how much.
struct SkewText {
    issued_ms: u64,
    now_ms: u64,
    tolerated_s: u64,
}

impl fmt::Display for SkewText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { issued_ms, now_ms, tolerated_s } = *self;
        let seconds = issued_ms.abs_diff(now_ms).div_ceil(1000);
        if issued_ms > now_ms {
            write!(f, "the gateway's clock is {seconds} s ahead of this relay's")?;
        } else {
            write!(
                f,
                "this relay's clock is {seconds} s ahead of the gateway's, \
                 or the header was that long on its way"
            )?;
        }
        write!(f, "; up to {tolerated_s} s are tolerated")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_shown_in_seconds_with_the_clock_ahead() {
        let skew =
            |issued_ms, now_ms| GrantError::Skew { issued_ms, now_ms, tolerated_s: 30 }.to_string();
        let unix_ms = 1_795_000_000_000;
        assert_eq!(
            skew(unix_ms, unix_ms + 95_000),
            "this relay's clock is 95 s ahead of the gateway's, \
             or the header was that long on its way; up to 30 s are tolerated"
        );
        assert_eq!(
            skew(unix_ms + 30_001, unix_ms),
            "the gateway's clock is 31 s ahead of this relay's; up to 30 s are tolerated"
        );
        let before = GrantError::BeforeStart { issued_ms: unix_ms, begin_ms: unix_ms + 1500 };
        assert_eq!(
            before.to_string(),
            "header was issued 2 s before this relay started, or its clock was set back"
        );
    }
}
