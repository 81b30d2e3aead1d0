//! The shared secret that a responder may ask for.
//!
//! The responder sends a fresh challenge, the caller answers with a keyed BLAKE3 hash of the
//! challenge and its whole request: the secret is never sent, a proof cannot be used twice, and a
//! request cannot be altered on the way. Test traffic itself carries nothing worth protecting.

use crate::ProbeError;
use crate::protocol::{Challenge, Proof};

const KEY_CONTEXT: &str = "tradewind probe 1 shared secret";
/// Shortest secret. Chosen: below, guessing is practical.
const MIN_BYTES: usize = 16;
/// Longest secret. Chosen.
const MAX_BYTES: usize = 1024;

/// A secret that responder and callers share.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Derives the key from `secret`, e.g. a file's content; surrounding white space is ignored.
    ///
    /// # Errors
    /// When it is shorter than 16 or longer than 1024 bytes. The error does not hold the secret.
    pub fn new(secret: &str) -> Result<Self, ProbeError> {
        let secret = secret.trim();
        if !(MIN_BYTES..=MAX_BYTES).contains(&secret.len()) {
            return Err(ProbeError::Option {
                option: "secret",
                expected: "16 to 1024 bytes".to_owned(),
                value: format!("{} bytes", secret.len()),
            });
        }
        Ok(Self(blake3::derive_key(KEY_CONTEXT, secret.as_bytes())))
    }

    /// Returns the proof that answers `challenge` for the request in `request`.
    #[must_use]
    pub fn prove(&self, challenge: &Challenge, request: &[u8]) -> Proof {
        Proof(*self.hash(challenge, request).as_bytes())
    }

    /// Returns whether `proof` answers `challenge` for `request`, in the same time for any wrong
    /// proof.
    #[must_use]
    pub fn verifies(&self, challenge: &Challenge, request: &[u8], proof: &Proof) -> bool {
        self.hash(challenge, request) == blake3::Hash::from_bytes(proof.0)
    }

    fn hash(&self, challenge: &Challenge, request: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.0).update(&challenge.0).update(request).finalize()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_secret_challenge_and_request_verify() {
        let secret = Secret::new("correct horse battery\n").unwrap();
        let other = Secret::new("incorrect horse battery").unwrap();
        let (challenge, later) = (Challenge([1; 16]), Challenge([2; 16]));
        let proof = secret.prove(&challenge, b"request");
        assert!(secret.verifies(&challenge, b"request", &proof));
        assert!(!secret.verifies(&challenge, b"another", &proof));
        assert!(!secret.verifies(&later, b"request", &proof));
        assert!(!other.verifies(&challenge, b"request", &proof));
    }

    #[test]
    fn guessable_secret_is_refused_and_none_is_printed() {
        let error = Secret::new("short").unwrap_err().to_string();
        assert!(error.contains("5 bytes") && !error.contains("short"), "{error}");
        assert_eq!(format!("{:?}", Secret::new("a secret that is long").unwrap()), "Secret(..)");
    }
}
