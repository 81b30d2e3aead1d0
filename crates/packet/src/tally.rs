//! Reference counts of peers, so that a lookup needs no search through all flows.

use std::collections::BTreeMap;

use crate::id::Peer;

/// The peers that flows refer to, with their counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally(BTreeMap<Peer, usize>);

impl Tally {
    pub(crate) fn has(&self, peer: Peer) -> bool {
        self.0.contains_key(&peer)
    }

    /// Adds a reference to a peer.
    pub(crate) fn add(&mut self, peer: Peer) {
        *self.0.entry(peer).or_default() += 1;
    }

    /// Removes a reference; returns whether it was the last.
    pub(crate) fn remove(&mut self, peer: Peer) -> bool {
        let Some(times) = self.0.get_mut(&peer) else { return true };
        *times -= 1;
        let is_last = *times == 0;
        if is_last {
            self.0.remove(&peer);
        }
        is_last
    }
}
