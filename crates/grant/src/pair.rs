//! Keys that two identities share, and a bounded cache of them.
//!
//! A Diffie-Hellman step costs tens of microseconds, so it is done once for each pair. From its
//! result and both public halves (the smaller first, so that both ends derive the same) three keys
//! are derived, one for each kind of tag: a tag of one kind is never valid as another.

use std::collections::BTreeMap;

use zeroize::Zeroize;

use crate::{GrantError, IdentityKey, PublicIdentity};

const GATEWAY_CONTEXT: &str = "tradewind 2026-11 hop header: gateway to relay v1";
const NEIGHBOUR_CONTEXT: &str = "tradewind 2026-11 hop header: neighbour to relay v1";
const REPLY_CONTEXT: &str = "tradewind 2026-11 reply: relay to neighbour v1";

/// Length of every tag: 128 bits, forged once in 2^128 tries.
pub(crate) const TAG_BYTES: usize = 16;
/// A keyed hash that proves its sender.
pub(crate) type Tag = [u8; TAG_BYTES];

/// Pairs that [`PairKeys`] keeps before it drops the least recently used. Chosen: 4,096 pairs take
/// half a megabyte and are more than the gateways of one relay.
pub const PAIR_LIMIT: usize = 4096;

/// The keys that two identities share: one for each kind of tag. Wiped when dropped.
#[derive(Clone)]
pub struct PairKey {
    gateway: [u8; 32],
    neighbour: [u8; 32],
    reply: [u8; 32],
}

impl PairKey {
    /// Derives the key that `mine` shares with `theirs`.
    ///
    /// # Errors
    /// When `theirs` is a point of low order, with which everybody shares the same secret.
    pub fn derive(mine: &IdentityKey, theirs: &PublicIdentity) -> Result<Self, GrantError> {
        let secret = mine.shared_secret(theirs).ok_or(GrantError::WeakIdentity(*theirs))?;
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

    /// Returns the gateway's tag over the header's fixed part, given its hash.
    pub(crate) fn gateway_tag(&self, transcript: &[u8; 32]) -> Tag {
        tag(&self.gateway, &[transcript])
    }

    /// Returns the neighbour's tag over the whole header: hash of the fixed part, gateway's tags,
    /// hop.
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

/// Returns a keyed BLAKE3 hash of the parts, truncated to a tag.
pub(crate) fn tag(key: &[u8; 32], parts: &[&[u8]]) -> Tag {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    let mut tag = [0; TAG_BYTES];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_BYTES]);
    tag
}

/// Compares tags in constant time.
pub(crate) fn tags_match(ours: &Tag, theirs: &Tag) -> bool {
    u128::from_ne_bytes(*ours) ^ u128::from_ne_bytes(*theirs) == 0
}

/// One identity's keys with others, derived on first use.
///
/// There are two generations: when the younger is full the older is dropped, so at most `limit`
/// pairs are held and pairs in use stay.
#[derive(Debug)]
pub struct PairKeys {
    mine: IdentityKey,
    public: PublicIdentity,
    young: BTreeMap<PublicIdentity, CachedPair>,
    old: BTreeMap<PublicIdentity, CachedPair>,
    limit: usize,
}

#[derive(Debug)]
struct CachedPair {
    key: PairKey,
    /// True once the owner of the other half has proved itself here.
    is_proven: bool,
}

impl PairKeys {
    /// Creates an empty cache for at most `limit` pairs (at least two).
    #[must_use]
    pub fn new(mine: IdentityKey, limit: usize) -> Self {
        let public = mine.public();
        Self { mine, public, young: BTreeMap::new(), old: BTreeMap::new(), limit: limit.max(2) }
    }

    /// Returns the identity whose keys these are.
    #[must_use]
    pub fn public(&self) -> PublicIdentity {
        self.public
    }

    /// Returns the number of pairs held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Returns whether no pair is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether `theirs` was [proven](Self::prove), and its key held since. A key alone
    /// proves nothing: it is held for any identity that was named.
    #[must_use]
    pub fn is_proven(&self, theirs: &PublicIdentity) -> bool {
        let held = self.young.get(theirs).or_else(|| self.old.get(theirs));
        held.is_some_and(|held| held.is_proven)
    }

    /// Marks `theirs` as proven for as long as its key is held: the owner of the other half has
    /// authenticated itself here.
    pub fn prove(&mut self, theirs: &PublicIdentity) {
        if let Some(held) = self.young.get_mut(theirs).or_else(|| self.old.get_mut(theirs)) {
            held.is_proven = true;
        }
    }

    /// Returns the key shared with `theirs`.
    ///
    /// # Errors
    /// As [`PairKey::derive`].
    pub fn get(&mut self, theirs: &PublicIdentity) -> Result<&PairKey, GrantError> {
        if !self.young.contains_key(theirs) {
            let held = match self.old.remove(theirs) {
                Some(held) => held,
                None => CachedPair { key: PairKey::derive(&self.mine, theirs)?, is_proven: false },
            };
            if self.young.len() >= self.limit / 2 {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(*theirs, held);
        }
        Ok(&self.young[theirs].key)
    }
}
