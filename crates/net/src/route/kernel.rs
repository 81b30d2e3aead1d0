//! The kernel's routes over netlink: looking up a route, setting a copy of it with initial windows,
//! removing it.
//!
//! Each maker of routes has a [`Mark`] that identifies its routes, so that foreign ones are not
//! changed.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
    RouteNextHopFlags, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use tradewind_units::Segments;

use super::Windows;
use super::rules::Suppressions;
use super::snapshot::Snapshot;
use crate::error::{NetError, Result};
use crate::netlink::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, Netlink};

/// Segments of the largest window.
const MAX_SEGMENTS: u32 = 1 << 20;

/// The mark that identifies the routes of one purpose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    /// Their protocol number.
    pub(crate) protocol: u8,
    /// Their metric: of several routes of one prefix, the lowest counts.
    pub(crate) metric: u32,
}

/// The routes of the network namespace where this was opened.
#[derive(Debug)]
pub(crate) struct Kernel {
    netlink: Netlink,
    mark: Mark,
}

impl Kernel {
    /// Opens the netlink socket; changes nothing.
    pub(crate) fn open(mark: Mark) -> Result<Self> {
        Ok(Self { netlink: Netlink::open(NETLINK_ROUTE)?, mark })
    }

    /// Returns the protocol number of our routes.
    pub(super) const fn protocol(&self) -> RouteProtocol {
        RouteProtocol::Other(self.mark.protocol)
    }

    /// Returns all routes with our mark, of any process.
    pub(crate) fn marked(&mut self) -> Result<Vec<RouteMessage>> {
        let (mut found, ours) = (Vec::new(), self.mark.protocol);
        self.each(|route| {
            if route.header.protocol == RouteProtocol::Other(ours) {
                found.push(route);
            }
        })?;
        Ok(found)
    }

    /// Returns all foreign routes.
    pub(super) fn snapshot(&mut self) -> Result<Snapshot> {
        let (mut snapshot, ours) = (Snapshot::default(), self.mark.protocol);
        self.each(|route| {
            if route.header.protocol != RouteProtocol::Other(ours) {
                snapshot.add(route);
            }
        })?;
        Ok(snapshot)
    }

