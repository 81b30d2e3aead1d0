//! Signatures by an identity: of handshakes (TLS 1.3), and of a controller's documents.
//!
//! An X25519 key signs as in XEdDSA [Perrin, The XEdDSA and VXEdDSA Signature Schemes, 2.3]: its
//! point in Edwards form, of the two with its coordinate the one whose sign bit is 0, is the public
//! key of an ordinary Ed25519 signature, and its scalar, negated where that point requires it, the
//! secret one. So an identity determines the key that its handshakes must be signed with, and the
//! other way round; no certificate is needed.
//!
//! The one difference to XEdDSA: the nonce of a signature is a hash of a secret and the message, as
//! in Ed25519 itself (RFC 8032, 5.1.6), and needs no entropy.
//!
//! Signed messages begin with a context of their own: TLS handshakes with 64 spaces (RFC 8446,
//! 4.4.3), documents with their name. Every other proof of an identity is a keyed hash under a
//! separately derived key.

use std::fmt;

use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use curve25519_dalek::montgomery::MontgomeryPoint;
use curve25519_dalek::scalar::{Scalar, clamp_integer};
use ed25519_dalek::hazmat::{ExpandedSecretKey, raw_sign};
use ed25519_dalek::{Sha512, VerifyingKey};

use crate::PublicIdentity;

const NONCE_CONTEXT: &str = "tradewind 2026-11 identity signature nonces v1";

/// Length of a signature.
pub const SIGNATURE_BYTES: usize = 64;

/// A signer in an identity's name. Wiped when dropped.
pub struct IdentitySigner {
    secret: ExpandedSecretKey,
    public: VerifyingKey,
}

impl IdentitySigner {
    /// Creates the signer of the identity whose X25519 secret is `secret`.
    pub(crate) fn of(secret: &[u8; 32]) -> Self {
        let scalar = Scalar::from_bytes_mod_order(clamp_integer(*secret));
        let point = EdwardsPoint::mul_base(&scalar);
        let is_negative = point.compress().as_bytes()[31] >> 7 == 1;
        let (scalar, point) = if is_negative { (-scalar, -point) } else { (scalar, point) };
        let hash_prefix = blake3::derive_key(NONCE_CONTEXT, secret);
        let secret = ExpandedSecretKey { scalar, hash_prefix };
        Self { secret, public: VerifyingKey::from(point) }
    }

    /// Returns the Ed25519 key that verifies its signatures.
    #[must_use]
    pub fn verifying_key(&self) -> [u8; 32] {
        self.public.to_bytes()
    }

    /// Signs `message`; an Ed25519 signature (RFC 8032).
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        raw_sign::<Sha512>(&self.secret, message, &self.public).to_bytes()
    }
}

impl fmt::Debug for IdentitySigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdentitySigner([secret])")
    }
}

impl PublicIdentity {
    /// Returns the Ed25519 key that verifies this identity's signatures; `None` for bytes that are
    /// no identity, or a weak one.
    #[must_use]
    pub fn verifying_key(&self) -> Option<[u8; 32]> {
        let point = MontgomeryPoint(*self.as_bytes()).to_edwards(0)?;
        (!point.is_small_order()).then(|| point.compress().to_bytes())
    }

    /// Returns true if this identity signed `message`; false for an identity that has no key.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        let key = self.verifying_key().and_then(|key| VerifyingKey::from_bytes(&key).ok());
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        key.is_some_and(|key| key.verify_strict(message, &signature).is_ok())
    }

    /// Returns the identity of an Ed25519 key; `None` when no identity has it.
    #[must_use]
    pub fn of_verifying_key(key: &[u8; 32]) -> Option<Self> {
        let point = CompressedEdwardsY(*key).decompress()?;
        let identity = Self::from_bytes(point.to_montgomery().to_bytes());
        (identity.verifying_key() == Some(*key)).then_some(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IdentityKey;
    use ed25519_dalek::Signature;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn identity_verifies_its_signatures(secret: [u8; 32], message: Vec<u8>) {
            let key = IdentityKey::from_entropy(secret);
            let signer = key.signer();
            let public = key.public().verifying_key().unwrap();
            prop_assert_eq!(public, signer.verifying_key());
            prop_assert_eq!(PublicIdentity::of_verifying_key(&public), Some(key.public()));
            let public = VerifyingKey::from_bytes(&public).unwrap();
            let signature = Signature::from_bytes(&signer.sign(&message));
            prop_assert!(public.verify_strict(&message, &signature).is_ok());
            let other = public.verify_strict(b"another", &signature);
            prop_assert!(other.is_err() || message == b"another");
        }

        #[test]
        fn keys_and_identities_map_to_each_other(bytes: [u8; 32]) {
            // A returned identity leads to the same key again.
            if let Some(identity) = PublicIdentity::of_verifying_key(&bytes) {
                prop_assert_eq!(identity.verifying_key(), Some(bytes));
            }
        }
    }

    #[test]
    fn identity_of_low_order_has_no_key() {
        for weak in [[0; 32], std::array::from_fn(|at| u8::from(at == 0))] {
            assert_eq!(PublicIdentity::from_bytes(weak).verifying_key(), None);
        }
        // The neutral point, and a point with its sign bit set.
        let neutral = std::array::from_fn(|at| u8::from(at == 0));
        assert_eq!(PublicIdentity::of_verifying_key(&neutral), None);
        let mut negative = IdentityKey::from_entropy([7; 32]).signer().verifying_key();
        negative[31] |= 0x80;
        assert_eq!(PublicIdentity::of_verifying_key(&negative), None);
    }
}
