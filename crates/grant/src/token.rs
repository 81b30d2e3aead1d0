//! The grant: an operator's signed permission for one gateway.
//!
//! Format, version 1, at most [`GRANT_LIMIT`] bytes, numbers big-endian:
//!
//! ```text
//! bytes  field
//!     3  magic "TWG"
//!     1  version, 1
//!     8  id of the operator key that signs
//!    32  gateway's public identity
//!     8  not valid before, ms since the Unix epoch
//!     8  expires, ms since the Unix epoch; later than the former
//!     4  sessions at a time, 0 for no limit
//!     1  number of allowed relays, 0 to 16; 255: any relay
//!  16 x    fingerprint of a relay's identity, in ascending order
//!     1  number of destination rules, 1 to 32
//!     x    each: kind 4 (IPv4) + 4 bytes + prefix length, or kind 6 (IPv6) + 16 + prefix
//!          length, or kind 1 (name) or 2 (all below a name) + length + name; then first and last
//!          port, 2 + 2
//!    64  Ed25519 signature over the context string and all bytes before
//! ```
//!
//! Version 2 is for grants with more content than version 1 holds: restrictions that an older
//! reader would not know, and so must not ignore. Before the signature it has:
//!
//! ```text
//!     1  number of extensions, 1 to 8
//!     x    each: kind 1, length 2, value; kinds in ascending order, and none that the reader does
//!          not know
//! kind 1: longest that a session may be open, in seconds, 4; not 0
//! kind 2: issued at, ms since the Unix epoch, 8; where that does not follow from the begin
//! kind 3: sources, 1 to 16, each: kind 4 or 6, address, prefix length
//! ```
//!
//! There is one encoding of a grant: relays are sorted and distinct, ranges have no bits behind
//! their prefix, names are lower case, and nothing follows the signature.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use tradewind_units::{Duration, Timestamp};

use crate::identity::{FINGERPRINT_BYTES, SIGNATURE_BYTES};
use crate::policy::Target;
use crate::wire::{Reader, from_unix_ms, unix_ms};
use crate::{
    Destination, DestinationRule, GrantError, KeyId, OperatorKey, OperatorPublicKey,
    PublicIdentity, Route, SourceRange, text,
};

/// Longest signed grant, so that it fits into a hop header with a usual route. Chosen.
pub const GRANT_LIMIT: usize = 512;
/// Most relays that a grant can list.
pub const RELAY_LIMIT: usize = 16;
/// Most source ranges of a grant.
pub const SOURCE_LIMIT: usize = 16;
/// Most extensions of a grant.
const EXTENSION_LIMIT: u8 = 8;
/// Most destination rules of a grant.
pub const RULE_LIMIT: usize = 32;

const MAGIC: [u8; 4] = *b"TWG\x01";
const MAGIC_2: [u8; 4] = *b"TWG\x02";
const SIGNATURE_CONTEXT: &[u8] = b"tradewind 2026-11 grant v1\0";
const ANY_RELAY: u8 = 255;
const GRANT_TEXT: &str = "twgrant_";

/// The relays that a grant allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Relays {
    /// Every relay that trusts the operator's key.
    Any,
    /// The relays with these fingerprints: sorted, distinct, at most [`RELAY_LIMIT`].
    Listed(Vec<[u8; FINGERPRINT_BYTES]>),
}

impl Relays {
    /// Returns a list of exactly these relays.
    #[must_use]
    pub fn listed(relays: &[PublicIdentity]) -> Self {
        let mut fingerprints: Vec<_> = relays.iter().map(PublicIdentity::fingerprint).collect();
        fingerprints.sort_unstable();
        fingerprints.dedup();
        Self::Listed(fingerprints)
    }

    /// Returns whether `relay` is among them.
    #[must_use]
    pub fn contain(&self, relay: &PublicIdentity) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(listed) => listed.binary_search(&relay.fingerprint()).is_ok(),
        }
    }
}

