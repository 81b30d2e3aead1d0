//! Routes with an initial window, as in the paper `[RT Fig. 8]`, which leave everything else
//! unchanged.
//!
//! The kernel takes the initial window from the route of a connection. So a destination gets a
//! route of its own: a copy of the current one (all next hops, source, metrics) with `initcwnd`
//! added, under a protocol number that identifies our routes. The risks of a copy:
//!
//! - *It outlives its original*, and traffic uses an outdated next hop. [`Routes::follow`] receives
//!   route and link changes and renews the copies that they affect. As IPv4 routes vanish with
//!   their link or next hop without a notification, it compares all routes with the former ones
//!   when a link or next hop changes.
//! - *It outlives the rule that led to its original*, and traffic bypasses a new VPN. When policy
//!   routing rules change, all copies are renewed. Where a rule suppresses short prefixes
//!   (`suppress_prefixlength`), and so the original but not a copy, there is no copy.
//! - *It outlives the process.* IPv4 routes have no expiry, so [`Routes::sweep`] removes all of
//!   ours, at start and stop.
//! - *It hides a foreign route.* A copy is made only where a shorter prefix leads; its metric is
//!   greater than any usual one, so that a later route of the same prefix wins at once.
//! - *It lowers the administrator's setting.* If the route's own initial window is as large, there
//!   is no copy; a larger first receive window of its own stays.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::route::{RouteMessage, RouteProtocol};
use netlink_sys::Socket;
use tradewind_units::Segments;

use crate::error::{NetError, Result};
use crate::netlink::{listen, messages, u16_at};
use crate::sysctl;

pub(crate) mod kernel;
pub(crate) mod metrics;
mod rules;
mod snapshot;
use kernel::{Kernel, Mark, OwnWindows, prefix_of};
use rules::Suppressions;
use snapshot::Snapshot;

/// The protocol number of our routes. Chosen: free in iproute2's list, and outside the ranges of
/// routing daemons.
pub const PROTOCOL: u8 = 82;
/// The metric of our routes. Chosen: above every default, so that a foreign route of the same
/// prefix wins.
const METRIC: u32 = 8_200_000;
/// Payload of a segment on Ethernet. Smaller segments fit as well: at most about half a buffer is
/// window.
const SEGMENT_BYTES: u64 = 1448;
/// Most segments of a first receive window. Chosen: with the largest segments, it still fits into
/// the kernel's 32 bits.
const MAX_RECEIVE_SEGMENTS: u16 = u16::MAX;
/// Multicast groups of messages about links, IPv4 routes and rules, and IPv6 routes and rules
/// (`linux/rtnetlink.h`).
const GROUPS: [u32; 5] = [1, 7, 8, 11, 19];
/// Message types of a new and of a removed rule (`RTM_NEWRULE`, `RTM_DELRULE`).
const OF_RULES: [u16; 2] = [32, 33];

/// The result of a request for a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// The route is set.
    Set,
    /// The current route has an initial window as large by itself.
    Unneeded,
    /// A foreign route of this prefix or inside it exists, which stays as it is, or a rule that
    /// suppresses the current route but not a copy of it.
    Foreign,
    /// No route leads there, or it leads to this host itself or to nowhere.
    NoRoute,
}

/// A route of ours.
#[derive(Debug, Clone)]
struct Copy {
    route: RouteMessage,
    /// The windows of the route that it was copied from.
    original: OwnWindows,
    /// The requested windows.
    windows: Windows,
}

/// The initial windows of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// First congestion window.
    pub congestion: Segments,
    /// Least first receive window, if one is to be set: it is never below that of connections
    /// without it.
    pub receive: Option<Segments>,
}

/// Our routes in the network namespace where this was opened.
#[derive(Debug)]
pub struct Routes {
    kernel: Kernel,
    changes: Socket,
    links: Links,
    /// Capacity of the largest receive buffer on this host.
    buffers: Option<Segments>,
    ours: BTreeMap<IpNet, Copy>,
    /// Foreign routes at the last comparison; `None` before the first copy.
    known: Option<Snapshot>,
    /// Rules as last read; `None` before the first copy, and after a change.
    suppressions: Option<Suppressions>,
    /// True if an operator set the windows: they are used unchanged, even where others were
    /// learned.
    is_asked: bool,
}

impl Routes {
    /// Opens the routes of the calling thread's network namespace; changes nothing.
    ///
    /// # Errors
    /// When this kernel has no netlink.
    pub fn open() -> Result<Self> {
        Self::open_as(Mark { protocol: PROTOCOL, metric: METRIC }, false)
    }

