//! What a node is told.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde::Deserialize;
use tradewind_grant::{
    Hop, IdentityKey, OperatorPublicKey, PublicIdentity, RelayPolicy, SignedGrant,
};

use crate::NodeError;

/// Which ways a flow's packets take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Ways {
    /// The Internet alone.
    Direct = 1,
    /// The relays, and the Internet while they do not answer.
    Relays = 2,
    /// Both; the first copy counts.
    Both = 3,
}

impl Ways {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Direct, Self::Relays, Self::Both].into_iter().find(|ways| *ways as u8 == byte)
    }
}

/// One local port whose datagrams go to one destination behind a far endpoint.
#[derive(Debug, Clone)]
pub struct Path {
    /// Where applications write to; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Where the far endpoint delivers.
    pub to: SocketAddr,
    /// The far endpoint.
    pub far: Hop,
    /// The relays before it, in order; may be empty when `ways` is direct.
    pub relays: Vec<Hop>,
    /// Which ways the packets take.
    pub ways: Ways,
}

/// A node's configuration.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Where neighbours reach it; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Who it is.
    pub identity: IdentityKey,
    /// Threads. An endpoint has one.
    pub workers: usize,
    /// Whose grants it trusts.
    pub operators: Vec<OperatorPublicKey>,
    /// Relays that open sessions here without a grant.
    pub neighbours: BTreeSet<PublicIdentity>,
    /// What it delivers to, and which next hops it sends to; nothing unless told.
    pub policy: RelayPolicy,
    /// The grant that its own paths use.
    pub grant: Option<SignedGrant>,
    /// Its own paths.
    pub paths: Vec<Path>,
}

/// More threads than any machine that this is meant for has cores.
const MOST_WORKERS: usize = 1024;

impl NodeConfig {
    pub(crate) fn check(&self) -> Result<(), NodeError> {
        let refused = |key, problem: &str| Err(NodeError::Config { key, problem: problem.into() });
        if !(1..=MOST_WORKERS).contains(&self.workers) {
            return refused("workers", "expected 1 to 1024 threads");
        }
        if self.paths.is_empty() {
            return Ok(());
        }
        if self.workers != 1 {
            return refused("workers", "a node with paths of its own has one worker");
        }
        if self.grant.is_none() {
            return refused("grant", "missing, and there are paths");
        }
        if self.paths.iter().any(|path| path.ways != Ways::Direct && path.relays.is_empty()) {
            return refused("relays", "missing; expected at least one, or `ways = \"direct\"`");
        }
        Ok(())
    }
}