/// An operator's permission: for whom, in which time, over which relays, to which destinations, and
/// for how many sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The gateway that may use it.
    pub gateway: PublicIdentity,
    /// Begin of its validity, to the millisecond.
    pub not_before: Timestamp,
    /// End of its validity (exclusive), to the millisecond.
    pub expires: Timestamp,
    /// Most sessions at a time at each relay; `None` for no limit.
    pub sessions: Option<NonZeroU32>,
    /// The relays that may carry it.
    pub relays: Relays,
    /// The destinations that it covers.
    pub destinations: Vec<DestinationRule>,
    /// Optional contents.
    pub extensions: Extensions,
}

/// Optional contents of a grant; all absent by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Longest that a session may be open, in whole seconds.
    pub session_max_age: Option<Duration>,
    /// Time of issue, to the millisecond; [`BACKDATED`] after its begin when absent.
    pub issued_at: Option<Timestamp>,
    /// Source addresses of packets beside the gateway's own; none when empty.
    pub sources: Vec<SourceRange>,
}

/// Time before its issue at which a grant begins by default, so that a relay whose clock is behind
/// accepts it at once: the skew that headers may have.
pub const BACKDATED: Duration = crate::replay::SKEW;

const SESSION_MAX_AGE: u8 = 1;
const ISSUED_AT: u8 = 2;
const SOURCES: u8 = 3;

impl Extensions {
    fn put(&self, out: &mut Vec<u8>) -> Result<(), GrantError> {
        let mut values: Vec<(u8, Vec<u8>)> = Vec::new();
        if let Some(age) = self.session_max_age {
            let seconds = u32::try_from(age.as_secs()).ok().filter(|seconds| *seconds > 0);
            let expected = "1 s to 136 years";
            let refused = || GrantError::invalid("session_max_age", format!("{age:?}"), expected);
            values.push((SESSION_MAX_AGE, seconds.ok_or_else(refused)?.to_be_bytes().to_vec()));
        }
        if let Some(issued_at) = self.issued_at {
            values.push((ISSUED_AT, unix_ms(issued_at).to_be_bytes().to_vec()));
        }
        if self.sources.len() > SOURCE_LIMIT {
            let count = self.sources.len();
            return Err(GrantError::invalid("number of sources", count, "at most 16 ranges"));
        }
        if !self.sources.is_empty() {
            let mut value = Vec::new();
            self.sources.iter().for_each(|range| range.put(&mut value));
            values.push((SOURCES, value));
        }
        out.push(values.len() as u8);
        for (kind, value) in values {
            out.push(kind);
            out.extend_from_slice(&(value.len() as u16).to_be_bytes());
            out.extend_from_slice(&value);
        }
        Ok(())
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, GrantError> {
        let what = "extension of the grant";
        let at = reader.at();
        let count = reader.u8(what)?;
        if !(1..=EXTENSION_LIMIT).contains(&count) {
            return Err(GrantError::Malformed { what, at });
        }
        let (mut extensions, mut last) = (Self::default(), 0);
        for _ in 0..count {
            let at = reader.at();
            let malformed = || GrantError::Malformed { what, at };
            let kind = reader.u8(what)?;
            if kind <= last {
                return Err(malformed());
            }
            last = kind;
            let length = usize::from(reader.u16(what)?);
            let mut value = Reader::new(reader.take(length, what)?);
            match kind {
                SESSION_MAX_AGE => match value.u32(what)? {
                    0 => return Err(malformed()),
                    seconds => {
                        let age = Duration::from_secs(u64::from(seconds));
                        extensions.session_max_age = Some(age);
                    }
                },
                ISSUED_AT => extensions.issued_at = Some(take_time(&mut value)?),
                SOURCES => {
                    while value.end(what).is_err() {
                        extensions.sources.push(SourceRange::take(&mut value)?);
                    }
                    if !(1..=SOURCE_LIMIT).contains(&extensions.sources.len()) {
                        return Err(malformed());
                    }
                }
                // An unknown extension may restrict the grant in a way that this reader would not
                // enforce.
                _ => return Err(malformed()),
            }
            value.end(what).map_err(|_| malformed())?;
        }
        Ok(extensions)
    }
}

impl Grant {
    /// Returns the time of issue.
    #[must_use]
    pub fn issued_at(&self) -> Timestamp {
        self.extensions.issued_at.unwrap_or(self.not_before + BACKDATED)
    }