    /// Calls `each` with every route.
    pub(super) fn each(&mut self, mut each: impl FnMut(RouteMessage)) -> Result<()> {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut all = RouteMessage::default();
            all.header.address_family = family;
            let question = RouteNetlinkMessage::GetRoute(all);
            let mut take = |answer| {
                if let Some(route) = route_of(answer) {
                    each(route);
                }
            };
            self.ask_each(question, NLM_F_DUMP, "list routes", &mut take)?;
        }
        Ok(())
    }

    /// Returns the rules that suppress routes with short prefixes.
    pub(super) fn suppressions(&mut self) -> Result<Suppressions> {
        let mut found = Suppressions::default();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut all = RuleMessage::default();
            all.header.family = family;
            let question = RouteNetlinkMessage::GetRule(all);
            let mut take = |answer| {
                if let RouteNetlinkMessage::NewRule(rule) = answer {
                    found.add(&rule);
                }
            };
            match self.ask_each(question, NLM_F_DUMP, "list routing rules", &mut take) {
                // A kernel without policy routing has none.
                Err(NetError::System { source, .. }) if has_no_rules(&source) => {}
                other => other?,
            }
        }
        Ok(found)
    }

    /// Waits until the kernel has finished a link change that it reported: during that, no route is
    /// changed.
    ///
    /// # Errors
    /// Without the right to change routes.
    pub(super) fn settle(&mut self) -> Result<()> {
        // A change without effect: of a route that does not exist, an address for documentation
        // [RFC 5737] with a foreign metric.
        let mut nobodys = RouteMessage::default();
        nobodys.header.address_family = AddressFamily::Inet;
        nobodys.header.destination_prefix_length = 32;
        nobodys.header.table = RouteHeader::RT_TABLE_MAIN;
        nobodys.header.protocol = RouteProtocol::Other(self.mark.protocol);
        let nowhere = IpAddr::from([192, 0, 2, 82]);
        nobodys.attributes.push(RouteAttribute::Destination(address(nowhere)));
        nobodys.attributes.push(RouteAttribute::Priority(self.mark.metric - 1));
        self.delete(&nobodys)
    }

    /// Returns the route that leads to `prefix` now; `None` if there is none, or it ends on this
    /// host or nowhere.
    pub(crate) fn leading_to(&mut self, prefix: IpNet) -> Result<Option<RouteMessage>> {
        let mut question = RouteMessage::default();
        let (family, length) = family_of(prefix.addr());
        question.header.address_family = family;
        question.header.destination_prefix_length = length;
        question.header.flags = RouteFlags::LookupTable | RouteFlags::FibMatch;
        question.attributes.push(RouteAttribute::Destination(address(prefix.addr())));
        let action = format!("look up the route to {prefix}");
        let found = match self.ask(RouteNetlinkMessage::GetRoute(question), 0, &action) {
            Ok(found) => found,
            Err(NetError::System { source, .. }) if is_unreachable(&source) => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(found.into_iter().next().filter(|route| route.header.kind == RouteType::Unicast))
    }

    /// Sets a copy of `base` for `prefix` alone, with `windows` and our mark; returns it.
    pub(crate) fn copy(
        &mut self,
        base: RouteMessage,
        prefix: IpNet,
        windows: Windows,
    ) -> Result<RouteMessage> {
        let route = copy_of(base, prefix, windows, self.mark);
        let flags = NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK;
        let action = format!("set the route to {prefix}");
        self.ask(RouteNetlinkMessage::NewRoute(route.clone()), flags, &action)?;
        Ok(route)
    }

    /// Routes `prefix` into the device with index `device`, in `table`, with `metrics`, or without
    /// metrics if the kernel refuses them. Returns whether it accepted them.
    ///
    /// # Errors
    /// Without the right to change routes, and where the device is gone or has no IPv6.
    pub(crate) fn lead(
        &mut self,
        prefix: IpNet,
        (table, device): (u32, u32),
        metrics: Vec<RouteMetric>,
    ) -> Result<bool> {
        let mut route = self.route_in(prefix, table);
        let is_ipv4 = prefix.addr().is_ipv4();
        route.header.scope = if is_ipv4 { RouteScope::Link } else { RouteScope::Universe };
        route.attributes.push(RouteAttribute::Oif(device));
        let flags = NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK;
        let action = format!("set the route to {prefix}");
        let tells_nothing = metrics.is_empty();
        if !tells_nothing {
            let mut telling = route.clone();
            telling.attributes.push(RouteAttribute::Metrics(metrics));
            let done = self.ask(RouteNetlinkMessage::NewRoute(telling), flags, &action);
            if done.is_ok() {
                return Ok(true);
            }
        }
        self.ask(RouteNetlinkMessage::NewRoute(route), flags, &action).map(|_| tells_nothing)
    }

    /// Removes the route to `prefix` set by [`Kernel::lead`] in `table`, if it exists.
    pub(crate) fn lead_no_more(&mut self, prefix: IpNet, table: u32) -> Result<()> {
        self.delete(&self.route_in(prefix, table))
    }

    /// Returns the message that identifies a route with our mark.
    fn route_in(&self, prefix: IpNet, table: u32) -> RouteMessage {
        let mut route = RouteMessage::default();
        route.header = RouteHeader {
            address_family: family_of(prefix.addr()).0,
            destination_prefix_length: prefix.prefix_len(),
            protocol: RouteProtocol::Other(self.mark.protocol),
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        route.attributes = vec![
            RouteAttribute::Table(table),
            RouteAttribute::Destination(address(prefix.addr())),
            RouteAttribute::Priority(self.mark.metric),
        ];
        route
    }

    /// Removes `route`, if it exists.
    pub(crate) fn delete(&mut self, route: &RouteMessage) -> Result<()> {
        let header = RouteHeader {
            scope: RouteScope::NoWhere,
            flags: RouteFlags::empty(),
            ..route.header.clone()
        };
        let tells = |attribute: &&RouteAttribute| {
            matches!(
                attribute,
                RouteAttribute::Destination(_)
                    | RouteAttribute::Table(_)
                    | RouteAttribute::Priority(_)
            )
        };
        let mut key = RouteMessage::default();
        key.header = RouteHeader { kind: RouteType::Unspec, ..header };
        key.attributes = route.attributes.iter().filter(tells).cloned().collect();
        match self.ask(RouteNetlinkMessage::DelRoute(key), NLM_F_ACK, "remove a route") {
            // It was removed with its link, or by another process.
            Err(NetError::System { source, .. }) if source.raw_os_error() == Some(libc::ESRCH) => {
                Ok(())
            }
            other => other.map(|_| ()),
        }
    }

    fn ask(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        action: &str,
    ) -> Result<Vec<RouteMessage>> {
        let mut answers = Vec::new();
        self.ask_each(message, flags, action, &mut |answer| answers.extend(route_of(answer)))?;
        Ok(answers)
    }

    fn ask_each(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        action: &str,
        each: &mut impl FnMut(RouteNetlinkMessage),
    ) -> Result<()> {
        let mut packet = NetlinkMessage::from(message);
        packet.header.flags = NLM_F_REQUEST | flags;
        packet.finalize();
        let mut request = vec![0; packet.buffer_len()];
        packet.serialize(&mut request);
        let asked = self.netlink.ask(&mut request, |answer| {
            let parsed =
                NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer).map(|m| m.payload);
            if let Ok(NetlinkPayload::InnerMessage(message)) = parsed {
                each(message);
            }
        });
        asked.map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM) => NetError::NotPermitted {
                action: "change routes",
                needs: "it takes the capability CAP_NET_ADMIN",
            },
            _ => NetError::system(action, source),
        })
    }
}

fn route_of(answer: RouteNetlinkMessage) -> Option<RouteMessage> {
    match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    }
}

