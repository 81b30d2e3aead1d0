//! The hello of a warm connection: a relay or gateway that keeps a connection to the next relay
//! proves its identity before there is a session, so that the other side keeps it as well. It opens
//! no session: each sends its own hop header later, which is checked like any other.
//!
//! Numbers big-endian:
//!
//! ```text
//! bytes  field
//!     3  magic "TWW"
//!     1  version, 1
//!    32  identity of the dialling side
//!     8  issued at, ms since the Unix epoch
//!    16  nonce: random, new for every hello
//!    16  tag: keyed hash of the hash of the bytes so far, with the key of neighbours
//! ```
//!
//! The answer is a [`Reply`](crate::Reply), as for a header.

use tradewind_units::Timestamp;

use crate::header::Nonce;
use crate::pair::{PairKey, PairKeys, TAG_BYTES, Tag, tags_match};
use crate::wire::{Reader, from_unix_ms, unix_ms};
use crate::{GrantError, PublicIdentity, ReplyKey};

/// Length of a hello.
pub const HELLO_BYTES: usize = SIGNED_BYTES + TAG_BYTES;

const MAGIC: [u8; 4] = *b"TWW\x01";
const SIGNED_BYTES: usize = 4 + 32 + 8 + 16;
/// The hop in the tag's input: higher than any header's.
const NO_HOP: u8 = u8::MAX;

