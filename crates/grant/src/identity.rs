//! Identities: static X25519 keys of gateways and relays, Ed25519 keys of operators.
//!
//! An identity is a Diffie-Hellman key: two parties that know each other's public half share a
//! [`PairKey`](crate::PairKey) without a message, so a header's proof costs less than a microsecond
//! instead of a signature. An operator's key only signs grants.
//!
//! Text forms (see the prefixes below) carry a checksum. Secret halves print as `[secret]` in
//! `Debug` and are wiped when dropped; their text is returned only by `to_secret_text`.

use std::fmt;
use std::sync::Arc;

use ed25519_dalek::Signer;
use zeroize::Zeroizing;

use crate::{GrantError, IdentitySigner, text};

const PUBLIC_IDENTITY: &str = "twid_";
const IDENTITY_KEY: &str = "twidkey_";
const OPERATOR_PUBLIC_KEY: &str = "twop_";
const OPERATOR_KEY: &str = "twopkey_";

const FINGERPRINT_CONTEXT: &str = "tradewind 2026-11 relay fingerprint v1";
const KEY_ID_CONTEXT: &str = "tradewind 2026-11 operator key id v1";

/// Bytes of an operator's signature.
pub(crate) const SIGNATURE_BYTES: usize = 64;

/// Length of a [`PublicIdentity`]'s fingerprint: long enough that no second relay with the same one
/// can be found.
pub const FINGERPRINT_BYTES: usize = 16;

/// A gateway's or relay's secret identity; clones share one copy of it.
#[derive(Clone)]
pub struct IdentityKey(Arc<x25519_dalek::StaticSecret>);

impl IdentityKey {
    /// Creates a key from 32 bytes of the system's entropy.
    #[must_use]
    pub fn from_entropy(entropy: [u8; 32]) -> Self {
        let entropy = Zeroizing::new(entropy);
        Self(Arc::new(x25519_dalek::StaticSecret::from(*entropy)))
    }

    /// Returns the public half.
    #[must_use]
    pub fn public(&self) -> PublicIdentity {
        PublicIdentity(x25519_dalek::PublicKey::from(&*self.0).to_bytes())
    }

    /// Returns the text form, for the owner's key file only.
    #[must_use]
    pub fn to_secret_text(&self) -> Zeroizing<String> {
        Zeroizing::new(text::encode(IDENTITY_KEY, self.0.as_bytes()))
    }

    /// Returns the secret half for other handshakes than this crate's: 32 bytes of an X25519 key.
    #[must_use]
    pub fn to_secret_bytes(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0.to_bytes())
    }

    /// Returns the signer of handshakes in this identity's name.
    #[must_use]
    pub fn signer(&self) -> IdentitySigner {
        IdentitySigner::of(self.0.as_bytes())
    }

    /// Returns the shared secret with `other`; `None` for a weak `other`.
    pub(crate) fn shared_secret(
        &self,
        other: &PublicIdentity,
    ) -> Option<x25519_dalek::SharedSecret> {
        let secret = self.0.diffie_hellman(&x25519_dalek::PublicKey::from(other.0));
        secret.was_contributory().then_some(secret)
    }
}

impl std::str::FromStr for IdentityKey {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        text::decode_32("secret identity key", IDENTITY_KEY, text).map(Self::from_entropy)
    }
}

impl fmt::Debug for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdentityKey([secret])")
    }
}

/// A gateway's or relay's public identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicIdentity([u8; 32]);

impl PublicIdentity {
    /// Creates an identity from its 32 bytes, unchecked.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the fingerprint by which grants list a relay.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; FINGERPRINT_BYTES] {
        let hash = blake3::derive_key(FINGERPRINT_CONTEXT, &self.0);
        let mut fingerprint = [0; FINGERPRINT_BYTES];
        fingerprint.copy_from_slice(&hash[..FINGERPRINT_BYTES]);
        fingerprint
    }
}

impl std::str::FromStr for PublicIdentity {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        text::decode_32("public identity", PUBLIC_IDENTITY, text).map(Self)
    }
}

impl fmt::Display for PublicIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&text::encode(PUBLIC_IDENTITY, &self.0))
    }
}

impl fmt::Debug for PublicIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

text::serde_as_text!(PublicIdentity);

/// An operator's secret key, which signs grants.
#[derive(Clone)]
pub struct OperatorKey(ed25519_dalek::SigningKey);

impl OperatorKey {
    /// Creates a key from 32 bytes of the system's entropy.
    #[must_use]
    pub fn from_entropy(entropy: [u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(&entropy))
    }

    /// Returns the public half.
    #[must_use]
    pub fn public(&self) -> OperatorPublicKey {
        OperatorPublicKey(self.0.verifying_key())
    }

    /// Returns the text form, for the owner's key file only.
    #[must_use]
    pub fn to_secret_text(&self) -> Zeroizing<String> {
        Zeroizing::new(text::encode(OPERATOR_KEY, self.0.as_bytes()))
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message).to_bytes()
    }
}

impl std::str::FromStr for OperatorKey {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        text::decode_32("secret operator key", OPERATOR_KEY, text).map(Self::from_entropy)
    }
}

impl fmt::Debug for OperatorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OperatorKey([secret])")
    }
}

/// An operator's public key, with which relays verify grants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OperatorPublicKey(ed25519_dalek::VerifyingKey);

impl OperatorPublicKey {
    /// Returns the id by which grants name this key.
    #[must_use]
    pub fn key_id(&self) -> KeyId {
        let hash = blake3::derive_key(KEY_ID_CONTEXT, self.0.as_bytes());
        let mut id = [0; KeyId::BYTES];
        id.copy_from_slice(&hash[..KeyId::BYTES]);
        KeyId(id)
    }

    pub(crate) fn has_signed(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        self.0.verify_strict(message, &signature).is_ok()
    }
}

impl std::str::FromStr for OperatorPublicKey {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let what = "public operator key";
        let bytes = text::decode_32(what, OPERATOR_PUBLIC_KEY, text)?;
        match ed25519_dalek::VerifyingKey::from_bytes(&bytes) {
            Ok(key) if !key.is_weak() => Ok(Self(key)),
            _ => Err(GrantError::BadText {
                what,
                problem: "its bytes are no Ed25519 key".to_owned(),
                expected: "a key as printed by `tradewind keygen`".to_owned(),
            }),
        }
    }
}

impl fmt::Display for OperatorPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&text::encode(OPERATOR_PUBLIC_KEY, self.0.as_bytes()))
    }
}

impl fmt::Debug for OperatorPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

text::serde_as_text!(OperatorPublicKey);

/// The id of the operator key that signed a grant: the first bytes of the public key's hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; Self::BYTES]);

impl KeyId {
    /// Its length. After a collision both keys are tried.
    pub const BYTES: usize = 8;

    pub(crate) const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