    /// Opens them for routes with `mark`; `is_asked` if an operator sets their windows.
    pub(crate) fn open_as(mark: Mark, is_asked: bool) -> Result<Self> {
        let kernel = Kernel::open(mark)?;
        let changes =
            listen(&GROUPS).map_err(|e| NetError::system("listen to route changes", e))?;
        Ok(Self {
            kernel,
            changes,
            links: Links::default(),
            buffers: largest_buffer(),
            ours: BTreeMap::new(),
            known: None,
            suppressions: None,
            is_asked,
        })
    }

    /// Removes all routes with our protocol number, of any process; returns their number.
    ///
    /// # Errors
    /// Without the right to change routes.
    pub fn sweep(&mut self) -> Result<usize> {
        self.ours.clear();
        let left = self.kernel.marked()?;
        for route in &left {
            self.kernel.delete(route)?;
        }
        Ok(left.len())
    }

    /// Removes routes with our mark to `prefixes`, of any process, as they would be copied.
    pub(crate) fn clear(&mut self, prefixes: &BTreeSet<IpNet>) -> Result<()> {
        let left = self.kernel.marked()?;
        let of_these = |route: &&RouteMessage| {
            prefix_of(route).is_some_and(|prefix| prefixes.contains(&prefix))
        };
        left.iter().filter(of_these).try_for_each(|route| self.kernel.delete(route))
    }

    /// Sets the initial windows of connections to `prefix`, none smaller than that of the route
    /// that leads there otherwise.
    ///
    /// # Errors
    /// Without the right to change routes, and where the kernel does not accept a copy of the route
    /// that leads there.
    ///
    /// # Cost
    /// The first time, reads all routes.
    pub fn set(&mut self, prefix: IpNet, windows: Windows) -> Result<Placed> {
        if self.known.is_none() {
            self.known = Some(self.kernel.snapshot()?);
        }
        let (base, original) = match self.ours.get(&prefix) {
            Some(copy) => (copy.route.clone(), copy.original),
            None => match self.base_of(prefix)? {
                Ok(base) => {
                    let original = OwnWindows::of(&base);
                    (base, original)
                }
                Err(placed) => return Ok(placed),
            },
        };
        if !self.is_asked && original.congestion >= Some(windows.congestion) {
            self.remove(prefix)?;
            return Ok(Placed::Unneeded);
        }
        // Since Linux 4.20 `initrwnd` only keeps a first receive window below its buffer.
        let without = original.receive.or(self.buffers).filter(|_| !self.is_asked);
        let receive = windows.receive.and_then(|least| without.max(Some(least)));
        let given = Windows { receive, ..windows };
        let route = self.kernel.copy(base, prefix, given)?;
        self.ours.insert(prefix, Copy { route, original, windows });
        Ok(Placed::Set)
    }

    /// Removes our route to `prefix`, if there is one; a route that could not be removed is still
    /// known as ours.
    ///
    /// # Errors
    /// Without the right to change routes.
    pub fn remove(&mut self, prefix: IpNet) -> Result<()> {
        let Some(copy) = self.ours.get(&prefix) else { return Ok(()) };
        self.kernel.delete(&copy.route)?;
        self.ours.remove(&prefix);
        Ok(())
    }

    /// Returns the known routes of ours, with their windows.
    pub fn ours(&self) -> impl Iterator<Item = (IpNet, Windows)> {
        self.ours.iter().map(|(prefix, copy)| (*prefix, copy.windows))
    }

    /// Renews the copies affected by route and link changes since the last call, and all after a
    /// change of rules. Returns their prefixes with the results; a copy that the kernel refuses
    /// does not affect the others. Does not wait for changes.
    ///
    /// # Cost
    /// Reads all routes where a link or next hop has changed.
    pub fn follow(&mut self) -> Vec<(IpNet, Result<Placed>)> {
        let RouteChanges { mut prefixes, silently, rules, lost_events } = self.read_changes();
        let compared =
            if silently || lost_events { self.changed_silently() } else { Some(Vec::new()) };
        if rules || lost_events {
            self.suppressions = None;
        }
        let touched = match compared.filter(|_| !lost_events && !rules) {
            Some(more) => {
                prefixes.extend(more);
                self.touched_by(&prefixes)
            }
            None => self.ours.keys().copied().collect(),
        };
        touched.into_iter().map(|prefix| (prefix, self.take_anew(prefix))).collect()
    }

    /// Returns the prefixes whose routes have changed since the last comparison; `None` where that
    /// cannot be found out.
    fn changed_silently(&mut self) -> Option<Vec<IpNet>> {
        if self.ours.is_empty() {
            return Some(Vec::new());
        }
        let now = self.kernel.settle().and_then(|()| self.kernel.snapshot()).ok()?;
        let changed = self.known.as_ref().map(|before| now.changed_since(before));
        self.known = Some(now);
        changed
    }

