//! How often peers are named, so that whether one is need not be looked for among all who name
//! some.

use std::collections::BTreeMap;

use crate::id::Peer;

/// The peers that are named.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally(BTreeMap<Peer, usize>);

impl Tally {
    pub(crate) fn has(&self, peer: Peer) -> bool {
        self.0.contains_key(&peer)
    }

    /// Names a peer once more.
    pub(crate) fn add(&mut self, peer: Peer) {
        *self.0.entry(peer).or_default() += 1;
    }

    /// Names it once less; whether nobody names it any more.
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
