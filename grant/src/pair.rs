//! Keys that two identities share, and a bounded cache of them.
//!
//! A Diffie-Hellman step costs tens of microseconds, so each is done once for a pair. From its
//! result and both public halves (the smaller first, so that both ends derive the same) come three
//! keys, one for each kind of tag: a tag of one kind never passes as another.

use std::collections::BTreeMap;

use zeroize::Zeroize;

use crate::{GrantError, IdentityKey, PublicIdentity};

const GATEWAY_CONTEXT: &str = "tradewind 2026-11 hop header: gateway to relay v1";
const NEIGHBOUR_CONTEXT: &str = "tradewind 2026-11 hop header: neighbour to relay v1";
const REPLY_CONTEXT: &str = "tradewind 2026-11 reply: relay to neighbour v1";

/// Bytes of every tag: 128 bits, forged once in 2^128 tries.
pub(crate) const TAG_BYTES: usize = 16;
/// One keyed proof.
pub(crate) type Tag = [u8; TAG_BYTES];

/// Pairs that [`PairKeys`] keeps before it forgets those unused the longest. Chosen: 4,096 pairs
/// take half a megabyte and are more than the gateways of one relay.
pub const PAIR_LIMIT: usize = 4096;

/// What two identities share: one key for each kind of tag. Wiped when dropped.
#[derive(Clone)]
pub struct PairKey {
    gateway: [u8; 32],
    neighbour: [u8; 32],
    reply: [u8; 32],
}

impl PairKey {
    /// The key that `mine` shares with `theirs`.
    ///
    /// # Errors
    /// When `theirs` is a point of low order, with which everybody shares the same secret.
    pub fn derive(mine: &IdentityKey, theirs: &PublicIdentity) -> Result<Self, GrantError> {
        let secret = mine.agree(theirs).ok_or(GrantError::WeakIdentity(*theirs))?;
        let own = mine.public();
        let (low, high) = if own < *theirs { (&own, theirs) } else { (theirs, &own) };
        let mut material = [0; 96];
        material[..32].copy_from_slice(secret.as_bytes());
        material[32..64].copy_from_slice(low.as_bytes());
        material[64..].copy_from_slice(high.as_bytes());
        let key = Self {
            gateway: blake3::derive_key(GATEWAY_CONTEXT, &material),
            neighbour: blake3::derive_key(NEIGHBOUR_CONTEXT, &material),
            reply: blake3::derive_key(REPLY_CONTEXT, &material),
        };
        material.zeroize();
        Ok(key)
    }

    /// The gateway's tag over the header's fixed part, given its hash.
    pub(crate) fn gateway_tag(&self, transcript: &[u8; 32]) -> Tag {
        tag(&self.gateway, &[transcript])
    }

    /// The neighbour's tag over the whole header: hash of the fixed part, gateway's tags, hop.
    pub(crate) fn neighbour_tag(&self, transcript: &[u8; 32], tags: &[u8], hop: u8) -> Tag {
        tag(&self.neighbour, &[transcript, tags, &[hop]])
    }

    pub(crate) fn reply_key(&self) -> [u8; 32] {
        self.reply
    }
}

impl Drop for PairKey {
    fn drop(&mut self) {
        self.gateway.zeroize();
        self.neighbour.zeroize();
        self.reply.zeroize();
    }
}

impl std::fmt::Debug for PairKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PairKey([secret])")
    }
}

/// A keyed BLAKE3 hash of the parts, cut to a tag.
pub(crate) fn tag(key: &[u8; 32], parts: &[&[u8]]) -> Tag {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    let mut tag = [0; TAG_BYTES];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_BYTES]);
    tag
}

/// Compares tags in a time that does not depend on where they differ.
pub(crate) fn tags_match(ours: &Tag, theirs: &Tag) -> bool {
    u128::from_ne_bytes(*ours) ^ u128::from_ne_bytes(*theirs) == 0
}

/// One identity's keys with others, derived when first asked for.
///
/// Two generations: when the younger is full the elder is forgotten, so at most `limit` pairs
/// are held and pairs in use stay.
#[derive(Debug)]
pub struct PairKeys {
    mine: IdentityKey,
    public: PublicIdentity,
    young: BTreeMap<PublicIdentity, Held>,
    old: BTreeMap<PublicIdentity, Held>,
    limit: usize,
}

#[derive(Debug)]
struct Held {
    key: PairKey,
    /// Who has the other half has shown it here.
    is_proven: bool,
}

impl PairKeys {
    /// No keys yet, at most `limit` later (at least two).
    #[must_use]
    pub fn new(mine: IdentityKey, limit: usize) -> Self {
        let public = mine.public();
        Self { mine, public, young: BTreeMap::new(), old: BTreeMap::new(), limit: limit.max(2) }
    }

    /// Whose keys these are.
    #[must_use]
    pub fn public(&self) -> PublicIdentity {
        self.public
    }

    /// How many pairs are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether no pair is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `theirs` was [proven](Self::prove), and the key shared with it has been held since. A key is held of whomever
    /// somebody has named.
    #[must_use]
    pub fn is_proven(&self, theirs: &PublicIdentity) -> bool {
        let held = self.young.get(theirs).or_else(|| self.old.get(theirs));
        held.is_some_and(|held| held.is_proven)
    }

    /// Remembers, as long as the key is held, that who has the other half of `theirs` has shown it here.
    pub fn prove(&mut self, theirs: &PublicIdentity) {
        if let Some(held) = self.young.get_mut(theirs).or_else(|| self.old.get_mut(theirs)) {
            held.is_proven = true;
        }
    }

    /// The key shared with `theirs`.
    ///
    /// # Errors
    /// As [`PairKey::derive`].
    pub fn get(&mut self, theirs: &PublicIdentity) -> Result<&PairKey, GrantError> {
        if !self.young.contains_key(theirs) {
            let held = match self.old.remove(theirs) {
                Some(held) => held,
                None => Held { key: PairKey::derive(&self.mine, theirs)?, is_proven: false },
            };
            if self.young.len() >= self.limit / 2 {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(*theirs, held);
        }
        Ok(&self.young[theirs].key)
    }
}
