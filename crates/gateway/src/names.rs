//! Addresses of relays that routes give by name: looked up from time to time, and when one cannot
//! be dialled. A relay is authenticated by its identity like all others: its name only yields an
//! address.

mod lookup;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tradewind_desired::RouteTable;
use tradewind_grant::Destination;

pub(super) use lookup::{follow, look_up};

/// The known addresses of named relays.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: Mutex<BTreeMap<Destination, Known>>,
    ask_again: Notify,
}

#[derive(Debug, Default)]
struct Known {
    address: Option<SocketAddr>,
    /// The addresses at which it could not be dialled.
    failed: BTreeSet<SocketAddr>,
    /// True if it has been logged that the lookup failed.
    is_logged: bool,
}

impl Known {
    /// Updates the relay's address from a lookup: it stays the same unless it is no longer in the
    /// answer or has failed, and there is another address.
    fn found(&mut self, addresses: &[SocketAddr]) {
        let before = self.address;
        self.is_logged = false;
        self.failed.retain(|failed| addresses.contains(failed));
        if addresses.iter().all(|address| self.failed.contains(address)) {
            self.failed = before.into_iter().filter(|at| addresses.contains(at)).collect();
        }
        let is_good = |address: &SocketAddr| !self.failed.contains(address);
        let stays = before.filter(|at| addresses.contains(at) && is_good(at));
        let next = stays.or_else(|| addresses.iter().copied().find(is_good));
        self.address = next.or(before);
        if self.address == before {
            // There is no other address.
            self.failed.clear();
        }
    }
}

impl Names {
    /// Returns `table` with the known addresses of its named relays.
    pub(super) fn place(&self, table: &RouteTable) -> RouteTable {
        let known = self.lock();
        table.placed(|name| known.get(name)?.address)
    }

    /// Notes that a relay at `address` could not be dialled.
    pub(super) fn suspect(&self, address: SocketAddr) {
        let mut known = self.lock();
        for known in known.values_mut().filter(|known| known.address == Some(address)) {
            known.failed.insert(address);
            self.ask_again.notify_one();
        }
    }

    fn found(&self, name: &Destination, addresses: &[SocketAddr]) {
        self.lock().entry(name.clone()).or_default().found(addresses);
    }

    /// Logs a failed lookup once; returns whether the relay has an address nevertheless.
    fn missed(&self, name: &Destination, why: &str) -> bool {
        let mut known = self.lock();
        let known = known.entry(name.clone()).or_default();
        if !std::mem::replace(&mut known.is_logged, true) {
            tracing::warn!("relay {name}: {why}");
        }
        known.address.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Destination, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 7000).into()
    }

    #[test]
    fn relay_address_is_stable() {
        let mut known = Known::default();
        let mut now_at = |failed: Option<u8>, addresses: &[u8]| {
            known.failed.extend(failed.map(at));
            known.found(&addresses.iter().copied().map(at).collect::<Vec<_>>());
            known.address
        };
        assert_eq!(now_at(None, &[1, 2]), Some(at(1)));
        assert_eq!(now_at(None, &[2, 1]), Some(at(1)), "in another order");
        assert_eq!(now_at(Some(1), &[1, 2]), Some(at(2)));
        assert_eq!(now_at(Some(2), &[1, 2]), Some(at(1)), "in turns");
        assert_eq!(now_at(None, &[3]), Some(at(3)), "gone");
        assert_eq!(now_at(Some(3), &[3]), Some(at(3)), "there is no other");
        assert_eq!(now_at(None, &[4, 3]), Some(at(3)), "nor is that held against it");
    }
}