    /// Renews the copy for `prefix`. If that is refused, no copy is left.
    fn take_anew(&mut self, prefix: IpNet) -> Result<Placed> {
        let Some(windows) = self.ours.get(&prefix).map(|copy| copy.windows) else {
            return Ok(Placed::NoRoute);
        };
        self.remove(prefix)?;
        self.set(prefix, windows)
    }

    fn touched_by(&self, changed: &[IpNet]) -> Vec<IpNet> {
        let touches =
            |ours: &IpNet| changed.iter().any(|net| net.contains(ours) || ours.contains(net));
        self.ours.keys().copied().filter(touches).collect()
    }

    /// Reads the kernel's notifications of changes that are not ours.
    fn read_changes(&mut self) -> RouteChanges {
        let mut changes = RouteChanges::default();
        let mut buffer = Vec::with_capacity(64 * 1024);
        loop {
            buffer.clear();
            match self.changes.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // The kernel's buffer overflowed, and messages were lost (ENOBUFS).
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    (changes.lost_events, self.links) = (true, Links::default());
                }
                Err(_) => break,
            }
            for message in messages(&buffer) {
                if OF_RULES.contains(&u16_at(message, 4)) {
                    changes.rules = true;
                    continue;
                }
                match NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).map(|m| m.payload)
                {
                    Ok(NetlinkPayload::InnerMessage(
                        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route),
                    )) => {
                        if route.header.protocol != self.kernel.protocol() {
                            changes.prefixes.extend(prefix_of(&route));
                        }
                    }
                    // IPv4 routes vanish with their link or next hop without a notification.
                    Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link))) => {
                        changes.silently |= self.links.has_turned(&link);
                    }
                    Ok(NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link))) => {
                        self.links.0.remove(&link.header.index);
                        changes.silently = true;
                    }
                    _ => changes.silently = true,
                }
            }
        }
        changes
    }

    /// Returns the route that leads to all of `prefix` now, or why there is none to copy.
    fn base_of(&mut self, prefix: IpNet) -> Result<Result<RouteMessage, Placed>> {
        let Some(base) = self.kernel.leading_to(prefix)? else { return Ok(Err(Placed::NoRoute)) };
        // A learned route is a copy itself.
        let is_learned = base.header.protocol == RouteProtocol::Other(PROTOCOL);
        let is_copy = self.is_asked && is_learned && prefix_of(&base) == Some(prefix);
        if base.header.destination_prefix_length >= prefix.prefix_len() && !is_copy {
            return Ok(Err(Placed::Foreign));
        }
        if self.suppressions.is_none() {
            self.suppressions = Some(self.kernel.suppressions()?);
        }
        if self.suppressions.as_ref().is_some_and(|rules| rules.spare_copy(&base, prefix)) {
            return Ok(Err(Placed::Foreign));
        }
        Ok(Ok(base))
    }
}

impl AsFd for Routes {
    /// Returns a descriptor that has input when there are changes for [`Routes::follow`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

/// Returns the segments that the largest possible receive buffer of a socket here holds: the limit
/// of autotuning, or of a program's request, which the kernel doubles.
fn largest_buffer() -> Option<Segments> {
    let grown = sysctl::get("net.ipv4.tcp_rmem").unwrap_or_default();
    let asked = sysctl::get("net.core.rmem_max").unwrap_or_default();
    let bytes = |text: &str| text.parse::<u64>().ok();
    let grown = grown.split_whitespace().filter_map(bytes).max();
    let most = grown.max(bytes(&asked).map(|bytes| bytes.saturating_mul(2)))?;
    let segments = most.div_ceil(SEGMENT_BYTES).clamp(1, MAX_RECEIVE_SEGMENTS.into());
    Segments::new(u32::try_from(segments).ok()?).ok()
}

/// The state of each link, as last reported.
#[derive(Debug, Default)]
struct Links(BTreeMap<u32, LinkFlags>);

impl Links {
    /// Returns whether `link` went up or down, or is new: the kernel reports many other changes
    /// that affect no route.
    fn has_turned(&mut self, link: &LinkMessage) -> bool {
        let up = LinkFlags::Up | LinkFlags::Running | LinkFlags::LowerUp;
        let now = link.header.flags & up;
        self.0.insert(link.header.index, now) != Some(now)
    }
}

/// The kernel's notifications of changes.
#[derive(Debug, Default)]
struct RouteChanges {
    /// Prefixes of changed routes.
    prefixes: Vec<IpNet>,
    /// True after a change with which routes appear and vanish without a notification.
    silently: bool,
    /// True after a change of rules, which may redirect any destination.
    rules: bool,
    /// True if messages were lost.
    lost_events: bool,
}

#[cfg(test)]
mod tests;