/// Returns whether `bytes` begin like a hello.
#[must_use]
pub fn is_hello(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Returns the sender that a hello names; nothing of that is proven.
#[must_use]
pub fn sender(hello: &[u8]) -> Option<PublicIdentity> {
    let bytes = hello.strip_prefix(&MAGIC)?.first_chunk()?;
    Some(PublicIdentity::from_bytes(*bytes))
}

/// A parsed hello; nothing in it is verified yet.
#[derive(Debug)]
pub(crate) struct Hello {
    pub(crate) from: PublicIdentity,
    pub(crate) issued_at: Timestamp,
    pub(crate) nonce: Nonce,
    pub(crate) transcript: [u8; 32],
    tag: Tag,
}

impl Hello {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, GrantError> {
        let mut reader = Reader::new(bytes);
        reader.magic(MAGIC, "hello magic and version")?;
        let from = PublicIdentity::from_bytes(reader.array("identity")?);
        let issued_at = from_unix_ms(reader.u64("time of issue")?);
        let nonce = Nonce::from_entropy(reader.array("nonce")?);
        let transcript = *blake3::hash(&bytes[..reader.at()]).as_bytes();
        let tag = reader.array("tag")?;
        reader.end("end of the hello")?;
        Ok(Self { from, issued_at, nonce, transcript, tag })
    }

    pub(crate) fn is_proven_by(&self, key: &PairKey) -> bool {
        tags_match(&key.neighbour_tag(&self.transcript, &[], NO_HOP), &self.tag)
    }
}

/// Creates a hello from the owner of `keys` to `to`, with the key that opens its reply.
pub(crate) fn hello(
    keys: &mut PairKeys,
    now: Timestamp,
    nonce: &Nonce,
    to: &PublicIdentity,
) -> Result<(Vec<u8>, ReplyKey), GrantError> {
    let own = keys.public();
    let key = keys.get(to)?;
    let (bytes, transcript) = seal(key, &own, now, nonce);
    Ok((bytes, ReplyKey::new(key, transcript, 0)))
}

/// Returns the bytes of a hello, and their transcript.
fn seal(
    key: &PairKey,
    from: &PublicIdentity,
    now: Timestamp,
    nonce: &Nonce,
) -> (Vec<u8>, [u8; 32]) {
    let mut bytes = Vec::with_capacity(HELLO_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(from.as_bytes());
    bytes.extend_from_slice(&unix_ms(now).to_be_bytes());
    bytes.extend_from_slice(nonce.as_bytes());
    let transcript = *blake3::hash(&bytes).as_bytes();
    bytes.extend_from_slice(&key.neighbour_tag(&transcript, &[], NO_HOP));
    (bytes, transcript)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Destination, Grant, Hop, IdentityKey, OperatorKey, Relays, Reply, Request, Sealer,
        Verifier, header::Route,
    };

    fn identity(seed: u8) -> IdentityKey {
        IdentityKey::from_entropy([seed; 32])
    }

    fn operator() -> OperatorKey {
        OperatorKey::from_entropy([3; 32])
    }

    fn verifier(seed: u8) -> Verifier {
        Verifier::new(identity(seed), vec![operator().public()])
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    /// Returns the hello of a relay by its main identity, at 1,000 s.
    fn hello_of(
        relay: &mut Verifier,
        nonce: Nonce,
        to: &PublicIdentity,
    ) -> Result<(Vec<u8>, ReplyKey), GrantError> {
        let from = relay.public();
        relay.hello(at(1000), nonce, &from, to)
    }

    fn nonce(number: u8) -> Nonce {
        Nonce::from_entropy([number; 16])
    }

    /// Returns a gateway of this identity, whose grant ends at 1,500 s.
    fn gateway(seed: u8) -> Sealer {
        let grant = Grant {
            gateway: identity(seed).public(),
            not_before: Timestamp::ZERO,
            expires: at(1500),
            sessions: None,
            extensions: crate::Extensions::default(),
            relays: Relays::Any,
            destinations: vec!["192.0.2.0/24:443".parse().unwrap()],
        };
        Sealer::new(identity(seed), grant.sign(&operator()).unwrap()).unwrap()
    }

    /// Returns a header of the gateway `seed` over the relays `route`.
    fn header(seed: u8, route: &[u8], now: Timestamp) -> Vec<u8> {
        let hop = |seed: &u8| Hop {
            address: format!("192.0.2.{seed}:7000").parse().unwrap(),
            identity: identity(*seed).public(),
        };
        let route = Route::new(route.iter().map(hop).collect()).unwrap();
        let destination: Destination = "192.0.2.99:443".parse().unwrap();
        let flow = "web".parse().unwrap();
        let request = Request { flow: &flow, destination: &destination, route: &route };
        gateway(seed).seal(now, nonce(200), &request).unwrap().bytes
    }

    /// Returns relay 2, to which the gateway or relay 1 has opened a session.
    fn remote_that_knows_1() -> Verifier {
        let mut remote = verifier(2);
        remote.open(at(1000), &header(1, &[2], at(1000))).unwrap();
        remote
    }

    #[test]
    fn hello_is_accepted_once_and_in_time() {
        let (mut near, mut remote) = (verifier(1), remote_that_knows_1());
        let (bytes, key) = hello_of(&mut near, nonce(7), &remote.public()).unwrap();
        assert_eq!(bytes.len(), HELLO_BYTES);
        assert!(is_hello(&bytes));
        assert_eq!(sender(&bytes), Some(near.public()));
        let reply = remote.open_hello(at(1001), &bytes).unwrap().seal(&Reply::ok(0));
        assert_eq!(key.open(&reply).unwrap(), Reply::ok(0));
        let replayed = remote.open_hello(at(1002), &bytes).unwrap_err();
        assert!(matches!(replayed, GrantError::Replayed(_)), "{replayed}");
        let late = hello_of(&mut near, nonce(8), &remote.public()).unwrap().0;
        assert!(matches!(remote.open_hello(at(2000), &late), Err(GrantError::Skew { .. })));
    }

    #[test]
    fn hello_of_a_merely_named_identity_is_refused() {
        let unknown = |remote: &mut Verifier, who: u8| {
            let bytes = hello_of(&mut verifier(who), nonce(7), &remote.public()).unwrap().0;
            let refused = remote.open_hello(at(1000), &bytes).unwrap_err();
            let named = identity(who).public();
            assert!(matches!(refused, GrantError::UnknownNeighbour(who) if who == named));
        };
        let mut remote = remote_that_knows_1();
        // This relay has sent it a hello, or forwarded a session to it.
        hello_of(&mut remote, nonce(9), &identity(4).public()).unwrap();
        unknown(&mut remote, 4);
        let onward = remote.open(at(1000), &header(5, &[2, 6], at(1000))).unwrap();
        remote.forward(&onward).unwrap();
        unknown(&mut remote, 6);
        // It was named as the previous relay, and sealed nothing.
        remote.open(at(1000), &header(5, &[7, 2], at(1000))).unwrap_err();
        unknown(&mut remote, 7);
        // Its grant has ended.
        remote.open(at(1510), &header(8, &[2], at(1490))).unwrap_err();
        unknown(&mut remote, 8);
    }

    #[test]
    fn gateways_hello_is_a_relays_hello() {
        let (mut near, remote) = (verifier(1), verifier(2));
        let gateways =
            gateway(1).hello(at(1000), nonce(7), &near.public(), &remote.public()).unwrap();
        assert_eq!(gateways.0, hello_of(&mut near, nonce(7), &remote.public()).unwrap().0);
    }

    #[test]
    fn bit_flips_and_truncation_are_refused() {
        let (mut near, mut remote) = (verifier(1), remote_that_knows_1());
        let (bytes, _) = hello_of(&mut near, nonce(7), &remote.public()).unwrap();
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert!(remote.open_hello(at(1000), &changed).is_err(), "byte {index}");
            assert!(remote.open_hello(at(1000), &bytes[..index]).is_err(), "cut at {index}");
        }
        assert!(remote.open_hello(at(1000), &bytes).is_ok());
    }
}
