//! The settings of a session machine.

use std::collections::BTreeSet;

use tradewind_grant::{IdentityKey, OperatorPublicKey, PublicIdentity};

/// The limits of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most neighbours at a time; at most 16,384.
    pub peers: usize,
    /// The most of these with one identity that shows a grant.
    pub peers_each: usize,
    /// The initiations a second that are handled without a cookie.
    pub handshakes: u32,
    /// The initiations a second that are handled with a cookie. Chosen: at some 150 us each a sixth
    /// of a core.
    pub handshakes_with_cookie: u32,
    /// The most initiations that are remembered to detect replays, each for a minute at most.
    pub replays: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            peers: 4096,
            peers_each: 64,
            handshakes: 100,
            handshakes_with_cookie: 1000,
            replays: 1 << 17,
        }
    }
}

/// The identity of this side, and the peers that it accepts.
#[derive(Debug, Clone)]
pub struct SessionsConfig {
    /// The identity of this side.
    pub identity: IdentityKey,
    /// The operators whose grants open sessions.
    pub operators: Vec<OperatorPublicKey>,
    /// The relays that need no grant.
    pub neighbours: BTreeSet<PublicIdentity>,
    /// The limits.
    pub limits: Limits,
}
