//! Routes that carry a first window, as in the paper `[RT Fig. 8]`, and leave everything else as it is.
//!
//! The kernel takes the first window from the route of a connection. So a destination gets a route of its
//! own: a copy of the one that leads there now (all next hops, source, metrics) with `initcwnd` added,
//! under a protocol number of our own by which we know ours again. What a copy could break:
//!
//! - *It outlives its original*, and traffic follows yesterday's next hop. [`Routes::follow`] hears of
//!   route and link changes and takes the copies that they touch anew.
//! - *It outlives us.* IPv4 routes have no expiry, so [`Routes::sweep`] removes all of ours, at start and stop.
//! - *It hides a route of somebody else's.* A copy is made only where a shorter prefix leads; its metric is
//!   greater than any usual one, so that a route of the same prefix that comes later wins at once.
//! - *It lowers what the administrator set.* Where the route's own window is as large, there is no copy.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
    RouteNextHopFlags, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use tradewind_units::Segments;

use crate::error::{NetError, Result};
use crate::netlink::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, Netlink, messages};

/// The protocol number of our routes. Chosen: free in iproute2's list, and in no routing daemon's range.
pub const PROTOCOL: u8 = 82;
/// Metric of our routes. Chosen: above every default, so that a foreign route of the same prefix wins.
const METRIC: u32 = 8_200_000;
/// Groups of messages about links, IPv4 routes, IPv6 routes and next hops (`linux/rtnetlink.h`).
const GROUPS: [u32; 4] = [1, 7, 11, 32];

/// What became of a request for a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// It is there.
    Set,
    /// The route that leads there has a first window as large by itself.
    Unneeded,
    /// Somebody else has a route of this prefix or inside it: it is left alone.
    Foreign,
    /// No route leads there, or it leads to this host itself or to nowhere.
    NoRoute,
}

/// A route of ours.
#[derive(Debug, Clone)]
struct Copy {
    route: RouteMessage,
    windows: Windows,
}

/// What a route tells its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// First congestion window.
    pub congestion: Segments,
    /// First receive window, where one is to be set.
    pub receive: Option<Segments>,
}

/// Our routes in the network namespace that this was opened in.
#[derive(Debug)]
pub struct Routes {
    netlink: Netlink,
    changes: Socket,
    ours: BTreeMap<IpNet, Copy>,
}

impl Routes {
    /// Opens the kernel's routes of the calling thread's network namespace; changes nothing.
    ///
    /// # Errors
    /// When this kernel has no netlink.
    pub fn open() -> Result<Self> {
        let netlink = Netlink::open(NETLINK_ROUTE)?;
        let listen = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.set_non_blocking(true)?;
            for group in GROUPS {
                // An old kernel lacks the group of next hops and tells of their routes instead.
                let _ = socket.add_membership(group);
            }
            Ok::<_, std::io::Error>(socket)
        };
        let changes = listen().map_err(|e| NetError::system("listen to route changes", e))?;
        Ok(Self { netlink, changes, ours: BTreeMap::new() })
    }

    /// Removes all routes with our protocol number, whoever left them; returns how many there were.
    ///
    /// # Errors
    /// Without the right to change routes.
    pub fn sweep(&mut self) -> Result<usize> {
        self.ours.clear();
        let mut left = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut all = RouteMessage::default();
            all.header.address_family = family;
            left.extend(self.ask(RouteNetlinkMessage::GetRoute(all), NLM_F_DUMP, "list routes")?);
        }
        left.retain(|route| route.header.protocol == RouteProtocol::Other(PROTOCOL));
        for route in &left {
            self.delete(route)?;
        }
        Ok(left.len())
    }

    /// Gives connections to `prefix` their first windows.
    ///
    /// # Errors
    /// Without the right to change routes.
    pub fn set(&mut self, prefix: IpNet, windows: Windows) -> Result<Placed> {
        let base = match self.ours.get(&prefix) {
            Some(copy) => copy.route.clone(),
            None => match self.base_of(prefix)? {
                Ok(base) => base,
                Err(placed) => return Ok(placed),
            },
        };
        let own = base_window(&base);
        if !self.ours.contains_key(&prefix) && own >= windows.congestion.as_u32() {
            return Ok(Placed::Unneeded);
        }
        let route = copy_of(base, prefix, windows);
        let flags = NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK;
        let action = format!("set the route to {prefix}");
        self.ask(RouteNetlinkMessage::NewRoute(route.clone()), flags, &action)?;
        self.ours.insert(prefix, Copy { route, windows });
        Ok(Placed::Set)
    }

    /// Takes our route to `prefix` away, if there is one.
    ///
    /// # Errors
    /// Without the right to change routes.
    pub fn remove(&mut self, prefix: IpNet) -> Result<()> {
        let Some(copy) = self.ours.remove(&prefix) else { return Ok(()) };
        self.delete(&copy.route)
    }

    /// Our routes as far as we know, with their windows.
    pub fn ours(&self) -> impl Iterator<Item = (IpNet, Windows)> {
        self.ours.iter().map(|(prefix, copy)| (*prefix, copy.windows))
    }

    /// Copies anew what route and link changes since the last call have touched; returns which prefixes and
    /// what became of them. Does not wait.
    ///
    /// # Errors
    /// Without the right to change routes.
    pub fn follow(&mut self) -> Result<Vec<(IpNet, Placed)>> {
        let touched = match self.heard() {
            Heard::Nothing => return Ok(Vec::new()),
            Heard::Everything => self.ours.keys().copied().collect(),
            Heard::Prefixes(changed) => self.touched_by(&changed),
        };
        let mut outcome = Vec::new();
        for prefix in touched {
            let Some(copy) = self.ours.remove(&prefix) else { continue };
            self.delete(&copy.route)?;
            outcome.push((prefix, self.set(prefix, copy.windows)?));
        }
        Ok(outcome)
    }

    fn touched_by(&self, changed: &[IpNet]) -> Vec<IpNet> {
        let touches =
            |ours: &IpNet| changed.iter().any(|net| net.contains(ours) || ours.contains(net));
        self.ours.keys().copied().filter(touches).collect()
    }

    /// Reads what the kernel tells of changes that are not ours.
    fn heard(&mut self) -> Heard {
        let mut prefixes = Vec::new();
        let mut everything = false;
        let mut room = Vec::with_capacity(64 * 1024);
        loop {
            room.clear();
            match self.changes.recv(&mut room, 0) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // The kernel had more to tell than there was room for (ENOBUFS).
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => everything = true,
                Err(_) => break,
            }
            for message in messages(&room) {
                match NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).map(|m| m.payload)
                {
                    Ok(NetlinkPayload::InnerMessage(
                        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route),
                    )) => {
                        if route.header.protocol != RouteProtocol::Other(PROTOCOL) {
                            prefixes.extend(prefix_of(&route));
                        }
                    }
                    // A link or next hop: IPv4 routes vanish with it without a word.
                    _ => everything = true,
                }
            }
        }
        match (everything, prefixes.is_empty()) {
            (true, _) => Heard::Everything,
            (false, true) => Heard::Nothing,
            (false, false) => Heard::Prefixes(prefixes),
        }
    }

    /// The route that leads to all of `prefix` now, or why there is none to copy.
    fn base_of(&mut self, prefix: IpNet) -> Result<Result<RouteMessage, Placed>> {
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
        let Some(base) = found.into_iter().next() else { return Ok(Err(Placed::NoRoute)) };
        if base.header.kind != RouteType::Unicast {
            return Ok(Err(Placed::NoRoute));
        }
        if base.header.destination_prefix_length >= prefix.prefix_len() {
            return Ok(Err(Placed::Foreign));
        }
        Ok(Ok(base))
    }

    fn delete(&mut self, route: &RouteMessage) -> Result<()> {
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
            // It went with its link, or somebody was faster.
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
        let mut packet = NetlinkMessage::from(message);
        packet.header.flags = NLM_F_REQUEST | flags;
        packet.finalize();
        let mut request = vec![0; packet.buffer_len()];
        packet.serialize(&mut request);
        let mut answers = Vec::new();
        let asked = self.netlink.ask(&mut request, |answer| {
            let parsed =
                NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer).map(|m| m.payload);
            if let Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route))) = parsed {
                answers.push(route);
            }
        });
        asked.map(|()| answers).map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => NetError::NotPermitted {
                action: "change routes",
                needs: "it takes the capability CAP_NET_ADMIN",
            },
            _ => NetError::system(action, source),
        })
    }
}