    /// Returns how long a session that begins at `now` may be open under it.
    #[must_use]
    pub fn session_limit(&self, now: Timestamp) -> Duration {
        let left = self.expires.since(now);
        self.extensions.session_max_age.map_or(left, |most| most.min(left))
    }

    /// Returns whether packets under the grant may have the source address `ip`, which is not the
    /// gateway's own.
    #[must_use]
    pub fn covers_source(&self, ip: IpAddr) -> bool {
        self.extensions.sources.iter().any(|range| range.contains(ip))
    }

    /// Signs the grant.
    ///
    /// # Errors
    /// When the grant holds too much or nothing, or ends before it begins.
    pub fn sign(self, operator: &OperatorKey) -> Result<SignedGrant, GrantError> {
        let mut bytes = Vec::with_capacity(GRANT_LIMIT);
        let key_id = operator.public().key_id();
        self.put(&mut bytes, key_id)?;
        let signature = operator.sign(&signed_message(&bytes));
        bytes.extend_from_slice(&signature);
        SignedGrant::from_bytes(&bytes)
    }

    /// Checks that the grant is in force at `now`.
    ///
    /// # Errors
    /// [`GrantError::NotYetValid`] or [`GrantError::Expired`].
    pub fn check_expiry(&self, now: Timestamp) -> Result<(), GrantError> {
        let (now_ms, not_before_ms) = (unix_ms(now), unix_ms(self.not_before));
        let (now_s, expires_ms) = (now_ms / 1000, unix_ms(self.expires));
        if now_ms < not_before_ms {
            return Err(GrantError::NotYetValid { not_before_s: not_before_ms / 1000, now_s });
        }
        if now_ms >= expires_ms {
            return Err(GrantError::Expired { expired_s: expires_ms / 1000, now_s });
        }
        Ok(())
    }

    /// Checks that the grant allows every relay of `route`, and may cover `destination`.
    ///
    /// # Errors
    /// [`GrantError::RelayNotGranted`] or [`GrantError::DestinationNotGranted`].
    pub fn check_use(&self, destination: &Destination, route: &Route) -> Result<(), GrantError> {
        self.check_relays(route)?;
        if self.may_cover(destination) {
            Ok(())
        } else {
            Err(GrantError::DestinationNotGranted(destination.to_string()))
        }
    }

    /// Checks that the grant allows every relay of `route`.
    ///
    /// # Errors
    /// [`GrantError::RelayNotGranted`] with the first that it does not.
    pub fn check_relays(&self, route: &Route) -> Result<(), GrantError> {
        let mut relays = route.hops().iter().map(|hop| hop.identity);
        match relays.find(|relay| !self.relays.contain(relay)) {
            Some(relay) => Err(GrantError::RelayNotGranted(relay)),
            None => Ok(()),
        }
    }

    /// Returns whether the grant may cover `destination`, as far as known before a name is
    /// resolved.
    #[must_use]
    pub fn may_cover(&self, destination: &Destination) -> bool {
        self.covers(Target::of(destination))
    }

    /// Returns whether the grant's rules cover `target`. That is not the whole decision: see
    /// [`Check`].
    ///
    /// [`Check`]: crate::policy::Check
    #[must_use]
    pub fn covers(&self, target: Target<'_>) -> bool {
        self.destinations.iter().any(|rule| target.is_covered_by(rule))
    }

