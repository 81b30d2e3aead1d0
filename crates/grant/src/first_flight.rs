//! The first flight of an encrypted leg: the dialling side proves that it knows the relay's
//! identity before the relay sends a single byte. A scan of addresses and ports gets no response.
//!
//! ```text
//! bytes  field
//!    16  nonce: random, but its first byte is never "T", with which all plain protocols begin
//!    16  tag: keyed hash of the nonce and the ClientHello, with a key derived from the relay's
//!        identity
//!     x  ClientHello: a whole TLS record
//! ```
//!
//! To others these are random bytes. The tag covers this one ClientHello: a replayed first flight
//! is answered by a handshake that only its original sender can read, so even then the relay's
//! identity is not revealed. Nothing depends on a clock.

use crate::pair::{TAG_BYTES, Tag, tags_match};
use crate::{GrantError, PublicIdentity};

/// Length of the proof, which precedes the ClientHello.
pub const PROOF_BYTES: usize = NONCE_BYTES + TAG_BYTES;
/// Longest ClientHello with its record's head. Chosen: several times ours; it bounds the bytes that
/// a relay reads before the tag is checked.
pub const HELLO_LIMIT: usize = 4096 - PROOF_BYTES;

const NONCE_BYTES: usize = 16;
const KEY_CONTEXT: &str = "tradewind 2026-11 first flight v1";
/// The first byte of hop headers, hellos and joins.
const PLAIN: u8 = b'T';
/// Fields of a TLS record that carries a handshake: its type, its version's first byte, and its
/// head's length.
const HANDSHAKE: u8 = 22;
const VERSION: u8 = 3;
const HEAD_BYTES: usize = 5;

/// Returns whether a connection that begins with `byte` is plain: a hop header, a hello or a join.
#[must_use]
pub const fn is_plain(byte: u8) -> bool {
    byte == PLAIN
}

/// The key that proves first flights to one relay.
#[derive(Clone)]
pub struct FirstFlightKey([u8; 32]);

impl std::fmt::Debug for FirstFlightKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FirstFlightKey")
    }
}

impl FirstFlightKey {
    /// Derives the key of `relay`.
    #[must_use]
    pub fn of(relay: &PublicIdentity) -> Self {
        Self(blake3::derive_key(KEY_CONTEXT, relay.as_bytes()))
    }

    /// Returns the bytes that precede `hello`, a ClientHello with its record's head; `entropy` must
    /// be new each time.
    #[must_use]
    pub fn prove(&self, entropy: [u8; NONCE_BYTES], hello: &[u8]) -> [u8; PROOF_BYTES] {
        let mut proof = [0; PROOF_BYTES];
        let (nonce, tag) = proof.split_at_mut(NONCE_BYTES);
        nonce.copy_from_slice(&entropy);
        if is_plain(nonce[0]) {
            nonce[0] = !PLAIN;
        }
        tag.copy_from_slice(&self.tag(nonce, hello));
        proof
    }

    /// Extracts the ClientHello from the bytes received so far; `None` while it is incomplete. The
    /// error is the same for a sender that does not know this relay, for another protocol, and for
    /// an altered byte.
    ///
    /// # Errors
    /// When the bytes cannot become a first flight to this relay.
    pub fn open<'a>(&self, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, GrantError> {
        let malformed = GrantError::Malformed { what: "first flight to this relay", at: 0 };
        let Some((proof, rest)) = bytes.split_first_chunk::<PROOF_BYTES>() else { return Ok(None) };
        let Some(head) = rest.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = HEAD_BYTES + usize::from(u16::from_be_bytes([head[3], head[4]]));
        if head[0] != HANDSHAKE || head[1] != VERSION || length > HELLO_LIMIT {
            return Err(malformed);
        }
        let Some(hello) = rest.get(..length) else { return Ok(None) };
        let (nonce, tag) = proof.split_at(NONCE_BYTES);
        let tag = Tag::try_from(tag).expect("the rest is a tag");
        if is_plain(nonce[0]) || !tags_match(&self.tag(nonce, hello), &tag) {
            return Err(malformed);
        }
        Ok(Some(hello))
    }

    fn tag(&self, nonce: &[u8], hello: &[u8]) -> Tag {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(nonce).update(hello);
        *hasher.finalize().as_bytes().first_chunk().expect("a hash is longer than a tag")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IdentityKey;

    fn key(seed: u8) -> FirstFlightKey {
        FirstFlightKey::of(&IdentityKey::from_entropy([seed; 32]).public())
    }

    /// Returns a record as long as ours.
    fn hello() -> Vec<u8> {
        [&[22, 3, 1, 1, 44][..], &[7; 300]].concat()
    }

    fn flight(seed: u8, entropy: [u8; 16], hello: &[u8]) -> Vec<u8> {
        [&key(seed).prove(entropy, hello)[..], hello].concat()
    }

    #[test]
    fn first_flight_opens_only_at_its_relay() {
        let bytes = flight(1, [9; 16], &hello());
        assert_eq!(key(1).open(&bytes).unwrap(), Some(&hello()[..]));
        assert!(key(2).open(&bytes).is_err());
        // Bytes that follow it are not part of it.
        let longer = [&bytes[..], b"more"].concat();
        assert_eq!(key(1).open(&longer).unwrap(), Some(&hello()[..]));
    }

    #[test]
    fn altered_byte_is_refused() {
        let bytes = flight(1, [9; 16], &hello());
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            // A longer record is incomplete.
            let opened = key(1).open(&altered);
            assert!(matches!(opened, Err(_) | Ok(None)), "{at}");
        }
    }

    #[test]
    fn unfinished_first_flight_is_incomplete() {
        let bytes = flight(1, [9; 16], &hello());
        for length in 0..bytes.len() {
            assert_eq!(key(1).open(&bytes[..length]).unwrap(), None, "{length}");
        }
    }

    #[test]
    fn plain_client_hello_is_no_first_flight() {
        let bare = [hello(), vec![0; 64]].concat();
        assert!(key(1).open(&bare).is_err());
        let long = [&[0; 32][..], &[22, 3, 1, 0xff, 0xff], &[0; 4096]].concat();
        assert!(key(1).open(&long).is_err());
    }

    #[test]
    fn nonce_differs_from_plain_protocols() {
        let bytes = flight(1, [b'T'; 16], &hello());
        assert!(!is_plain(bytes[0]));
        assert_eq!(key(1).open(&bytes).unwrap(), Some(&hello()[..]));
    }
}