impl AsFd for Routes {
    /// Has input when there is something to [`Routes::follow`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

enum Heard {
    Nothing,
    Everything,
    Prefixes(Vec<IpNet>),
}

fn is_unreachable(error: &std::io::Error) -> bool {
    let codes = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EINVAL, libc::EACCES, libc::ESRCH];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

fn family_of(address: IpAddr) -> (AddressFamily, u8) {
    match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    }
}

fn address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(four) => RouteAddress::Inet(four),
        IpAddr::V6(six) => RouteAddress::Inet6(six),
    }
}

/// The prefix of a route; the default route has no address.
fn prefix_of(route: &RouteMessage) -> Option<IpNet> {
    let told = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(four)) => Some(IpAddr::from(*four)),
        RouteAttribute::Destination(RouteAddress::Inet6(six)) => Some(IpAddr::from(*six)),
        _ => None,
    });
    let unspecified = match route.header.address_family {
        AddressFamily::Inet => IpAddr::from([0u8; 4]),
        AddressFamily::Inet6 => IpAddr::from([0u16; 8]),
        _ => return None,
    };
    IpNet::new(told.unwrap_or(unspecified), route.header.destination_prefix_length).ok()
}

/// The first window that a route has by itself; zero without.
fn base_window(route: &RouteMessage) -> u32 {
    metrics_of(route)
        .find_map(|metric| match metric {
            RouteMetric::InitCwnd(window) => Some(*window),
            _ => None,
        })
        .unwrap_or(0)
}

fn metrics_of(route: &RouteMessage) -> impl Iterator<Item = &RouteMetric> {
    route.attributes.iter().flat_map(|attribute| match attribute {
        RouteAttribute::Metrics(metrics) => metrics.as_slice(),
        _ => &[],
    })
}

/// `base` for `prefix` alone, with `windows`, as ours.
fn copy_of(base: RouteMessage, prefix: IpNet, windows: Windows) -> RouteMessage {
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
        protocol: RouteProtocol::Other(PROTOCOL),
        // Where the next hop need not be on the link's own prefix, it need not be for the copy.
        flags: if by_id { RouteFlags::empty() } else { base.header.flags & RouteFlags::Onlink },
        ..base.header
    };
    copy.attributes = base.attributes.into_iter().filter_map(|kept| copied(kept, by_id)).collect();
    copy.attributes.push(RouteAttribute::Destination(address(prefix.addr())));
    copy.attributes.push(RouteAttribute::Priority(METRIC));
    copy.attributes.push(RouteAttribute::Metrics(metrics));
    copy
}

/// An attribute as the copy has it; a route by next-hop id states no next hops besides.
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
        // Its prefix and metric are ours; ages, caches and metrics are not copied or are merged.
        _ => None,
    }
}

#[cfg(test)]
mod tests;
