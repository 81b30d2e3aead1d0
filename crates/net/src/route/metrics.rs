//! The metrics that routes set on their connections (`ip route`: `initcwnd`, `congctl`, `quickack`
//! and so on), to be retained when connections are routed another way.
//!
//! Learned values ([`crate::route`]) are not included: their maker follows the new routes itself.

use std::collections::BTreeMap;

use ipnet::IpNet;
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteType,
};

use super::PROTOCOL;
use super::kernel::{Kernel, metrics_of, prefix_of, table_of};
use crate::error::Result;

/// Metrics of the path, not of the connection: packet size (`RTAX_MTU`) and segment size
/// (`RTAX_ADVMSS`). Another path has its own.
const OF_THE_WAY: u32 = 1 << 2 | 1 << 8;

/// A prefix, and the metrics of connections to it.
pub(crate) type Part = (IpNet, Vec<RouteMetric>);

/// The metrics of the main table's routes around and inside some ranges: for each prefix those of
/// the preferred route, with its priority.
#[derive(Debug, Default)]
pub(crate) struct RouteMetrics(BTreeMap<IpNet, (u32, Vec<RouteMetric>)>);

impl RouteMetrics {
    /// Reads the metrics of the routes around and inside `ranges`.
    ///
    /// # Errors
    /// When the kernel does not list its routes.
    ///
    /// # Cost
    /// Reads all routes.
    pub(crate) fn read(kernel: &mut Kernel, ranges: &[IpNet]) -> Result<Self> {
        let mut metrics = Self::default();
        kernel.each(|route| metrics.add(ranges, &route))?;
        Ok(metrics)
    }

    fn add(&mut self, ranges: &[IpNet], route: &RouteMessage) {
        let Some(prefix) = prefix_of(route).filter(|_| counts(route)) else { return };
        let touches = |range: &IpNet| range.contains(&prefix) || prefix.contains(range);
        let priority = priority_of(route);
        let is_first = self.0.get(&prefix).is_none_or(|(least, _)| priority < *least);
        if is_first && ranges.iter().any(touches) {
            self.0.insert(prefix, (priority, metrics_of(route).filter_map(carried).collect()));
        }
    }

    /// Returns the metrics of connections to `range`, and to the parts of it whose metrics differ
    /// from those around them: `range` first, and each part after the one that contains it.
    pub(crate) fn within(&self, range: IpNet) -> Vec<Part> {
        let all = || self.0.iter().map(|(prefix, (_, metrics))| (prefix, metrics));
        let around = all().filter(|(prefix, _)| prefix.contains(&range));
        let over = around.max_by_key(|(prefix, _)| prefix.prefix_len());
        let mut parts = vec![(range, over.map(|(_, metrics)| metrics.clone()).unwrap_or_default())];
        // Prefixes are ordered by address and length, so the innermost enclosing one is the last
        // that contains it.
        let mut around = vec![0];
        for (prefix, metrics) in all().filter(|(at, _)| range.contains(*at) && **at != range) {
            while around.last().is_some_and(|part| !parts[*part].0.contains(prefix)) {
                around.pop();
            }
            if around.last().is_some_and(|part| parts[*part].1 != *metrics) {
                around.push(parts.len());
                parts.push((*prefix, metrics.clone()));
            }
        }
        parts
    }
}

/// Returns whether packets from any source to the prefix of `route` may leave this host by it: it
/// is in the main table. Learned routes do not count, nor the kernel's cached ones for a single
/// address.
fn counts(route: &RouteMessage) -> bool {
    let main = u32::from(RouteHeader::RT_TABLE_MAIN);
    let header = &route.header;
    table_of(route) == main
        && header.kind == RouteType::Unicast
        && header.protocol != RouteProtocol::Other(PROTOCOL)
        && header.source_prefix_length == 0
        && header.tos == 0
        && !header.flags.contains(RouteFlags::Cloned)
}

fn priority_of(route: &RouteMessage) -> u32 {
    let priority = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Priority(priority) => Some(*priority),
        _ => None,
    });
    priority.unwrap_or(0)
}

/// Returns a metric as set on another path.
fn carried(metric: &RouteMetric) -> Option<RouteMetric> {
    match metric {
        RouteMetric::Mtu(_) | RouteMetric::Advmss(_) => None,
        RouteMetric::Lock(bits) => {
            Some(bits & !OF_THE_WAY).filter(|bits| *bits != 0).map(RouteMetric::Lock)
        }
        other => Some(other.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::route::RouteAddress;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn route(prefix: &str, priority: u32, metrics: &[RouteMetric]) -> RouteMessage {
        let prefix = net(prefix);
        let std::net::IpAddr::V4(address) = prefix.addr() else { panic!("IPv4 here") };
        let mut route = RouteMessage::default();
        route.header.address_family = netlink_packet_route::AddressFamily::Inet;
        route.header.destination_prefix_length = prefix.prefix_len();
        route.header.table = RouteHeader::RT_TABLE_MAIN;
        route.header.kind = RouteType::Unicast;
        route.attributes = vec![
            RouteAttribute::Destination(RouteAddress::Inet(address)),
            RouteAttribute::Priority(priority),
            RouteAttribute::Metrics(metrics.to_vec()),
        ];
        route
    }

    fn window(segments: u32) -> RouteMetric {
        RouteMetric::InitCwnd(segments)
    }

    #[test]
    fn range_and_its_differing_parts_get_their_metrics() {
        let elsewhere = RouteMessage::default();
        let mut learned = route("10.2.9.9/32", 0, &[window(90)]);
        learned.header.protocol = RouteProtocol::Other(PROTOCOL);
        let routes = [
            route("0.0.0.0/0", 0, &[window(10), RouteMetric::Mtu(1400)]),
            route("10.2.0.0/15", 100, &[window(15)]),
            route("10.2.0.0/15", 50, &[window(20), RouteMetric::Lock(1 << 2 | 1 << 13)]),
            route("10.2.3.0/24", 0, &[window(20), RouteMetric::Lock(1 << 13)]),
            route("10.2.4.0/24", 0, &[]),
            route("10.2.4.4/32", 0, &[RouteMetric::CcAlgo("reno".into())]),
            route("10.2.4.5/32", 0, &[RouteMetric::Advmss(900), RouteMetric::Lock(1 << 8)]),
            elsewhere,
            learned,
        ];
        let parts_of = |range: &str| {
            let (range, mut metrics) = (net(range), RouteMetrics::default());
            routes.iter().for_each(|route| metrics.add(&[range], route));
            metrics.within(range)
        };
        let around = vec![window(20), RouteMetric::Lock(1 << 13)];
        let expected = vec![
            (net("10.2.0.0/16"), around),
            (net("10.2.4.0/24"), vec![]),
            (net("10.2.4.4/32"), vec![RouteMetric::CcAlgo("reno".into())]),
        ];
        assert_eq!(parts_of("10.2.0.0/16"), expected);
        assert_eq!(parts_of("10.9.0.0/16"), [(net("10.9.0.0/16"), vec![window(10)])]);
        assert_eq!(parts_of("2001:db8::/32"), [(net("2001:db8::/32"), vec![])]);
        let all = parts_of("0.0.0.0/0");
        assert_eq!(all.len(), 4, "{all:?}");
    }
}
