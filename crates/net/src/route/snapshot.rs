//! A snapshot of a network namespace's routes, to find routes that changed without a notification.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};

use ipnet::IpNet;
use netlink_packet_core::Emitable as _;
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteNextHop, RouteNextHopFlags,
};

use super::kernel::prefix_of;

/// A fingerprint of all routes of each prefix, independent of their order.
#[derive(Debug, Default)]
pub(super) struct Snapshot(BTreeMap<IpNet, u64>);

impl Snapshot {
    /// Adds a route. A route that the kernel cloned for a single address is ignored.
    pub(super) fn add(&mut self, route: RouteMessage) {
        if route.header.flags.contains(RouteFlags::Cloned) {
            return;
        }
        if let Some(prefix) = prefix_of(&route) {
            let all = self.0.entry(prefix).or_default();
            *all = all.wrapping_add(fingerprint(route));
        }
    }

    /// Returns the prefixes whose routes differ from those `before`.
    pub(super) fn changed_since(&self, before: &Self) -> Vec<IpNet> {
        let differ = |(prefix, all): &(&IpNet, &u64)| before.0.get(*prefix) != Some(*all);
        let new_or_other = self.0.iter().filter(differ).map(|(prefix, _)| *prefix);
        let gone = before.0.keys().filter(|prefix| !self.0.contains_key(*prefix)).copied();
        new_or_other.chain(gone).collect()
    }
}

/// Returns a hash of the fields of `route` that decide where traffic goes. A next hop whose link
/// has no carrier counts as dead if the kernel treats it so, which it then reports.
fn fingerprint(mut route: RouteMessage) -> u64 {
    route.header.flags &= RouteFlags::Dead | RouteFlags::Onlink;
    // Remaining lifetime and use counts.
    route.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::CacheInfo(_)));
    let hops = route.attributes.iter_mut().filter_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops),
        _ => None,
    });
    hops.flatten().for_each(|hop: &mut RouteNextHop| {
        hop.flags &= RouteNextHopFlags::Dead | RouteNextHopFlags::Onlink;
    });
    let mut bytes = vec![0; route.buffer_len()];
    route.emit(&mut bytes);
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    hasher.finish()
}