    fn put(&self, out: &mut Vec<u8>, key_id: KeyId) -> Result<(), GrantError> {
        let (not_before_ms, expires_ms) = (unix_ms(self.not_before), unix_ms(self.expires));
        if not_before_ms >= expires_ms {
            let value = format!("{not_before_ms} ms to {expires_ms} ms");
            let expected = "a grant that begins before it ends";
            return Err(GrantError::invalid("span of validity", value, expected));
        }
        let says_more = self.extensions != Extensions::default();
        out.extend_from_slice(if says_more { &MAGIC_2 } else { &MAGIC });
        out.extend_from_slice(key_id.as_bytes());
        out.extend_from_slice(self.gateway.as_bytes());
        out.extend_from_slice(&not_before_ms.to_be_bytes());
        out.extend_from_slice(&expires_ms.to_be_bytes());
        out.extend_from_slice(&self.sessions.map_or(0, NonZeroU32::get).to_be_bytes());
        match &self.relays {
            Relays::Any => out.push(ANY_RELAY),
            Relays::Listed(listed) if listed.len() <= RELAY_LIMIT => {
                out.push(listed.len() as u8);
                out.extend(listed.iter().flatten());
            }
            Relays::Listed(listed) => {
                let expected = "at most 16 relays, or `any`";
                return Err(GrantError::invalid("number of relays", listed.len(), expected));
            }
        }
        if !(1..=RULE_LIMIT).contains(&self.destinations.len()) {
            let expected = "1 to 32 destination rules";
            let count = self.destinations.len();
            return Err(GrantError::invalid("number of destinations", count, expected));
        }
        out.push(self.destinations.len() as u8);
        self.destinations.iter().for_each(|rule| rule.put(out));
        if says_more {
            self.extensions.put(out)?;
        }
        let bytes = out.len() + SIGNATURE_BYTES;
        if bytes > GRANT_LIMIT {
            return Err(GrantError::TooLong { what: "grant", bytes, limit: GRANT_LIMIT });
        }
        Ok(())
    }

    fn take(reader: &mut Reader<'_>) -> Result<(Self, KeyId), GrantError> {
        let says_more = reader.either_magic([MAGIC, MAGIC_2], "grant magic and version")? == 1;
        let key_id = KeyId::from_bytes(reader.array("operator key id")?);
        let gateway = PublicIdentity::from_bytes(reader.array("gateway identity")?);
        let not_before = take_time(reader)?;
        let at = reader.at();
        let expires = take_time(reader)?;
        if expires <= not_before {
            return Err(GrantError::Malformed { what: "grant expiry", at });
        }
        let sessions = NonZeroU32::new(reader.u32("session limit")?);
        let relays = take_relays(reader)?;
        let at = reader.at();
        let count = usize::from(reader.u8("number of destinations")?);
        if !(1..=RULE_LIMIT).contains(&count) {
            return Err(GrantError::Malformed { what: "number of destinations", at });
        }
        let destinations =
            (0..count).map(|_| DestinationRule::take(reader)).collect::<Result<_, _>>()?;
        let extensions = if says_more { Extensions::take(reader)? } else { Extensions::default() };
        let grant =
            Self { gateway, not_before, expires, sessions, relays, destinations, extensions };
        Ok((grant, key_id))
    }
}

/// Reads a time that [`Timestamp`] can hold.
fn take_time(reader: &mut Reader<'_>) -> Result<Timestamp, GrantError> {
    let at = reader.at();
    let ms = reader.u64("time of the grant")?;
    let time = from_unix_ms(ms);
    if unix_ms(time) == ms {
        Ok(time)
    } else {
        Err(GrantError::Malformed { what: "time of the grant", at })
    }
}

fn take_relays(reader: &mut Reader<'_>) -> Result<Relays, GrantError> {
    let what = "relays of the grant";
    let at = reader.at();
    let count = reader.u8(what)?;
    if count == ANY_RELAY {
        return Ok(Relays::Any);
    }
    if usize::from(count) > RELAY_LIMIT {
        return Err(GrantError::Malformed { what, at });
    }
    let listed = (0..count).map(|_| reader.array(what)).collect::<Result<Vec<_>, _>>()?;
    if !listed.is_sorted_by(|one, next| one < next) {
        return Err(GrantError::Malformed { what, at });
    }
    Ok(Relays::Listed(listed))
}

fn signed_message(bytes: &[u8]) -> Vec<u8> {
    [SIGNATURE_CONTEXT, bytes].concat()
}

/// The id of one signed grant, e.g. in logs and to count its sessions: the first bytes of its hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantId([u8; 16]);

impl GrantId {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let hash = blake3::hash(bytes);
        let mut id = [0; 16];
        id.copy_from_slice(&hash.as_bytes()[..16]);
        Self(id)
    }

