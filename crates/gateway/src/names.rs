//! Addresses of relays that routes give by name: looked up from time to time, and when one cannot
//! be dialled. A relay is authenticated by its identity like all others: its name only yields an
//! address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tradewind_desired::RouteTable;
use tradewind_grant::Destination;
use tradewind_units::Duration;

use super::loops::without_loops;
use super::session::GatewayService;
use tradewind_stream::failure::plain;

/// Interval between lookups of all names. Chosen: the time for which resolvers keep answers, or
/// less.
const REFRESH: Duration = Duration::from_secs(30);
/// That interval while a name has no answer.
const RETRY: Duration = Duration::from_secs(2);
/// Delay between a failed dial and the next lookup. Chosen: a relay that is gone costs one lookup a
/// second.
const SOON: Duration = Duration::from_secs(1);
/// Longest lookup of one name. Chosen: the time for which resolvers wait for one server.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Keeps the addresses of named relays up to date.
pub(super) async fn follow(service: &GatewayService) {
    let routes = &service.routes;
    let mut version = routes.version();
    loop {
        version.mark_unchanged();
        let pause = if look_up(service).await { REFRESH } else { RETRY };
        tokio::select! {
            () = sleep(pause) => {}
            () = routes.names.ask_again.notified() => sleep(SOON).await,
            changed = version.changed() => if changed.is_err() { return },
        }
    }
}

/// Looks all names up; returns whether every relay has an address.
pub(super) async fn look_up(service: &GatewayService) -> bool {
    let mut all_known = true;
    let (names, resolver) = (&service.routes.names, &service.dialler.resolver);
    let wanted: BTreeSet<_> = service.routes.current().table.names().cloned().collect();
    for wanted in wanted {
        let Destination::Name { name, port } = &wanted else { continue };
        let asking = resolver.resolve(name.as_str(), *port, &service.relay_lookups);
        let missed = |why: &str| names.missed(&wanted, why);
        match timeout(LOOKUP_TIMEOUT, asking).await {
            Ok(Ok(addresses)) if !addresses.is_empty() => {
                match without_loops(&service.tproxy, addresses) {
                    Ok(addresses) => names.found(&wanted, &addresses),
                    Err(why) => all_known &= missed(&why),
                }
            }
            Ok(Ok(_)) => all_known &= missed("its name has no address"),
            Ok(Err(error)) => all_known &= missed(&format!("its name: {}", plain(&error))),
            Err(_) => all_known &= missed("its name: no answer in time"),
        }
    }
    service.routes.place_again();
    all_known
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
