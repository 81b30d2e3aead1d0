//! Revocations by an operator: of grants, of gateways, and of everything issued before a given
//! time.
//!
//! An operator signs a list, and raises its version whenever something is added. A list applies
//! only to the grants of its operator, so that none of several operators can revoke what another
//! has granted. Format, version 1, at most [`REVOCATIONS_LIMIT`] bytes, numbers big-endian:
//!
//! ```text
//! bytes  field
//!     3  magic "TWV"
//!     1  version of the format, 1
//!     8  id of the operator key that signs
//!     8  version of the list, from 1; a later list has a higher one
//!     8  all grants issued before then are revoked, ms since the Unix epoch; 0: none for their
//!        time
//!     4  number of grants, 0 to 16384
//!  16 x    name of a grant, in ascending order
//!     4  number of gateways, 0 to 16384
//!  32 x    public identity of a gateway, in ascending order
//!    64  Ed25519 signature over the context string and all bytes before
//! ```
//!
//! The text form is `twrevoked_` and base32 with a checksum.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use tradewind_units::Timestamp;

use crate::date::Date;
use crate::identity::SIGNATURE_BYTES;
use crate::wire::{Reader, from_unix_ms, unix_ms};
use crate::{
    GrantError, GrantId, KeyId, OperatorKey, OperatorPublicKey, PublicIdentity, VerifiedGrant, text,
};

/// Most grants of a list, and most gateways. Chosen: far above the grants of one operator.
pub const ENTRY_LIMIT: usize = 16_384;
/// Longest signed list.
pub const REVOCATIONS_LIMIT: usize = FIXED_BYTES + ENTRY_LIMIT * (16 + 32);

const FIXED_BYTES: usize = 4 + 8 + 8 + 8 + 4 + 4 + SIGNATURE_BYTES;
const MAGIC: [u8; 4] = *b"TWV\x01";
const SIGNATURE_CONTEXT: &[u8] = b"tradewind 2026-11 revocation list v1\0";
const TEXT: &str = "twrevoked_";

/// One operator's revocations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RevocationList {
    /// Its version, from 1.
    pub version: u64,
    /// Grants, by name.
    pub grants: BTreeSet<GrantId>,
    /// Gateways, with all grants that were issued to them.
    pub gateways: BTreeSet<PublicIdentity>,
    /// Time before which all grants are revoked by their time of issue, to the millisecond.
    pub issued_before: Option<Timestamp>,
}

impl RevocationList {
    /// Signs the list.
    ///
    /// # Errors
    /// When it has no version or too many entries.
    pub fn sign(&self, operator: &OperatorKey) -> Result<SignedRevocations, GrantError> {
        if self.version == 0 {
            let expected = "a version from 1 on";
            return Err(GrantError::invalid("version of a revocation list", 0, expected));
        }
        for count in [self.grants.len(), self.gateways.len()] {
            if count > ENTRY_LIMIT {
                let expected = "at most 16384 grants and as many gateways";
                return Err(GrantError::invalid("number of revocations", count, expected));
            }
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(operator.public().key_id().as_bytes());
        bytes.extend_from_slice(&self.version.to_be_bytes());
        let before_ms = self.issued_before.map_or(0, unix_ms);
        bytes.extend_from_slice(&before_ms.to_be_bytes());
        bytes.extend_from_slice(&(self.grants.len() as u32).to_be_bytes());
        self.grants.iter().for_each(|id| bytes.extend_from_slice(id.as_bytes()));
        bytes.extend_from_slice(&(self.gateways.len() as u32).to_be_bytes());
        self.gateways.iter().for_each(|gateway| bytes.extend_from_slice(gateway.as_bytes()));
        let signature = operator.sign(&[SIGNATURE_CONTEXT, &bytes].concat());
        bytes.extend_from_slice(&signature);
        SignedRevocations::from_bytes(&bytes)
    }

    /// Returns the entry that revokes a grant, if any.
    fn revokes(&self, verified: &VerifiedGrant) -> Option<String> {
        if self.grants.contains(&verified.id) {
            return Some(format!("grant {}", verified.id));
        }
        if self.gateways.contains(&verified.grant.gateway) {
            return Some(format!("gateway {}", verified.grant.gateway));
        }
        let before = self.issued_before.filter(|before| verified.grant.issued_at() < *before)?;
        Some(format!("what was issued before {}", Date(unix_ms(before) / 1000)))
    }

    fn take(reader: &mut Reader<'_>) -> Result<(Self, KeyId), GrantError> {
        reader.magic(MAGIC, "revocation list magic and version")?;
        let key_id = KeyId::from_bytes(reader.array("operator key id")?);
        let at = reader.at();
        let version = reader.u64("version of the list")?;
        if version == 0 {
            return Err(GrantError::Malformed { what: "version of the list", at });
        }
        let at = reader.at();
        let before_ms = reader.u64("time of issue")?;
        let before = from_unix_ms(before_ms);
        if unix_ms(before) != before_ms {
            return Err(GrantError::Malformed { what: "time of issue", at });
        }
        let grants = take_set(reader, "revoked grants", GrantId::from_bytes)?;
        let gateways = take_set(reader, "revoked gateways", PublicIdentity::from_bytes)?;
        let issued_before = (before_ms > 0).then_some(before);
        Ok((Self { version, grants, gateways, issued_before }, key_id))
    }
}

/// Reads a count, and so many entries in ascending order.
fn take_set<const N: usize, T: Ord + Copy>(
    reader: &mut Reader<'_>,
    what: &'static str,
    entry: impl Fn([u8; N]) -> T,
) -> Result<BTreeSet<T>, GrantError> {
    let at = reader.at();
    let count = reader.u32(what)? as usize;
    if count > ENTRY_LIMIT {
        return Err(GrantError::Malformed { what, at });
    }
    let mut last = None;
    let mut set = BTreeSet::new();
    for _ in 0..count {
        let at = reader.at();
        let next = entry(reader.array(what)?);
        if last.replace(next).is_some_and(|last| last >= next) {
            return Err(GrantError::Malformed { what, at });
        }
        set.insert(next);
    }
    Ok(set)
}

/// A signed list: well-formed, its signature not necessarily valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedRevocations {
    bytes: Vec<u8>,
    list: RevocationList,
    key_id: KeyId,
}