    pub(crate) const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl std::str::FromStr for GrantId {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let refused = || GrantError::invalid("name of a grant", text, "32 hexadecimal digits");
        if text.len() != 32 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(refused());
        }
        u128::from_str_radix(text, 16).map(|id| Self(id.to_be_bytes())).map_err(|_| refused())
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A signed grant: well-formed, its signature not necessarily valid.
///
/// Its text form is `twgrant_` and base32 with a checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedGrant {
    bytes: Vec<u8>,
    grant: Grant,
    key_id: KeyId,
}

impl SignedGrant {
    /// Parses a grant without verifying the signature.
    ///
    /// # Errors
    /// [`GrantError::Malformed`] or [`GrantError::TooLong`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GrantError> {
        if bytes.len() > GRANT_LIMIT {
            return Err(GrantError::TooLong {
                what: "grant",
                bytes: bytes.len(),
                limit: GRANT_LIMIT,
            });
        }
        let mut reader = Reader::new(bytes);
        let (grant, key_id) = Grant::take(&mut reader)?;
        reader.take(SIGNATURE_BYTES, "grant signature")?;
        reader.end("end of the grant")?;
        Ok(Self { bytes: bytes.to_vec(), grant, key_id })
    }

    /// Returns the bytes on the wire.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> GrantId {
        GrantId::of(&self.bytes)
    }

    /// Returns the id of the operator key that it claims to be signed with.
    #[must_use]
    pub fn key_id(&self) -> KeyId {
        self.key_id
    }

    /// Returns the grant without verification, for display. Relays use [`SignedGrant::verify`].
    #[must_use]
    pub fn unverified(&self) -> &Grant {
        &self.grant
    }

    /// Returns the grant, if one of `operators` signed it. Its time is checked separately:
    /// [`Grant::check_expiry`].
    ///
    /// # Errors
    /// [`GrantError::UnknownKey`] or [`GrantError::BadSignature`].
    pub fn verify(&self, operators: &[OperatorPublicKey]) -> Result<&Grant, GrantError> {
        let (message, signature) = self.bytes.split_at(self.bytes.len() - SIGNATURE_BYTES);
        let signature = signature.try_into().expect("split at the length of a signature");
        let message = signed_message(message);
        let mut named = operators.iter().filter(|key| key.key_id() == self.key_id).peekable();
        if named.peek().is_none() {
            return Err(GrantError::UnknownKey(self.key_id));
        }
        if named.any(|key| key.has_signed(&message, signature)) {
            Ok(&self.grant)
        } else {
            Err(GrantError::BadSignature(self.key_id))
        }
    }

    /// Returns the verified grant with its id and its operator's, for later checks whether it is
    /// still accepted.
    ///
    /// # Errors
    /// As [`SignedGrant::verify`].
    pub fn into_verified(
        self,
        operators: &[OperatorPublicKey],
    ) -> Result<VerifiedGrant, GrantError> {
        self.verify(operators)?;
        Ok(VerifiedGrant { id: self.id(), operator: self.key_id, grant: Arc::new(self.grant) })
    }
}

/// A grant whose signature was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedGrant {
    /// Its id.
    pub id: GrantId,
    /// The operator key that signed it.
    pub operator: KeyId,
    /// Its contents.
    pub grant: Arc<Grant>,
}

impl std::str::FromStr for SignedGrant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        Self::from_bytes(&text::decode("grant", GRANT_TEXT, text)?)
    }
}

impl fmt::Display for SignedGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&text::encode(GRANT_TEXT, &self.bytes))
    }
}

text::serde_as_text!(SignedGrant);