fn has_no_rules(error: &std::io::Error) -> bool {
    let codes = [libc::EOPNOTSUPP, libc::EAFNOSUPPORT];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

pub(crate) fn is_unreachable(error: &std::io::Error) -> bool {
    let codes = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EINVAL, libc::EACCES, libc::ESRCH];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

pub(crate) fn family_of(address: IpAddr) -> (AddressFamily, u8) {
    match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    }
}

pub(crate) fn address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(four) => RouteAddress::Inet(four),
        IpAddr::V6(six) => RouteAddress::Inet6(six),
    }
}

/// Returns the prefix of a route; the default route has no address.
pub(crate) fn prefix_of(route: &RouteMessage) -> Option<IpNet> {
    let destination = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(four)) => Some(IpAddr::from(*four)),
        RouteAttribute::Destination(RouteAddress::Inet6(six)) => Some(IpAddr::from(*six)),
        _ => None,
    });
    let unspecified = match route.header.address_family {
        AddressFamily::Inet => IpAddr::from([0u8; 4]),
        AddressFamily::Inet6 => IpAddr::from([0u16; 8]),
        _ => return None,
    };
    IpNet::new(destination.unwrap_or(unspecified), route.header.destination_prefix_length).ok()
}

/// The initial windows of a route itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OwnWindows {
    pub(crate) congestion: Option<Segments>,
    pub(crate) receive: Option<Segments>,
}

impl OwnWindows {
    pub(crate) fn of(route: &RouteMessage) -> Self {
        // A number beyond every window counts as the largest one.
        let segments = |count: u32| Segments::new(count.min(MAX_SEGMENTS)).ok();
        let mut own = Self::default();
        for metric in metrics_of(route) {
            match metric {
                RouteMetric::InitCwnd(window) => own.congestion = segments(*window),
                RouteMetric::InitRwnd(window) => own.receive = segments(*window),
                _ => {}
            }
        }
        own
    }
}

/// Returns the table of a route.
pub(super) fn table_of(route: &RouteMessage) -> u32 {
    let table = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or(route.header.table.into())
}

pub(super) fn metrics_of(route: &RouteMessage) -> impl Iterator<Item = &RouteMetric> {
    route.attributes.iter().flat_map(|attribute| match attribute {
        RouteAttribute::Metrics(metrics) => metrics.as_slice(),
        _ => &[],
    })
}

/// Returns a copy of `base` for `prefix` alone, with `windows`, under `mark`.
fn copy_of(base: RouteMessage, prefix: IpNet, windows: Windows, mark: Mark) -> RouteMessage {
    let replaced = |metric: &RouteMetric| match metric {
        RouteMetric::InitCwnd(_) => true,
        RouteMetric::InitRwnd(_) => windows.receive.is_some(),
        _ => false,
    };
    let mut metrics: Vec<RouteMetric> =
        metrics_of(&base).filter(|metric| !replaced(metric)).cloned().collect();
    metrics.push(RouteMetric::InitCwnd(windows.congestion.as_u32()));
    metrics.extend(windows.receive.map(|window| RouteMetric::InitRwnd(window.as_u32())));
    let by_id =
        base.attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::NhId(_)));
    let mut copy = RouteMessage::default();
    copy.header = RouteHeader {
        destination_prefix_length: prefix.prefix_len(),
        protocol: RouteProtocol::Other(mark.protocol),
        // If the original's next hop need not be on the link's own prefix, the copy's need not
        // either.
        flags: if by_id { RouteFlags::empty() } else { base.header.flags & RouteFlags::Onlink },
        ..base.header
    };
    copy.attributes =
        base.attributes.into_iter().filter_map(|attribute| copied(attribute, by_id)).collect();
    copy.attributes.push(RouteAttribute::Destination(address(prefix.addr())));
    copy.attributes.push(RouteAttribute::Priority(mark.metric));
    copy.attributes.push(RouteAttribute::Metrics(metrics));
    copy
}

/// Returns an attribute for the copy; a route by next-hop id has no next hops besides.
fn copied(attribute: RouteAttribute, by_id: bool) -> Option<RouteAttribute> {
    match attribute {
        RouteAttribute::Oif(_) | RouteAttribute::Gateway(_) | RouteAttribute::Via(_) if by_id => {
            None
        }
        RouteAttribute::MultiPath(_) if by_id => None,
        RouteAttribute::MultiPath(mut hops) => {
            for hop in &mut hops {
                hop.flags &= RouteNextHopFlags::Onlink;
            }
            Some(RouteAttribute::MultiPath(hops))
        }
        RouteAttribute::Oif(_)
        | RouteAttribute::Gateway(_)
        | RouteAttribute::Via(_)
        | RouteAttribute::NhId(_)
        | RouteAttribute::PrefSource(_)
        | RouteAttribute::Table(_)
        | RouteAttribute::Realm(_)
        | RouteAttribute::Preference(_)
        | RouteAttribute::EncapType(_)
        | RouteAttribute::Encap(_) => Some(attribute),
        // Prefix and metric are replaced; ages, caches and metrics are not copied or are merged.
        _ => None,
    }
}