impl SignedRevocations {
    /// Parses a list without verifying the signature.
    ///
    /// # Errors
    /// [`GrantError::Malformed`] or [`GrantError::TooLong`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GrantError> {
        if bytes.len() > REVOCATIONS_LIMIT {
            let (what, limit) = ("revocation list", REVOCATIONS_LIMIT);
            return Err(GrantError::TooLong { what, bytes: bytes.len(), limit });
        }
        let mut reader = Reader::new(bytes);
        let (list, key_id) = RevocationList::take(&mut reader)?;
        reader.take(SIGNATURE_BYTES, "signature of the list")?;
        reader.end("end of the list")?;
        Ok(Self { bytes: bytes.to_vec(), list, key_id })
    }

    /// Returns the bytes, as parsed by [`SignedRevocations::from_bytes`].
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the id of the operator key that it claims to be signed with.
    #[must_use]
    pub const fn key_id(&self) -> KeyId {
        self.key_id
    }

    /// Returns the list, if one of `operators` signed it.
    ///
    /// # Errors
    /// [`GrantError::UnknownKey`] or [`GrantError::FalseRevocations`].
    pub fn verify(&self, operators: &[OperatorPublicKey]) -> Result<&RevocationList, GrantError> {
        let (message, signature) = self.bytes.split_at(self.bytes.len() - SIGNATURE_BYTES);
        let signature = signature.try_into().expect("split at the length of a signature");
        let message = [SIGNATURE_CONTEXT, message].concat();
        let mut named = operators.iter().filter(|key| key.key_id() == self.key_id).peekable();
        if named.peek().is_none() {
            return Err(GrantError::UnknownKey(self.key_id));
        }
        if named.any(|key| key.has_signed(&message, signature)) {
            Ok(&self.list)
        } else {
            Err(GrantError::FalseRevocations(self.key_id))
        }
    }
}

impl std::str::FromStr for SignedRevocations {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        Self::from_bytes(&text::decode("revocation list", TEXT, text)?)
    }
}

impl fmt::Display for SignedRevocations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&text::encode(TEXT, &self.bytes))
    }
}

/// The lists in force, of all operators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revocations(BTreeMap<KeyId, Arc<RevocationList>>);

impl Revocations {
    /// Returns these lists with `lists` in place of those of the same operators. Lists of operators
    /// that are not among `operators` are ignored: their grants are not accepted anyway.
    ///
    /// # Errors
    /// [`GrantError::FalseRevocations`], or [`GrantError::OlderRevocations`] for a list that does
    /// not come after the one in force.
    pub fn updated(
        &self,
        lists: &[SignedRevocations],
        operators: &[OperatorPublicKey],
    ) -> Result<Self, GrantError> {
        let mut updated = self.clone();
        for signed in lists {
            let list = match signed.verify(operators) {
                Ok(list) => list,
                Err(GrantError::UnknownKey(_)) => continue,
                Err(error) => return Err(error),
            };
            let known = updated.0.get(&signed.key_id);
            if let Some(known) = known.filter(|known| known.version >= list.version)
                && **known != *list
            {
                return Err(GrantError::OlderRevocations {
                    operator: signed.key_id,
                    found: list.version,
                    known: known.version,
                });
            }
            updated.0.insert(signed.key_id, Arc::new(list.clone()));
        }
        Ok(updated)
    }

    /// Checks that a grant is not revoked.
    ///
    /// # Errors
    /// [`GrantError::Revoked`].
    pub fn check(&self, verified: &VerifiedGrant) -> Result<(), GrantError> {
        let Some(list) = self.0.get(&verified.operator) else { return Ok(()) };
        let Some(what) = list.revokes(verified) else { return Ok(()) };
        Err(GrantError::Revoked { what, operator: verified.operator, version: list.version })
    }

    /// Returns the version of each operator's list.
    pub fn versions(&self) -> impl Iterator<Item = (KeyId, u64)> {
        self.0.iter().map(|(operator, list)| (*operator, list.version))
    }
}
