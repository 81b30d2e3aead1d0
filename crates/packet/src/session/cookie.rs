//! Stateless authentication of initiations: MACs and cookies, as in WireGuard.
//!
//! The first tag (MAC1 in WireGuard) rejects peers that do not know the responder's public
//! identity, at the cost of one hash. When initiations come faster than Diffie-Hellman steps are
//! worth, those without a valid second tag (MAC2) are answered with a cookie: a keyed hash of the
//! sender's address under a secret that changes every two minutes. A sender that returns it
//! receives at that address.

use tradewind_grant::PublicIdentity;
use tradewind_units::{Duration, Timestamp};

use super::random::Randomness;

const FIRST_CONTEXT: &str = "tradewind 2026-11 packet session: first tag v1";
const ANSWER_CONTEXT: &str = "tradewind 2026-11 packet session: cookie's tag v1";
const SECOND_CONTEXT: &str = "tradewind 2026-11 packet session: second tag v1";

/// The time for which a cookie's secret is used; its cookies are accepted for as long again.
/// Source: WireGuard, 5.4.7.
pub(super) const COOKIE_TIME: Duration = Duration::from_secs(120);

type Tag = [u8; 16];

fn tag(key: &[u8; 32], parts: &[&[u8]]) -> Tag {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    let mut tag = [0; 16];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    tag
}

/// Compares tags in constant time.
pub(super) fn tags_match(one: &Tag, other: &Tag) -> bool {
    u128::from_ne_bytes(*one) ^ u128::from_ne_bytes(*other) == 0
}

/// The MAC keys of a responder's public identity.
#[derive(Debug, Clone)]
pub(super) struct FirstMacKeys {
    first: [u8; 32],
    answer: [u8; 32],
}

impl FirstMacKeys {
    pub(super) fn of(responder: &PublicIdentity) -> Self {
        Self {
            first: blake3::derive_key(FIRST_CONTEXT, responder.as_bytes()),
            answer: blake3::derive_key(ANSWER_CONTEXT, responder.as_bytes()),
        }
    }

    /// Returns an initiation's first tag.
    pub(super) fn first_tag(&self, covered: &[u8]) -> Tag {
        tag(&self.first, &[covered])
    }

    /// Returns the tag of the cookie that answers the initiation with this first tag.
    pub(super) fn answer_tag(&self, first_tag: &Tag, cookie: &Tag) -> Tag {
        tag(&self.answer, &[first_tag, cookie])
    }
}

/// Returns an initiation's second tag.
pub(super) fn second_tag(cookie: &Tag, covered: &[u8]) -> Tag {
    tag(&blake3::derive_key(SECOND_CONTEXT, cookie), &[covered])
}

/// Issues and verifies cookies.
#[derive(Debug)]
pub(super) struct CookieJar {
    secret: [u8; 32],
    before: [u8; 32],
    since: Timestamp,
}

impl CookieJar {
    pub(super) fn new(now: Timestamp, randomness: &mut Randomness) -> Self {
        Self { secret: randomness.draw(), before: randomness.draw(), since: now }
    }

    /// Changes the secret when it is due.
    pub(super) fn turn(&mut self, now: Timestamp, randomness: &mut Randomness) {
        if now.since(self.since) < COOKIE_TIME {
            return;
        }
        let fresh = now.since(self.since) < COOKIE_TIME * 2;
        self.before = if fresh { self.secret } else { randomness.draw() };
        self.secret = randomness.draw();
        self.since = now;
    }

    /// Returns the cookie for `address`.
    pub(super) fn bake(&self, address: &[u8]) -> Tag {
        tag(&self.secret, &[address])
    }

    /// Returns whether `second` was made with a cookie for `address`.
    pub(super) fn knows(&self, address: &[u8], covered: &[u8], second: &Tag) -> bool {
        [&self.secret, &self.before]
            .iter()
            .any(|secret| tags_match(&second_tag(&tag(secret, &[address]), covered), second))
    }
}
